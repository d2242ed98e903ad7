"""Initializers of kernels by name; calling one gives a Keras initializer of a layer."""

from collections.abc import Callable

import keras

# "normal" is from the second chapter. "he" (He et al., 2015) and "glorot" (Glorot and
# Bengio, 2010; Keras' default) keep the variance of values from layer to layer.
INITIALIZERS: dict[str, Callable[[], keras.Initializer]] = {
    "normal": lambda: keras.initializers.RandomNormal(stddev=0.01),
    "he": keras.initializers.HeNormal,
    "glorot": keras.initializers.GlorotUniform,
}
