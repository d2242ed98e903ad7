"""The modified ResNet-18 of the second chapter, for small images.

As in "Concise implementation for multiple GPUs" (Dive into Deep Learning): a 3x3 stem
of stride 1 without max-pooling, four stages of two residual blocks, batch norm after
both 3x3 convolutions of a block and none on the 1x1 convolution of its shortcut.
"""

from collections.abc import Callable, Sequence

import keras

STAGES = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2

# Batch norm has MXNet's defaults, which the chapter trains with; Keras' are 0.99 and
# 1e-3. With kernels from Normal(0, 0.01), the variances in the first layers are far
# below 1e-3, so Keras' epsilon would keep them from being normalized. And within the
# hundred steps of an epoch, statistics with momentum 0.99 lag too far behind to be of
# use for evaluation.
MOMENTUM = 0.9
EPSILON = 1e-5


def build(
    input_shape: Sequence[int],
    num_classes: int,
    initializer: Callable[[], keras.Initializer],
) -> keras.Model:
    """Returns the model: images [b, H, W, C] float32 in [0, 1] to logits [b, K].

    For 28x28x1 images and 10 classes it has 11,183,626 parameters, of which 7,808 are
    batch norm's moving statistics.

    Args:
      input_shape: (H, W, C).
      num_classes: K.
      initializer: returns a new Keras initializer for the kernel of one layer.
    """
    layers = keras.layers
    inputs = keras.Input(input_shape, name="images")
    x = _convolution(STAGES[0], 3, 1, name="stem_conv", initializer=initializer)(inputs)
    x = _norm("stem_norm")(x)
    x = layers.ReLU(name="stem_relu")(x)
    for stage, channels in enumerate(STAGES, start=1):
        for block in range(1, BLOCKS_PER_STAGE + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            name = f"stage{stage}_block{block}"
            x = _residual(x, channels, stride, name=name, initializer=initializer)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    logits = layers.Dense(
        num_classes, kernel_initializer=initializer(), dtype="float32", name="logits"
    )(x)
    return keras.Model(inputs, logits, name="resnet18")


def _residual(
    x: keras.KerasTensor,
    channels: int,
    stride: int,
    *,
    name: str,
    initializer: Callable[[], keras.Initializer],
) -> keras.KerasTensor:
    """Returns relu(shortcut(x) + norm(conv(relu(norm(conv(x))))).

    Args:
      x: [b, H, W, C].
      channels: of the result.
      stride: of the first convolution. If it is 1, the shortcut is the identity and C
        must equal `channels`; otherwise it is a 1x1 convolution.
      name: prefix of the layers' names.
      initializer: returns a new Keras initializer for the kernel of one layer.
    """
    layers = keras.layers

    def convolution(size: int, stride: int, suffix: str) -> keras.Layer:
        return _convolution(
            channels, size, stride, name=f"{name}_{suffix}", initializer=initializer
        )

    y = convolution(3, stride, "conv1")(x)
    y = _norm(f"{name}_norm1")(y)
    y = layers.ReLU(name=f"{name}_relu1")(y)
    y = convolution(3, 1, "conv2")(y)
    y = _norm(f"{name}_norm2")(y)
    if stride != 1:
        x = convolution(1, stride, "shortcut")(x)
    return layers.ReLU(name=f"{name}_relu2")(layers.Add(name=f"{name}_add")([x, y]))


def _convolution(
    channels: int,
    size: int,
    stride: int,
    *,
    name: str,
    initializer: Callable[[], keras.Initializer],
) -> keras.layers.Conv2D:
    """Returns a convolution with a bias and "same" padding, as in the chapter."""
    return keras.layers.Conv2D(
        channels,
        size,
        stride,
        padding="same",
        kernel_initializer=initializer(),
        name=name,
    )


def _norm(name: str) -> keras.layers.BatchNormalization:
    """Returns a batch norm layer with the chapter's momentum and epsilon."""
    return keras.layers.BatchNormalization(
        momentum=MOMENTUM, epsilon=EPSILON, name=name
    )
