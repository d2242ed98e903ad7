"""Keras models by name. They know nothing of replicas.

model = build("cnn", input_shape=(28, 28, 1), num_classes=10)
model = build("cnn", (28, 28, 1), 10, precision="bfloat16")
"""

import keras

from tfmirror import recipes
from tfmirror.models import (
    fused_batch_norm,
    probe,
    resnet18,
    small_cnn,
    unused_pixels,
)
from tfmirror.models.initializers import INITIALIZERS

BUILDERS = {"cnn": small_cnn.build, "resnet18": resnet18.build, "probe": probe.build}


def build(name, input_shape, num_classes, precision="float32", init=None):
    """Returns the Keras model `name`: images [b, H, W, C] in [0, 1] to logits [b, K].

    Its batch norm is computed by TensorFlow's fused kernel, and pixels that no logit
    depends on are not computed; it is saved as plain Keras.

    Args:
      precision: of its arithmetic, "float32", "bfloat16" or "float16"; its variables
        and logits are float32.
      init: how its kernels are drawn, one of INITIALIZERS; None: as its chapter does.

    Raises:
      InputError: images too small for it.
    """
    if init is None:
        init = recipes.RECIPES[name].init if name in recipes.RECIPES else "glorot"
    policy = keras.config.dtype_policy()
    mixed = precision if precision == "float32" else f"mixed_{precision}"
    keras.config.set_dtype_policy(mixed)
    try:
        model = BUILDERS[name](input_shape, num_classes, INITIALIZERS[init])
    finally:
        keras.config.set_dtype_policy(policy)
    fused_batch_norm.fuse(model)
    unused_pixels.leave_out(model)
    return model
