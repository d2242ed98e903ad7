"""A small network with all that could depend on the number of replicas.

Convolution, batch norm, dropout and a dense layer: what `tfmirror.verify` looks at
unless told otherwise. Not meant to be trained for its accuracy.
"""

import keras


def build(input_shape, num_classes, initializer):
    """Returns the model: images [b, H, W, C] float32 in [0, 1] to logits [b, K].

    Args:
      initializer: function that gives the Keras initializer of one layer's kernel.
    """
    layers = keras.layers

    def drawn():
        return {"kernel_initializer": initializer()}

    return keras.Sequential(
        [
            keras.Input(input_shape, name="images"),
            layers.Conv2D(8, 5, strides=2, name="conv1", **drawn()),
            layers.BatchNormalization(name="norm1"),
            layers.ReLU(name="relu1"),
            layers.Dropout(0.25, name="dropout"),
            layers.Conv2D(8, 3, strides=2, name="conv2", **drawn()),
            layers.BatchNormalization(name="norm2"),
            layers.ReLU(name="relu2"),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dense(num_classes, dtype="float32", name="logits", **drawn()),
        ],
        name="probe",
    )
