"""All layers of a model, also those inside other layers and models.

for layer in all_layers(model): ...
for path, layer in layers_by_path(model).items(): ...       # "backbone/conv1"
"""

import keras

from tfmirror.models import variable_names


def all_layers(model: keras.Layer) -> list[keras.Layer]:
    """Returns every layer of a model or a layer once, however deep, without itself.

    Keras has no public way to the layers that a layer of one's own holds. So this calls
    a private method (Keras 3.15.1, layers/layer.py), which `Model.summary` and
    `count_params` rest on; `test_all_layers_are_found_however_deep` fails when it
    changes.
    """
    return list(model._flatten_layers(include_self=False, recursive=True))


def layers_by_path(model: keras.Model) -> dict[str, keras.Layer]:
    """Returns {path: layer} of every layer once, however deep, from first to last.

    A path is the layer's name behind those of the layers that hold it, joined by "/",
    without the model's own name. A layer that is held twice has the first path. For
    the private method see `all_layers`.
    """
    found: list[tuple[str, keras.Layer]] = []
    seen: set[int] = set()

    def add_inner(outer: keras.Layer, above: str) -> None:
        for layer in outer._flatten_layers(include_self=False, recursive=False):
            if id(layer) not in seen:
                seen.add(id(layer))
                found.append((above + layer.name, layer))
                add_inner(layer, f"{above}{layer.name}/")

    add_inner(model, "")
    paths = variable_names.unique(path for path, _ in found)
    return dict(zip(paths, (layer for _, layer in found), strict=True))
