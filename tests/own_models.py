"""Models of a user's own, each a function of (input_shape, num_classes).

The first ones can be trained; each of the others is refused, for a reason of its own.
"""

import keras
import numpy as np

layers = keras.layers


def small(input_shape, num_classes):
    """Layers without names of their own, random ones, and moving statistics."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(num_classes),
        ]
    )


def of_9x12x3(input_shape, num_classes):
    assert input_shape == (9, 12, 3), input_shape
    return small(input_shape, num_classes)


def unbuilt(input_shape, num_classes):
    return keras.Sequential([layers.Flatten(), layers.Dense(num_classes)])


def rescaled_back(input_shape, num_classes):
    x = inputs = keras.Input(input_shape)
    for scale in (255.0, 1 / 255):  # as before an EfficientNet
        x = layers.Rescaling(scale)(x)
    return keras.Model(inputs, layers.Dense(num_classes)(layers.Flatten()(x)))


class Scale(layers.Layer):
    """A layer of the user's own, which Keras opens only with this file's code."""

    def build(self, shape):
        self.factor = self.add_weight((), "ones", name="factor")

    def call(self, x):
        return x * self.factor


class Subclass(keras.Model):
    """A model with a `call` of its own."""

    def __init__(self, num_classes, **options):
        super().__init__(**options)
        self.num_classes = num_classes
        self.parts = [layers.Flatten(), Scale(), layers.Dense(num_classes)]

    def call(self, x, training=None):
        for part in self.parts:
            x = part(x)
        return x

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}


def subclass(input_shape, num_classes):
    return Subclass(num_classes)


def of_pixels(input_shape, num_classes):
    """Looks every pixel up, so that the gradient of the table is sparse."""
    x = inputs = keras.Input(input_shape)
    x = layers.Lambda(lambda x: keras.ops.cast(x * 255, "int32"))(x)
    x = layers.Flatten()(layers.Embedding(256, 2)(layers.Flatten()(x)))
    return keras.Model(inputs, layers.Dense(num_classes)(x))


class DrawnWithNumpy(layers.Layer):
    """Adds noise that is drawn when the layer is traced, which Keras does not know."""

    def call(self, x):
        return x + np.random.default_rng().normal()


def drawn_with_numpy(input_shape, num_classes):
    x = inputs = keras.Input(input_shape)
    x = layers.Conv2D(2, 3, name="before")(x)
    x = DrawnWithNumpy(name="noise")(x)
    return keras.Model(inputs, layers.Dense(num_classes)(layers.Flatten()(x)))


TRAINABLE = (small, unbuilt, rescaled_back, subclass)


# What follows is refused.


def _with_last(last):
    def build(input_shape, num_classes):
        return keras.Sequential([keras.Input(input_shape), layers.Flatten(), last()])

    return build


softmax = _with_last(lambda: layers.Dense(10, "softmax"))
sigmoid = _with_last(lambda: layers.Dense(10, activation="sigmoid"))
too_many = _with_last(lambda: layers.Dense(11))
pure_bfloat16 = _with_last(lambda: layers.Dense(10, dtype="bfloat16"))
not_finite = _with_last(
    lambda: layers.Dense(10, kernel_initializer=keras.initializers.Constant(np.inf))
)


def softmax_layer(input_shape, num_classes):
    model = softmax(input_shape, num_classes)
    model.layers[-1].activation = keras.activations.linear
    return keras.Sequential([keras.Input(input_shape), model, layers.Softmax()])


def softmax_of_a_function(input_shape, num_classes):
    x = inputs = keras.Input(input_shape)
    x = layers.Dense(num_classes)(layers.Flatten()(x))
    return keras.Model(inputs, keras.ops.softmax(x))


def softmax_within(input_shape, num_classes):
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, softmax(input_shape, num_classes)(inputs))


def two_outputs(input_shape, num_classes):
    x = inputs = keras.Input(input_shape)
    x = layers.Flatten()(x)
    return keras.Model(inputs, [layers.Dense(num_classes)(x) for _ in range(2)])


def two_inputs(input_shape, num_classes):
    inputs = [keras.Input(input_shape) for _ in range(2)]
    x = layers.Flatten()(layers.Add()(inputs))
    return keras.Model(inputs, layers.Dense(num_classes)(x))


def maps(input_shape, num_classes):
    return keras.Sequential([keras.Input(input_shape), layers.Conv2D(num_classes, 3)])


def other_size(input_shape, num_classes):
    return unbuilt_with(keras.Input((32, 32, 3)))


def any_size(input_shape, num_classes):
    return unbuilt_with(keras.Input((None, None, input_shape[-1])))


def unbuilt_with(inputs):
    x = layers.GlobalAveragePooling2D()(inputs)
    return keras.Model(inputs, layers.Dense(10)(x))


def frozen(input_shape, num_classes):
    model = unbuilt(input_shape, num_classes)
    model.trainable = False
    return model


def rescaled(input_shape, num_classes):
    parts = [layers.Rescaling(1 / 127.5, -1), layers.Flatten(), layers.Dense(10)]
    return keras.Sequential([keras.Input(input_shape), *parts])


def synchronized(input_shape, num_classes):
    parts = [layers.BatchNormalization(synchronized=True), layers.Flatten()]
    return keras.Sequential([keras.Input(input_shape), *parts, layers.Dense(10)])


def no_model(input_shape, num_classes):
    small(input_shape, num_classes)


def raises(input_shape, num_classes):
    raise RuntimeError("there is no\nway")


class Broken(keras.Model):
    def call(self, x):
        return self.missing(x)


def broken_call(input_shape, num_classes):
    return Broken()


REFUSED = {
    softmax: "ends in softmax, in layer dense, but logits are expected.*leave the last",
    softmax_layer: "ends in softmax, in layer softmax, but logits",
    softmax_within: "ends in softmax",
    softmax_of_a_function: "gives numbers that add up to 1, but logits",
    sigmoid: "ends in sigmoid",
    too_many: r"a logit for each of the 10 classes, \[b, 10\]: got \[None, 11\]",
    maps: r"a logit for each of the 10 classes, \[b, 10\]: got \[None, 26, 26, 10\]",
    pure_bfloat16: "weights in float32.*dense/kernel is bfloat16",
    not_finite: "logits that are not finite",
    two_outputs: "must have one output: got 2",
    two_inputs: "must have one input: got 2",
    other_size: r"take images of the shape.*\[28, 28, 1\]: got \[32, 32, 3\]",
    any_size: r"take images of the shape.*\[28, 28, 1\]: got \[None, None, 1\]",
    frozen: "must have a weight to train: got none of 2",
    rescaled: "multiplies images by 0.00784 with Rescaling, but they are in",
    synchronized: "BatchNormalization.synchronized=True.*--batch_norm=sync",
    no_model: "must return a keras.Model: got None",
    raises: r"raised RuntimeError in line \d+: there is no way",
    broken_call: r"can't be called on images \[28, 28, 1\]: AttributeError",
}
