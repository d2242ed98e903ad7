"""Networks of keras.applications with new weights, and a small vision transformer."""

import keras

layers, ops = keras.layers, keras.ops
OPTIONS = {"weights": None, "classifier_activation": None}


def mobilenet_v2(input_shape, num_classes):
    return keras.applications.MobileNetV2(input_shape, classes=num_classes, **OPTIONS)


def efficientnet_v2_b0(input_shape, num_classes):
    return keras.applications.EfficientNetV2B0(
        input_shape=input_shape,
        classes=num_classes,
        include_preprocessing=False,
        **OPTIONS,
    )


def resnet50(input_shape, num_classes):
    return keras.applications.ResNet50(
        input_shape=input_shape, classes=num_classes, **OPTIONS
    )


def densenet121(input_shape, num_classes):
    return keras.applications.DenseNet121(
        input_shape=input_shape, classes=num_classes, **OPTIONS
    )


def convnext_tiny(input_shape, num_classes):
    return keras.applications.ConvNeXtTiny(
        input_shape=input_shape,
        classes=num_classes,
        include_preprocessing=False,
        **OPTIONS,
    )


class Positions(layers.Layer):
    """Adds a vector that is learned for each position."""

    def build(self, shape):
        self.vectors = self.add_weight(shape[1:], "random_normal", name="vectors")

    def call(self, x):
        return x + self.vectors


def vit(input_shape, num_classes):
    """Patches of 8x8 pixels, two blocks of attention with dropout."""
    x = inputs = keras.Input(input_shape)
    x = layers.Conv2D(32, 8, strides=8)(x)
    x = Positions()(layers.Reshape((-1, 32))(x))
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 8, dropout=0.1)(y, y)
        y = layers.Dense(64, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(0.1)(layers.Dense(32)(y))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(num_classes)(x))


ALL = (
    mobilenet_v2,
    efficientnet_v2_b0,
    resnet50,
    densenet121,
    convnext_tiny,
    vit,
)
