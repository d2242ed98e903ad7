"""A small network with everything that could depend on the number of replicas.

It has convolutions, batch norm, dropout and a dense layer. `tfmirror.verify` uses it by
default. It is not meant to be trained for accuracy.
"""

from collections.abc import Callable, Sequence

import keras


def build(
    input_shape: Sequence[int],
    num_classes: int,
    initializer: Callable[[], keras.Initializer],
) -> keras.Model:
    """Returns the model: images [b, H, W, C] float32 in [0, 1] to logits [b, K].

    Args:
      input_shape: (H, W, C).
      num_classes: K.
      initializer: returns a new Keras initializer for the kernel of one layer.
    """
    layers = keras.layers

    def kernel() -> dict[str, keras.Initializer]:
        return {"kernel_initializer": initializer()}

    return keras.Sequential(
        [
            keras.Input(input_shape, name="images"),
            layers.Conv2D(8, 5, strides=2, name="conv1", **kernel()),
            layers.BatchNormalization(name="norm1"),
            layers.ReLU(name="relu1"),
            layers.Dropout(0.25, name="dropout"),
            layers.Conv2D(8, 3, strides=2, name="conv2", **kernel()),
            layers.BatchNormalization(name="norm2"),
            layers.ReLU(name="relu2"),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dense(num_classes, dtype="float32", name="logits", **kernel()),
        ],
        name="probe",
    )
