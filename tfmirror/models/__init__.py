"""Keras models by name. They know nothing of replicas.

    model = build("cnn", input_shape=(28, 28, 1), num_classes=10)
model = build("cnn", input_shape=(28, 28, 1), num_classes=10, precision="bfloat16")
"""

import keras

from tfmirror.models import probe, resnet18, small_cnn

BUILDERS = {"cnn": small_cnn.build, "resnet18": resnet18.build, "probe": probe.build}


def build(name, input_shape, num_classes, precision="float32"):
    """Returns the Keras model `name`: images [b, H, W, C] in [0, 1] to logits [b, K].

    Args:
      precision: of its arithmetic, "float32", "bfloat16" or "float16"; its variables
      and
        logits are float32.

    Raises:
      InputError: images too small for it.
    """
    policy = keras.config.dtype_policy()
    mixed = precision if precision == "float32" else f"mixed_{precision}"
    keras.config.set_dtype_policy(mixed)
    try:
        return BUILDERS[name](input_shape, num_classes)
    finally:
        keras.config.set_dtype_policy(policy)
