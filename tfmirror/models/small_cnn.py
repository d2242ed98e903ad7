"""The small convolutional network of the first chapter.

Two convolutions with max-pooling and two dense layers, as in "Training on multiple GPUs
with gluon" (The Straight Dope, chapter 7).
"""

from collections.abc import Callable, Sequence

import keras

from tfmirror import errors

MIN_SIDE = 14  # 14 -> conv 12 -> pool 6 -> conv 2 -> pool 1


def build(
    input_shape: Sequence[int],
    num_classes: int,
    initializer: Callable[[], keras.Initializer],
) -> keras.Model:
    """Returns the model: images [b, H, W, C] float32 in [0, 1] to logits [b, K].

    For 28x28x1 images and 10 classes it has 129,068 parameters.

    Args:
      input_shape: (H, W, C).
      num_classes: K.
      initializer: returns a new Keras initializer for the kernel of one layer.

    Raises:
      InputError: an image side is below 14 pixels, so that the pools leave nothing.
    """
    if min(input_shape[:2]) < MIN_SIDE:
        raise errors.InputError(
            f"images must have at least {MIN_SIDE} pixels per side for the model cnn: "
            f"got {input_shape[0]}x{input_shape[1]}; use larger images or another model"
        )
    layers = keras.layers

    def kernel() -> dict[str, keras.Initializer]:
        return {"kernel_initializer": initializer()}

    return keras.Sequential(
        [
            keras.Input(input_shape, name="images"),
            layers.Conv2D(20, 3, activation="relu", name="conv1", **kernel()),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(50, 5, activation="relu", name="conv2", **kernel()),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(128, activation="relu", name="dense1", **kernel()),
            layers.Dense(num_classes, dtype="float32", name="logits", **kernel()),
        ],
        name="cnn",
    )
