"""Makes a model of the user's own ready to be trained, or says why it can't be.

model = build(model_source.load("nets.py:small"), (28, 28, 1), 10)

What is checked here would otherwise be an error from deep within Keras, or a model that
trains badly without a word.
"""

from collections.abc import Sequence

import keras
import numpy as np

from tfmirror import errors, model_source
from tfmirror.model_source import ModelSource
from tfmirror.models import nested_layers

WEIGHTS_DTYPE = "float32"
PROBABILITIES = ("softmax", "sigmoid", "hard_sigmoid")
# Images are in [0, 1]. Rescaled by less than this, all of them look black.
SMALLEST_SCALE = 0.1
EXAMPLES_TO_TRY = 4
SUM_TOLERANCE = 0.01  # of probabilities; bfloat16 has two digits


def build(
    source: ModelSource, input_shape: Sequence[int], num_classes: int
) -> keras.Model:
    """Returns the model that a function of the user's returns, checked.

    Args:
      source: the function; it is called once.
      input_shape: (H, W, C) of the images.
      num_classes: K.

    Raises:
      InputError: the function raises, or the model does not map images
        [b, H, W, C] float32 in [0, 1] to logits [b, K] with weights that can be
        trained.
    """
    model = source.build(input_shape, num_classes)
    what = f"model {source.name}"
    if not isinstance(model, keras.Model):
        raise errors.InputError(
            f"{what} must return a keras.Model: got {errors.shown(model)}"
        )
    model = _with_symbolic_inputs(model, input_shape, what)
    _check_shapes(model, input_shape, num_classes, what=what)
    _check_weights(model, what)
    _check_layers(model, what)
    return model


def _with_symbolic_inputs(
    model: keras.Model, input_shape: Sequence[int], what: str
) -> keras.Model:
    """Returns a model that knows its inputs and outputs.

    A Sequential without an Input, and a subclass with a `call` of its own, get to know
    them when they are called.
    """
    if _is_functional(model):
        return model
    try:
        inputs = keras.Input(tuple(input_shape))
        outputs = model(inputs)
        if isinstance(model, keras.Sequential):
            return model
        return keras.Model(inputs, outputs, name=model.name)
    # A `call` of the user's own may raise anything.
    except Exception as error:
        raise errors.InputError(
            f"{what} can't be called on images {list(input_shape)}: "
            f"{model_source.describe_error(error, '')}"
        ) from error


def _is_functional(model: keras.Model) -> bool:
    """Returns whether a model knows its inputs and outputs."""
    try:
        return bool(model.inputs) and bool(model.outputs)
    except (AttributeError, ValueError):
        return False


def _check_shapes(
    model: keras.Model, input_shape: Sequence[int], num_classes: int, *, what: str
) -> None:
    """Raises InputError unless the model maps [b, H, W, C] to [b, K]."""
    for tensors, name in ((model.inputs, "input"), (model.outputs, "output")):
        if len(tensors) != 1:
            raise errors.InputError(
                f"{what} must have one {name}: got {len(tensors)}; return a model "
                f"with the {name} that is trained"
            )
    got = tuple(model.inputs[0].shape[1:])
    if got != tuple(input_shape):
        raise errors.InputError(
            f"{what} must take images of the shape that its function is called with, "
            f"{list(input_shape)}: got {list(got)}"
        )
    (outputs,) = model.outputs
    if tuple(outputs.shape[1:]) != (num_classes,):
        raise errors.InputError(
            f"{what} must give a logit for each of the {num_classes} classes, [b, "
            f"{num_classes}]: got {[*outputs.shape]}"
        )
    if "float" not in str(outputs.dtype):
        raise errors.InputError(
            f"{what} must give logits in floating point: got {outputs.dtype}"
        )


def _check_weights(model: keras.Model, what: str) -> None:
    """Raises InputError unless there are weights to train, all float32."""
    if not model.trainable_variables:
        raise errors.InputError(
            f"{what} must have a weight to train: got none of {len(model.variables)}"
        )
    for variable in model.trainable_variables:
        if variable.dtype != WEIGHTS_DTYPE:
            raise errors.InputError(
                f"{what} must have weights in float32, whatever it computes in: "
                f"{variable.path} is {variable.dtype}; make the layer without a dtype, "
                "or with a mixed_ policy"
            )


