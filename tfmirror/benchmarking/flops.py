"""Counts the floating-point operations of a model.

training_flops(model)                              # of one training step, per example
"""

import math

import keras

from tfmirror.models import nested_layers, unused_pixels

COUNTED = (keras.layers.Conv2D, keras.layers.Dense)


def training_flops(model: keras.Model) -> int | None:
    """Returns the floating-point operations of one training step per example.

    None: the model has a matrix of weights in another layer, or in a layer of a layer,
    of which it is not known how often it is used.

    Only convolutions and dense layers are counted, since all other layers need few, and
    of them only the outputs on which logits depend. A multiplication and an addition
    count as two. The backward pass takes as many operations for the gradient of the
    kernel, and as many again for the gradient of the inputs. The first layer does not
    need the latter, since its inputs are the images.

    Args:
      model: a built model.
    """
    for layer in nested_layers.all_layers(model):
        has_matrix = any(len(v.shape) > 1 for v in layer.trainable_weights)
        is_leaf = not nested_layers.all_layers(layer)
        is_counted = type(layer) in COUNTED and layer in model.layers
        if has_matrix and is_leaf and not is_counted:
            return None
    used = {use.layer.name: use.outputs for use in unused_pixels.needed_regions(model)}
    counts = [forward_flops(x, used.get(x.name)) for x in model.layers]
    forward = [count for count in counts if count]
    return 3 * sum(forward) - forward[0] if forward else None


def forward_flops(layer: keras.Layer, size: tuple[int, int] | None = None) -> int:
    """Returns the floating-point operations of a layer's outputs for one example.

    Args:
      layer: any layer of a built model; 0 is returned unless it is a convolution or a
        dense layer.
      size: (height, width) of the outputs that are computed, pixels; None: all.
    """
    if isinstance(layer, keras.layers.Conv2D):
        height, width = size or layer.output.shape[1:3]
        out_channels = layer.output.shape[3]
        kernel_height, kernel_width, in_channels = layer.kernel.shape[:3]
        window = kernel_height * kernel_width * in_channels
        return 2 * height * width * out_channels * window
    if isinstance(layer, keras.layers.Dense):
        return 2 * math.prod(layer.kernel.shape)
    return 0
