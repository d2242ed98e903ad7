"""How many floating-point operations a model takes.

training_operations(model)                         # for one example
"""

import math

import keras


def training_operations(model):
    """Returns the operations of one training step for one example.

    Those of convolutions and dense layers, an addition and a multiplication counted as
    two; all others are few beside them. The backward pass takes as many for the
    kernel's gradient, and as many again for the inputs', which the first layer's
    inputs, the images, don't need.
    """
    layers = [layer for layer in model.layers if forward_operations(layer)]
    forward = [forward_operations(layer) for layer in layers]
    return 3 * sum(forward) - forward[0]


def forward_operations(layer):
    """Returns the operations of a layer's outputs for one example; 0 for most."""
    if isinstance(layer, keras.layers.Conv2D):
        height, width, channels = layer.output.shape[1:]
        kernel_height, kernel_width, in_channels = layer.kernel.shape[:3]
        inputs = kernel_height * kernel_width * in_channels
        return 2 * height * width * channels * inputs
    if isinstance(layer, keras.layers.Dense):
        return 2 * math.prod(layer.kernel.shape)
    return 0
