"""Builds Keras models by name. A model does not depend on the number of replicas.

model = build("cnn", input_shape=(28, 28, 1), num_classes=10)
model = build("cnn", (28, 28, 1), 10, precision="bfloat16")
"""

from collections.abc import Sequence

import keras

from tfmirror import errors, model_source, recipes
from tfmirror.model_source import ModelSource
from tfmirror.models import (
    fused_batch_norm,
    keras_defaults,
    own_model,
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
    model: str | ModelSource,
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
      model: one of `BUILDERS`; or a function of the user's own, as a ModelSource or as
        FILE.py:FUNCTION or package.module:FUNCTION.
      input_shape: (H, W, C) of the images.
      num_classes: K.
      precision: dtype of the computations: "float32", "bfloat16" or "float16".
        Variables and logits are always float32.
      init: initializer of the kernels, one of `INITIALIZERS`; None: the recipe's for
        this model, or "glorot" if it has no recipe. A model of the user's own makes
        its weights itself.

    Raises:
      InputError: the name, the precision or the initializer is unknown, the images
        are too small for the model, or a model of the user's own can't be trained.
    """
    errors.require_one_of(PRECISIONS, "precision", precision)
    keras.config.set_dtype_policy(PRECISIONS[precision])  # until the scope ends
    with keras_defaults.names_of_a_new_process():
        if isinstance(model, str) and model_source.is_own(model):
            model = model_source.load(model)
        if isinstance(model, ModelSource):
            built = own_model.build(model, input_shape, num_classes)
            own_model.check_precision(built, PRECISIONS[precision])
        else:
            built = _build_builtin(model, input_shape, num_classes, init=init)
    fused_batch_norm.fuse(built)
    unused_pixels.crop_inputs(built)
    return built


def _build_builtin(
    name: str, input_shape: Sequence[int], num_classes: int, *, init: str | None
) -> keras.Model:
    """Returns one of `BUILDERS`' models, see `build`."""
    errors.require_one_of(BUILDERS, "model", name)
    if init is None:
        init = recipes.RECIPES[name].init if name in recipes.RECIPES else "glorot"
    errors.require_one_of(INITIALIZERS, "init", init)
    return BUILDERS[name](input_shape, num_classes, INITIALIZERS[init])
