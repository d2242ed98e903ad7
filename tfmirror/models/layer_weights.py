"""The weights of a model by layer, to take them from one model to another.

own = weights_by_layer(model)       # {"conv1": {"kernel": variable, "bias": variable}}
saved = saved_weights(model)        # the same with arrays
head = head_of(model)               # "logits"

Moving statistics of batch norm are weights here, seeds of random layers are not.
"""

import dataclasses

import keras
import numpy as np

from tfmirror.models import nested_layers, variable_names


@dataclasses.dataclass(frozen=True)
class SavedWeights:
    """The weights of a model as plain values.

    Attributes:
      model_name: its own name.
      layers: {path of a layer: {name: value}} of each layer's own weights, as in
        `weights_by_layer`.
      has_names: whether the names in `layers` are those of the variables. Otherwise
        they are "0", "1" and so on, in Keras' order.
    """

    model_name: str
    layers: dict[str, dict[str, np.ndarray]]
    has_names: bool = True


def saved_weights(model: keras.Model) -> SavedWeights:
    """Returns the present weights of a model."""
    layers = {
        path: {name: variable.numpy() for name, variable in own.items()}
        for path, own in weights_by_layer(model).items()
    }
    return SavedWeights(model.name, layers)


def weights_by_layer(model: keras.Model) -> dict[str, dict[str, keras.Variable]]:
    """Returns {path of a layer: {name: variable}} of each layer's own weights.

    Paths are those of `nested_layers.layers_by_path`, and "" for weights of the model
    itself; layers without weights of their own are left out. The variables stand in
    Keras' order: those made to be trained first.
    """
    layers: dict[str, keras.Layer] = {"": model} | nested_layers.layers_by_path(model)
    # Every layer lists its own weights first, then those of the layers that it holds.
    inner = {
        path: {
            id(weight)
            for layer in nested_layers.layers_by_path(outer).values()
            for weight in layer.weights
        }
        for path, outer in layers.items()
    }
    found = {}
    for path, layer in layers.items():
        own = [weight for weight in layer.weights if id(weight) not in inner[path]]
        names = variable_names.unique(weight.name for weight in own)
        if own:
            found[path] = dict(zip(names, own, strict=True))
    return found


def head_of(model: keras.Model) -> str:
    """Returns the path of the layer that gives the logits: the last one with weights.

    If that is itself a model, it is the last one in there; "" if there is none.
    """
    last: keras.Layer = model
    while isinstance(last, keras.Model):
        with_weights = [layer for layer in last.layers if layer.weights]
        if not with_weights:
            return ""
        last = with_weights[-1]
    layers = nested_layers.layers_by_path(model)
    return next(path for path, layer in layers.items() if layer is last)


def is_within(path: str, outer: str) -> bool:
    """Returns whether a layer's path is `outer`, or that of a layer within it."""
    return path == outer or path.startswith(f"{outer}/")
