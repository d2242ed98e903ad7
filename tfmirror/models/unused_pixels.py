"""Cuts off the pixels of images on which no logit depends.

    crop_inputs(model)              # a Sequential that begins with convolutions

A 2x2 pool over an odd number of rows ignores the last row. The convolution before it
still computes that row, and its gradients, which are zero. In the small CNN on 28x28
pixels this is a fifth of all work: 17 of the second convolution's 81 positions, and
with them the last two rows and columns of the images.

    28 -conv 3-> 26 -pool 2-> 13 -conv 5-> 9 -pool 2-> 4     as the layers are defined
    26 -conv 3-> 24 -pool 2-> 12 -conv 5-> 8 -pool 2-> 4     what the logits depend on
"""

import functools
import itertools
import typing

import keras
import tensorflow as tf

from tfmirror.models import layer_override


class NeededRegion(typing.NamedTuple):
    """The upper left part of a layer's inputs and outputs that logits depend on."""

    layer: keras.Layer
    inputs: tuple[int, int]  # (height, width), pixels
    outputs: tuple[int, int]  # (height, width), pixels


def crop_inputs(model: keras.Model) -> None:
    """Makes the first layer of `model` take only the pixels that logits depend on.

    Logits keep their bits; gradients are the same up to rounding. Within
    `layer_override.faster_calls` the outputs of the first layers become smaller than
    their `output.shape` says. A model is left unchanged if no pixel is known to be
    unneeded. `layer_override.restore_call` of the first layer undoes it.

    Args:
      model: a built model of any kind; see `needed_regions`.
    """
    regions = needed_regions(model)
    if any(region.outputs != region.layer.output.shape[1:3] for region in regions):
        first = regions[0]
        call = functools.partial(_call, first.layer.input.shape[1:3], first.inputs)
        layer_override.override_call(first.layer, call)


def needed_regions(model: keras.Model) -> list[NeededRegion]:
    """Returns what is needed of the convolutions and pools that a model begins with.

    Only the leading layers of a Sequential with images of known size are analysed; for
    other models the list is empty. The outputs of the last of these layers are needed
    whole, since the layers after it may use all of them.
    """
    if not isinstance(model, keras.Sequential) or None in model.input_shape[1:3]:
        return []
    windows = list(itertools.takewhile(_is_window, model.layers))
    regions: list[NeededRegion] = []
    for layer in reversed(windows):
        outputs = regions[-1].inputs if regions else layer.output.shape[1:3]
        regions.append(NeededRegion(layer, _needed_inputs(layer, outputs), outputs))
    return regions[::-1]


def _is_window(layer: keras.Layer) -> bool:
    """Returns whether each output of `layer` depends only on one window of pixels."""
    if type(layer) is keras.layers.Conv2D:  # a subclass could compute anything
        known = (keras.activations.linear, keras.activations.relu)
        is_known = layer.activation in known and not layer.activity_regularizer
    else:
        is_known = type(layer) is keras.layers.MaxPooling2D
    return (
        is_known and layer.padding == "valid" and layer.data_format == "channels_last"
    )


def _needed_inputs(layer: keras.Layer, outputs: tuple[int, int]) -> tuple[int, int]:
    """Returns the (height, width) of inputs on which the first `outputs` depend.

    Args:
      layer: a convolution or a pool, see `_is_window`.
      outputs: (height, width), pixels.
    """
    if isinstance(layer, keras.layers.Conv2D):
        sizes = [
            (size - 1) * dilation + 1
            for size, dilation in zip(
                layer.kernel_size, layer.dilation_rate, strict=True
            )
        ]
    else:
        sizes = layer.pool_size
    height, width = (
        (count - 1) * stride + size
        for count, stride, size in zip(outputs, layer.strides, sizes, strict=True)
    )
    return height, width


def _call(
    whole: tuple[int, int],
    needed: tuple[int, int],
    layer: keras.Layer,
    inputs: tf.Tensor,
) -> tf.Tensor:
    """Runs the layer's own `call` on the needed upper left part of its inputs.

    Args:
      whole: (height, width) of the inputs, pixels.
      needed: (height, width) of the part that is needed.
      layer: the layer.
      inputs: [b, H, W, C].

    Raises:
      ValueError: the inputs aren't of size `whole`.
    """
    if tuple(inputs.shape[1:3]) != whole:  # the crop would hide this from later layers
        raise ValueError(
            f"{layer.name} takes images of {whole}: got shape {inputs.shape}"
        )
    return type(layer).call(layer, inputs[:, : needed[0], : needed[1], :])
