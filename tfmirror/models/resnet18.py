"""The modified ResNet-18 of the second chapter, for small images.

As in "Concise implementation for multiple GPUs" (Dive into Deep Learning): a 3x3 stem
of stride 1 without max-pooling, four stages of two residual blocks, batch norm after
both 3x3 convolutions of a block and none on the 1x1 convolution of its shortcut.
"""

import keras

STAGES = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2

# Of batch norm, MXNet's defaults, with which the chapter trains; Keras' own are 0.99
# and 1e-3. With kernels from Normal(0, 0.01) the first layers' variances are far below
# 1e-3, which would not normalize them, and in the hundred steps of an epoch statistics
# that move by a hundredth a step are of no use for evaluation.
MOMENTUM = 0.9
EPSILON = 1e-5


def build(input_shape, num_classes, initializer):
    """Returns the model: images [b, H, W, C] float32 in [0, 1] to logits [b, K].

    28x28x1 images and 10 classes make 11,183,626 parameters, of which 7,808 are batch
    norm's moving statistics.

    Args:
      initializer: function that gives the Keras initializer of one layer's kernel.
    """
    layers = keras.layers
    inputs = keras.Input(input_shape, name="images")
    x = _convolution(STAGES[0], 3, 1, "stem_conv", initializer)(inputs)
    x = _norm("stem_norm")(x)
    x = layers.ReLU(name="stem_relu")(x)
    for stage, channels in enumerate(STAGES, start=1):
        for block in range(1, BLOCKS_PER_STAGE + 1):
            halves = block == 1 and stage > 1
            name = f"stage{stage}_block{block}"
            x = _residual(x, channels, 2 if halves else 1, name, initializer)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    logits = layers.Dense(
        num_classes, kernel_initializer=initializer(), dtype="float32", name="logits"
    )(x)
    return keras.Model(inputs, logits, name="resnet18")


def _residual(x, channels, stride, name, initializer):
    """Returns relu(shortcut(x) + norm(conv(relu(norm(conv(x)))))."""
    layers = keras.layers
    y = _convolution(channels, 3, stride, f"{name}_conv1", initializer)(x)
    y = _norm(f"{name}_norm1")(y)
    y = layers.ReLU(name=f"{name}_relu1")(y)
    y = _convolution(channels, 3, 1, f"{name}_conv2", initializer)(y)
    y = _norm(f"{name}_norm2")(y)
    if stride != 1:
        x = _convolution(channels, 1, stride, f"{name}_shortcut", initializer)(x)
    return layers.ReLU(name=f"{name}_relu2")(layers.Add(name=f"{name}_add")([x, y]))


def _convolution(channels, size, stride, name, initializer):
    """Returns a convolution as the chapter builds it, with a bias."""
    return keras.layers.Conv2D(
        channels,
        size,
        stride,
        padding="same",
        kernel_initializer=initializer(),
        name=name,
    )


def _norm(name):
    """Returns batch norm as the chapter has it."""
    return keras.layers.BatchNormalization(
        momentum=MOMENTUM, epsilon=EPSILON, name=name
    )
