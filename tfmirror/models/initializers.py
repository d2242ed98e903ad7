"""How kernels are drawn, by name; each layer draws its own."""

import keras

# "normal" is the second chapter's; "he" (He et al., 2015) and "glorot" (Glorot and
# Bengio, 2010; Keras' default) keep the size of what passes through a layer.
INITIALIZERS = {
    "normal": lambda: keras.initializers.RandomNormal(stddev=0.01),
    "he": keras.initializers.HeNormal,
    "glorot": keras.initializers.GlorotUniform,
}
