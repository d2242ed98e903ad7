"""A faster way to what a layer computes, for the one object.

    replace(layer, function)                # layer(inputs) is function(layer, inputs)
    restore(layer)

It replaces the layer's public method `call`. What is saved of a model does not hold it,
and loads as plain Keras.
"""

import functools


def replace(layer, function):
    """Lets `function` of the layer and what `call` takes do what `call` does."""
    layer.call = functools.partial(function, layer)


def restore(layer):
    """Gives `layer` the `call` of its class back."""
    vars(layer).pop("call", None)
