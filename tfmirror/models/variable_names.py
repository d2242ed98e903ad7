"""Names of a model's variables: the same in every process, and each only once.

names_of(model)                     # ["conv/kernel", "conv/bias", "conv/kernel#2"]
"""

import collections
from collections.abc import Iterable

import keras


def names_of(model: keras.Model) -> list[str]:
    """Returns a name for each of `model.variables`, in their order.

    It is Keras' path of the variable. Models that are built by themselves and then
    joined may have layers, and so paths, of the same name.
    """
    return unique(variable.path for variable in model.variables)


def unique(names: Iterable[str]) -> list[str]:
    """Returns the names; one that occurs again has its number behind it, as in a#2."""
    counts: collections.Counter[str] = collections.Counter()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return numbered