def _check_layers(model: keras.Model, what: str) -> None:
    """Raises InputError if a layer makes the model train badly without a word."""
    scale = 1.0
    for layer in nested_layers.all_layers(model):
        if _is_synchronized(layer):
            raise errors.InputError(
                f"{what} has a BatchNormalization(synchronized=True), {layer.name}: "
                "make it without, and give --batch_norm=sync"
            )
        if isinstance(layer, keras.layers.Rescaling):
            scale *= float(np.max(np.abs(layer.scale)))
    if scale < SMALLEST_SCALE:
        raise errors.InputError(
            f"{what} multiplies images by {scale:.3g} with Rescaling, but they are in "
            "[0, 1] already: leave the layer out (include_preprocessing=False), or put "
            "keras.layers.Rescaling(255.0) before it"
        )
    last = _last_layer(model)
    activation = getattr(getattr(last, "activation", None), "__name__", "")
    if isinstance(last, keras.layers.Softmax):
        activation = "softmax"
    if last is not None and activation in PROBABILITIES:
        raise _gives_probabilities(f"{what} ends in {activation}, in layer {last.name}")


def _is_synchronized(layer: keras.Layer) -> bool:
    """Returns whether batch norm adds over replicas by itself, outside of our step."""
    is_batch_norm = isinstance(layer, keras.layers.BatchNormalization)
    return is_batch_norm and layer.synchronized


def _last_layer(model: keras.Model) -> keras.Layer | None:
    """Returns the layer that computes the output, however deep; None: no layer does."""
    if isinstance(model, keras.Sequential):
        last = model.layers[-1]
    else:
        names = {layer.name: layer for layer in model.layers}
        last = names.get(model.output_names[0])
    is_model = isinstance(last, keras.Model) and _is_functional(last)
    return _last_layer(last) if is_model else last


def _gives_probabilities(what: str) -> errors.InputError:
    return errors.InputError(
        f"{what}, but logits are expected, which the loss turns into probabilities: "
        "leave the last activation out (classifier_activation=None in "
        "keras.applications)"
    )


def check_outputs(model: keras.Model) -> None:
    """Checks a model of the user's own by calling it on images of noise.

    Args:
      model: made by `build`, with its weights.

    Raises:
      InputError: it can't be called, its outputs are not finite, or they are
        probabilities.
    """
    what = f"model {model.name}"
    shape = (EXAMPLES_TO_TRY, *model.input_shape[1:])
    images = np.random.RandomState(0).uniform(size=shape).astype(np.float32)
    try:
        outputs = np.asarray(model(images, training=False), np.float32)
    # A `call` of the user's own may raise anything.
    except Exception as error:
        raise errors.InputError(
            f"{what} can't be called on {EXAMPLES_TO_TRY} images: "
            f"{model_source.describe_error(error, '')}"
        ) from error
    if not np.isfinite(outputs).all():
        raise errors.InputError(f"{what} gives logits that are not finite for noise")
    sums = outputs.sum(axis=1)
    if outputs.min() >= 0 and np.abs(sums - 1).max() <= SUM_TOLERANCE:
        raise _gives_probabilities(f"{what} gives numbers that add up to 1")


def check_precision(model: keras.Model, policy: str) -> None:
    """Checks that a model of the user's own computes in the precision of the run.

    Args:
      policy: Keras' name of the dtype policy that new layers had.

    Raises:
      InputError: no layer computes in it, or one computes in float16 without the loss
        scale that float16 needs.
    """
    expected = keras.DTypePolicy(policy).compute_dtype
    layers = [layer for layer in nested_layers.all_layers(model) if layer.weights]
    computed = {layer.compute_dtype for layer in layers}
    if expected not in computed:
        got = sorted(computed)
        raise errors.InputError(
            f"precision={expected} has no effect on model {model.name}: its layers "
            f"compute in {', '.join(got)}; make them without a dtype of their own, or "
            f"give --precision={got[0]}"
        )
    if "float16" in computed and expected != "float16":
        raise errors.InputError(
            f"model {model.name} has layers that compute in float16: give "
            "--precision=float16, which scales the loss"
        )
