"""Images with labels, held once: NumPy and TensorFlow read the same memory.

examples = Examples(images, labels)
images, labels = examples.variables()               # on the host
"""

import dataclasses
import typing

import numpy as np

if typing.TYPE_CHECKING:
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Examples:
    """E images and their labels, in the same order.

    With the first call of `variables` TensorFlow takes over: the arrays are then views
    of its memory. So any number of pipelines, on any number of devices, hold one copy.
    """

    images: np.ndarray  # [E, H, W, C] uint8
    labels: np.ndarray  # [E] int32 in [0, K)
    _variables: "list[tf.Variable]" = dataclasses.field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __len__(self) -> int:
        """Returns E, the number of examples."""
        return len(self.labels)

    def variables(self) -> "tuple[tf.Variable, tf.Variable]":
        """Returns images and labels as variables on the host, always the same ones.

        Read them with `value()`, which does not copy. They are variables because
        tf.data copies the tensors that a pipeline captures, but not the variables.
        """
        if not self._variables:
            for name in ("images", "labels"):
                tensor, variable = _on_host(getattr(self, name))
                # Not a tensor over NumPy's memory: a thread of TensorFlow may be the
                # one that frees it, without Python's lock.
                object.__setattr__(self, name, np.asarray(memoryview(tensor)))
                self._variables.append(variable)
        images, labels = self._variables
        return images, labels


def _on_host(array: np.ndarray) -> "tuple[tf.Tensor, tf.Variable]":
    """Returns a copy of an array on the host as a tensor, and a variable of it."""
    import tensorflow as tf  # the PyTorch peer does without

    with tf.device("CPU"):
        tensor = tf.constant(array)
        return tensor, tf.Variable(tensor, trainable=False)
