"""Freezes layers: training leaves their weights as they are, to the bit.

freeze(model, ["conv*", "backbone"])        # before an optimizer is made
frozen_text(model)                          # "4 of 8 variables, 25,270 of 129,068 ..."
"""

import fnmatch
import math
from collections.abc import Sequence

import keras

from tfmirror import errors
from tfmirror.models import layer_weights, nested_layers


def freeze(model: keras.Model, patterns: Sequence[str]) -> None:
    """Makes layers keep their weights in training. Call it before an optimizer is made.

    A frozen layer that holds others freezes them too. A frozen BatchNormalization
    normalizes with its moving statistics, which it keeps (Keras' own rule).

    Args:
      patterns: shell patterns of paths as in `nested_layers.layers_by_path`; * stands
        for any text, also one with "/".

    Raises:
      InputError: a pattern matches no layer with weights, or nothing is left to train.
    """
    layers = {
        path: layer
        for path, layer in nested_layers.layers_by_path(model).items()
        if layer.weights
    }
    frozen: list[keras.Layer] = []
    for pattern in patterns:
        matched = [p for p in layers if fnmatch.fnmatchcase(p, pattern)]
        expected = f"patterns of layers with weights, which are {', '.join(layers)}"
        errors.require(matched, "freeze", pattern, expected)
        frozen += [layers[path] for path in matched]
    for layer in frozen:
        layer.trainable = False
    if frozen and not model.trainable_variables:
        raise errors.InputError(
            f"freeze must leave weights to train: got {','.join(patterns)!r}, which "
            f"matches all of {', '.join(layers)}"
        )


def frozen_text(model: keras.Model) -> str:
    """Returns how many variables and numbers of a model are frozen; "" if none is."""
    layers = nested_layers.layers_by_path(model)
    frozen: dict[int, int] = {}
    every: dict[int, int] = {}
    for path, weights in layer_weights.weights_by_layer(model).items():
        sizes = {id(w): math.prod(w.shape) for w in weights.values()}
        every |= sizes
        if path and not layers[path].trainable:
            frozen |= sizes
    if not frozen:
        return ""
    return (
        f"{len(frozen)} of {len(every)} variables, {sum(frozen.values()):,} of "
        f"{sum(every.values()):,} numbers"
    )
