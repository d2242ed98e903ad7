"""Overrides the `call` of one layer object, to compute the same in a faster way.

    override_call(layer, function)
    layer(inputs)                       # runs its class's own call
    with faster_calls():
        layer(inputs)                   # runs function(layer, inputs)
    restore_call(layer)                 # it runs its class's own call everywhere

Only the object is changed, not its class. The override is not saved with the model: a
saved model consists of plain Keras layers, and loads as such. Outside of a training or
evaluation step, as in a second model that shares the layers, it has no effect.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

# Of each thread: every replica's step is traced in a thread of its own.
_in_this_thread = threading.local()


def override_call(layer: keras.Layer, function: Callable[..., tf.Tensor]) -> None:
    """Makes `layer` run `function` in place of its own `call`, within `faster_calls`.

    Args:
      layer: any Keras layer; its variables stay as they are.
      function: takes the layer and then the arguments of `layer.call` that it supports,
        with the same names. It must return what `layer.call` would, up to rounding. It
        can run the original with `type(layer).call(layer, ...)`.
    """
    layer.call = functools.partial(_call, layer, function)


def restore_call(layer: keras.Layer) -> None:
    """Removes the override from `layer`; does nothing if it has none."""
    vars(layer).pop("call", None)


@contextlib.contextmanager
def faster_calls() -> Iterator[None]:
    """Lets overrides have their effect in a block or, as a decorator, in a function."""
    before = getattr(_in_this_thread, "is_faster", False)
    _in_this_thread.is_faster = True
    try:
        yield
    finally:
        _in_this_thread.is_faster = before


def _call(
    layer: keras.Layer, function: Callable[..., tf.Tensor], *args: Any, **kwargs: Any
) -> tf.Tensor:
    """Runs `function`, or outside of `faster_calls` the layer's own `call`."""
    if getattr(_in_this_thread, "is_faster", False):
        return function(layer, *args, **kwargs)
    return type(layer).call(layer, *args, **kwargs)
