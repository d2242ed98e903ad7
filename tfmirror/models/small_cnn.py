"""The small convolutional network of the first chapter.

Two convolutions with max-pooling and two dense layers, as in "Training on multiple GPUs
with gluon" (The Straight Dope, chapter 7).
"""

import keras

from tfmirror import errors

MIN_SIDE = 14  # 14 -> conv 12 -> pool 6 -> conv 2 -> pool 1


def build(input_shape, num_classes, initializer):
    """Returns the model: images [b, H, W, C] float32 in [0, 1] to logits [b, K].

    28x28x1 images and 10 classes make 129,068 parameters.

    Args:
      initializer: function that gives the Keras initializer of one layer's kernel.

    Raises:
      InputError: an image side below 14 pixels, of which the pools leave nothing.
    """
    if min(input_shape[:2]) < MIN_SIDE:
        raise errors.InputError(
            f"images must have at least {MIN_SIDE} pixels a side for the model cnn: "
            f"got {input_shape[0]}x{input_shape[1]}"
        )
    layers = keras.layers

    def drawn():
        return {"kernel_initializer": initializer()}

    return keras.Sequential(
        [
            keras.Input(input_shape, name="images"),
            layers.Conv2D(20, 3, activation="relu", name="conv1", **drawn()),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(50, 5, activation="relu", name="conv2", **drawn()),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(128, activation="relu", name="dense1", **drawn()),
            layers.Dense(num_classes, dtype="float32", name="logits", **drawn()),
        ],
        name="cnn",
    )
