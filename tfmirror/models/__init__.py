"""Builds Keras models by name. A model does not depend on the number of replicas.

model = build("cnn", input_shape=(28, 28, 1), num_classes=10)
model = build("cnn", (28, 28, 1), 10, precision="bfloat16")
"""

from collections.abc import Sequence

import keras

from tfmirror import errors, recipes
from tfmirror.models import (
    fused_batch_norm,
    keras_defaults,
    probe,
    resnet18,
    small_cnn,
    unused_pixels,
)
from tfmirror.models.initializers import INITIALIZERS

BUILDERS = {"cnn": small_cnn.build, "resnet18": resnet18.build, "probe": probe.build}

PRECISIONS = {
    "float32": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
}


@keras_defaults.scope()
def build(
    name: str,
    input_shape: Sequence[int],
    num_classes: int,
    *,
    precision: str = "float32",
    init: str | None = None,
) -> keras.Model:
    """Returns a new model: images [b, H, W, C] float32 in [0, 1] to logits [b, K].

    TensorFlow's fused kernel computes its batch norm, and pixels on which no logit
    depends are cut off. Neither is saved with the model, which is plain Keras.

    Args:
      name: one of `BUILDERS`.
      input_shape: (H, W, C) of the images.
      num_classes: K.
      precision: dtype of the computations: "float32", "bfloat16" or "float16".
        Variables and logits are always float32.
      init: initializer of the kernels, one of `INITIALIZERS`; None: the recipe's for
        this model, or "glorot" if it has no recipe.

    Raises:
      InputError: the name, the precision or the initializer is unknown, or the images
        are too small for the model.
    """
    errors.require_one_of(BUILDERS, "model", name)
    if init is None:
        init = recipes.RECIPES[name].init if name in recipes.RECIPES else "glorot"
    errors.require_one_of(INITIALIZERS, "init", init)
    errors.require_one_of(PRECISIONS, "precision", precision)
    keras.config.set_dtype_policy(PRECISIONS[precision])  # until the scope ends
    model = BUILDERS[name](input_shape, num_classes, INITIALIZERS[init])
    fused_batch_norm.fuse(model)
    unused_pixels.crop_inputs(model)
    return model
