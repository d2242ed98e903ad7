"""All layers of a model, also those inside other layers and models.

for layer in all_layers(model): ...
"""

import keras


def all_layers(model: keras.Layer) -> list[keras.Layer]:
    """Returns every layer of a model or a layer once, however deep, without itself.

    Keras has no public way to the layers that a layer of one's own holds. So this calls
    a private method (Keras 3.15.1, layers/layer.py), which `Model.summary` and
    `count_params` rest on; `test_all_layers_are_found_however_deep` fails when it
    changes.
    """
    return list(model._flatten_layers(include_self=False, recursive=True))
