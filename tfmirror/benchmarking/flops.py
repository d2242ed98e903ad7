"""How many floating-point operations a model takes.

training_operations(model)                         # for one example
"""

import math

import keras

from tfmirror.models import unused_pixels


def training_operations(model):
    """Returns the operations of one training step for one example.

    Those of convolutions and dense layers on which logits depend, an addition and a
    multiplication counted as two; all others are few beside them. The backward pass
    takes as many for the kernel's gradient, and as many again for the inputs', which
    the first layer's inputs, the images, don't need.
    """
    used = {use.layer.name: use.outputs for use in unused_pixels.leading_uses(model)}
    counts = [forward_operations(x, used.get(x.name)) for x in model.layers]
    forward = [count for count in counts if count]
    return 3 * sum(forward) - forward[0]


def forward_operations(layer, sides=None):
    """Returns the operations of a layer's outputs for one example; 0 for most.

    Args:
      sides: (height, width) of those that are needed; None: all.
    """
    if isinstance(layer, keras.layers.Conv2D):
        height, width = sides or layer.output.shape[1:3]
        channels = layer.output.shape[3]
        kernel_height, kernel_width, in_channels = layer.kernel.shape[:3]
        inputs = kernel_height * kernel_width * in_channels
        return 2 * height * width * channels * inputs
    if isinstance(layer, keras.layers.Dense):
        return 2 * math.prod(layer.kernel.shape)
    return 0
