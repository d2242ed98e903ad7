"""Overrides the `call` of one layer object, to compute the same in a faster way.

    override_call(layer, function)      # layer(inputs) now runs function(layer, inputs)
    restore_call(layer)                 # layer(inputs) runs its class's own call again

Only the object is changed, not its class. The override is not saved with the model: a
saved model consists of plain Keras layers, and loads as such.
"""

import functools
from collections.abc import Callable

import keras
import tensorflow as tf


def override_call(layer: keras.Layer, function: Callable[..., tf.Tensor]) -> None:
    """Makes `layer` run `function` in place of its own `call`.

    Args:
      layer: any Keras layer; its variables stay as they are.
      function: takes the layer and then the arguments of `layer.call` that it supports,
        with the same names. It must return what `layer.call` would, up to rounding. It
        can run the original with `type(layer).call(layer, ...)`.
    """
    layer.call = functools.partial(function, layer)


def restore_call(layer: keras.Layer) -> None:
    """Removes the override from `layer`; does nothing if it has none."""
    vars(layer).pop("call", None)
