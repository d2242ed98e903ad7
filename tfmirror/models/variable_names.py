"""Names of a model's variables: the same in every process, and each only once.

names_of(model)                     # ["conv/kernel", "conv/bias", "conv/kernel#2"]
"""

import collections
from collections.abc import Iterable

import keras

# How the names of averaged weights began before there was a warm-up of their decay.
EARLIER_AVERAGED = "ema_"


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


def averaged_name(name: str) -> str:
    """Returns the name of the average of the weight that is called `name`.

    Likewise of the statistic `name` that is estimated with the averages.
    """
    return f"averaged/{name}"


def earlier_averaged_name(name: str) -> str:
    """Returns the average's name in checkpoints of before the decay had a warm-up."""
    return EARLIER_AVERAGED + name.replace("/", "_")
