"""Data-parallel training with TensorFlow and Keras, with nothing hidden.

    python -m tfmirror.train --gpus=2
    python -m tfmirror.inspect_replicas --gpus=2

Importing this package, or any module of it, has no effect: TensorFlow's runtime
starts when a run does. Modules may import only from rooms below their own (see the
list in docs/code.md).
"""

__version__ = "0.1.0"
