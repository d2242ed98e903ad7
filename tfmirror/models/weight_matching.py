"""Which weights of one model fit another, by the names of layers and variables.

found = match(saved, model, new_head=True)
found.problems()                    # () if all fits
for variable, value in found.taken.values(): variable.assign(value)
"""

import dataclasses
from typing import Any

import keras
import numpy as np

from tfmirror.models import layer_weights
from tfmirror.models.layer_weights import SavedWeights

MOST_LISTED = 8  # names of each kind in a message


@dataclasses.dataclass(frozen=True)
class Match:
    """How saved weights fit a model. A name is "layer/variable".

    Attributes:
      taken: {name: (variable, its value)} of what fits, in the model's order.
      missing: names of the model that were not saved.
      foreign: names that the model lacks.
      differing: names whose shapes or dtypes differ, each with both.
      new_head: path of the layer whose weights are not taken; "": none.
      left_out: paths of the saved layers that the new head replaces.
    """

    taken: dict[str, tuple[keras.Variable, np.ndarray]]
    missing: tuple[str, ...]
    foreign: tuple[str, ...]
    differing: dict[str, str]
    new_head: str = ""
    left_out: tuple[str, ...] = ()

    def problems(self) -> tuple[str, ...]:
        """Returns a text for each kind of what does not fit."""
        kinds = {
            "not there": self.missing,
            "not in the model": self.foreign,
            "of another shape": tuple(self.differing.values()),
        }
        return tuple(
            f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names
        )


def match(saved: SavedWeights, model: keras.Model, *, new_head: bool = False) -> Match:
    """Returns how `saved` fits `model`.

    The weights of a model fit also where the model holds it as a layer of its name.

    Args:
      new_head: whether the layer that gives the logits keeps its weights. What was
        saved for it is not taken. If nothing was, and if one saved layer alone is not
        in the model, that layer is taken for the head, of another name.
    """
    own = layer_weights.weights_by_layer(model)
    layers = _named_as_in(own, saved)
    head, left_out = "", tuple[str, ...]()
    if new_head:
        head = layer_weights.head_of(model)
        left_out = _heads_among(layers, own, head)
        own = {k: v for k, v in own.items() if not layer_weights.is_within(k, head)}
        layers = {k: v for k, v in layers.items() if k not in left_out}
    wanted, values = _flat(own), _flat(layers)
    both = [name for name in wanted if name in values]
    differing = {
        name: f"{name} {_kind(values[name])} there, {_kind(wanted[name])} here"
        for name in both
        if _kind(values[name]) != _kind(wanted[name])
    }
    return Match(
        {n: (wanted[n], values[n]) for n in both if n not in differing},
        tuple(name for name in wanted if name not in values),
        tuple(name for name in values if name not in wanted),
        differing,
        head,
        left_out,
    )


def _named_as_in(
    own: dict[str, dict[str, keras.Variable]], saved: SavedWeights
) -> dict[str, dict[str, np.ndarray]]:
    """Returns saved.layers with the model's paths, and names where there were numbers.

    Args:
      own: of `layer_weights.weights_by_layer`.
    """
    layers = saved.layers
    outer = saved.model_name
    is_held = any(layer_weights.is_within(path, outer) for path in own)
    if is_held and not any(path in own for path in layers):
        layers = {f"{outer}/{path}": values for path, values in layers.items()}
    if saved.has_names:
        return layers
    return {
        path: dict(zip(own[path], values.values(), strict=True))
        if len(own.get(path, ())) == len(values)
        else values
        for path, values in layers.items()
    }


def _heads_among(
    layers: dict[str, Any], own: dict[str, Any], head: str
) -> tuple[str, ...]:
    """Returns the paths of saved layers that a new head of the model replaces."""
    heads = tuple(path for path in layers if layer_weights.is_within(path, head))
    foreign = tuple(path for path in layers if path not in own)
    return heads or (foreign if len(foreign) == 1 else ())


def _flat(layers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns {"layer/name": value} of {layer: {name: value}}."""
    return {
        "/".join(part for part in (path, name) if part): value
        for path, values in layers.items()
        for name, value in values.items()
    }


def _kind(value: keras.Variable | np.ndarray) -> str:
    """Returns the dtype and the shape of a variable or an array, as text."""
    return f"{value.dtype} {list(value.shape)}"


def _listed(names: tuple[str, ...]) -> str:
    """Returns the first names, and how many more there are."""
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
