"""Keras models by name. They know nothing of replicas.

model = build("cnn", input_shape=(28, 28, 1), num_classes=10)
"""

from tfmirror.models import small_cnn

BUILDERS = {"cnn": small_cnn.build}


def build(name, input_shape, num_classes):
    """Returns the Keras model `name`: images [b, H, W, C] in [0, 1] to logits [b, K].

    Raises:
      InputError: images too small for it.
    """
    return BUILDERS[name](input_shape, num_classes)
