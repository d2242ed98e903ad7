"""What pooling drops is not computed: pixels on which no logit depends are cut off.

    leave_out(model)                # of a Sequential that begins with convolutions

A pool of 2 x 2 over an odd number of rows leaves the last one out. The convolution
before it computes that row all the same, and its gradients, which are zero. In the
small CNN on 28 x 28 pixels that is a fifth of all work: 17 of the second convolution's
81 positions, and with them the last two rows and columns of the images.

    28 -conv 3-> 26 -pool 2-> 13 -conv 5-> 9 -pool 2-> 4     as it is written
    26 -conv 3-> 24 -pool 2-> 12 -conv 5-> 8 -pool 2-> 4     what it depends on
"""

import functools
import itertools
import typing

import keras

from tfmirror.models import layer_override


class Use(typing.NamedTuple):
    """How much of its images a layer needs, from the upper left corner on."""

    layer: keras.Layer
    inputs: tuple[int, int]  # height, width
    outputs: tuple[int, int]


def leave_out(model):
    """Lets the first layer of `model` take only the pixels that logits depend on.

    Logits are as before, gradients but for rounding. What the first layers give is
    smaller than they say, so that no other model may share them. The first one's
    `call` is replaced, see `layer_calls`.
    """
    uses = leading_uses(model)
    if any(use.outputs != use.layer.output.shape[1:3] for use in uses):
        whole, used = uses[0].layer.input.shape[1:3], uses[0].inputs
        layer_override.replace(uses[0].layer, functools.partial(_call, whole, used))


def leading_uses(model):
    """Returns the Uses of the windows that a Sequential begins with, in order.

    The last one's outputs are needed whole, since what follows may look at all of them.
    A model of another kind has none, nor one of images of any size.
    """
    if not isinstance(model, keras.Sequential) or None in model.input_shape[1:3]:
        return []
    windows = list(itertools.takewhile(_is_window, model.layers))
    uses = []
    for layer in reversed(windows):
        outputs = uses[-1].inputs if uses else layer.output.shape[1:3]
        uses.append(Use(layer, _inputs_of(layer, outputs), outputs))
    return uses[::-1]


def _is_window(layer):
    """Returns whether each output of `layer` depends on one window of pixels."""
    if type(layer) is keras.layers.Conv2D:  # not a subclass, which may do anything
        known = (keras.activations.linear, keras.activations.relu)
        is_known = layer.activation in known and not layer.activity_regularizer
    else:
        is_known = type(layer) is keras.layers.MaxPooling2D
    return (
        is_known and layer.padding == "valid" and layer.data_format == "channels_last"
    )


def _inputs_of(layer, outputs):
    """Returns (height, width) of the pixels that so many outputs depend on."""
    if isinstance(layer, keras.layers.Conv2D):
        sizes = [
            (size - 1) * dilation + 1
            for size, dilation in zip(
                layer.kernel_size, layer.dilation_rate, strict=True
            )
        ]
    else:
        sizes = layer.pool_size
    return tuple(
        (count - 1) * stride + size
        for count, stride, size in zip(outputs, layer.strides, sizes, strict=True)
    )


def _call(whole, used, layer, inputs):
    """Does what `layer`'s own `call` does with the upper left of its inputs.

    Args:
      whole, used: (height, width) of the inputs, and of what is taken of them.
    """
    if tuple(inputs.shape[1:3]) != whole:  # what later layers would not see any more
        raise ValueError(f"{layer.name} takes images of {whole}: got {inputs.shape}")
    return type(layer).call(layer, inputs[:, : used[0], : used[1], :])
