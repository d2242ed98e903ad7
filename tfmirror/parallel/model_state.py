"""What a training step does with each variable of a model that it does not train.

    rules = rules_of(model)
    rules.averaged            # positions in model.non_trainable_variables

A model keeps state besides its weights: moving statistics, seeds, constants, frozen
weights. Which is which shows when the model is called: a moving statistic gets a new
value, a constant does not.
"""

import dataclasses
import weakref

import keras
import tensorflow as tf

from tfmirror import errors, metrics

# TensorFlow gives an error for one example if a layer drops dimensions of length 1.
EXAMPLES_TO_TRACE = 2


@dataclasses.dataclass(frozen=True)
class StateRules:
    """Positions in `model.non_trainable_variables`, in order, by what is done there.

    All others keep their values: the model's call does not assign to them.

    Attributes:
      averaged: floating-point state that the call assigns to, such as batch norm's
        moving statistics: the new value is the mean over the microbatches.
      seeds: seeds of random layers: each microbatch gets seeds of its own.
    """

    averaged: tuple[int, ...]
    seeds: tuple[int, ...]


_KNOWN: "weakref.WeakKeyDictionary[keras.Model, tuple[list[int], StateRules]]" = (
    weakref.WeakKeyDictionary()
)


def rules_of(model: keras.Model) -> StateRules:
    """Returns the model's StateRules; traces its training call, once.

    Raises:
      InputError: no rule fits a variable, so that the result of a step would depend on
        the number of microbatches, or be lost: the call assigns to a weight that is
        trained, to a whole number that is no seed, or to a variable that is not the
        model's (such as Keras' global generator of random numbers).
    """
    untrained = [id(v) for v in model.non_trainable_variables]
    known = _KNOWN.get(model)
    if known is None or known[0] != untrained:  # a layer was frozen or unfrozen
        known = _KNOWN[model] = untrained, _trace(model)
    return known[1]


def averaged_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables whose new values are means over the microbatches."""
    return [model.non_trainable_variables[k] for k in rules_of(model).averaged]


def is_seed(variable: keras.Variable) -> bool:
    """Returns whether a variable is the state of a keras.random.SeedGenerator."""
    return variable.name == metrics.SEED_NAME


def _trace(model: keras.Model) -> StateRules:
    """Returns the StateRules by what the model's training call assigns to."""
    trained, untrained = model.trainable_variables, model.non_trainable_variables
    assigned = _assigned(model)
    for variable in trained:
        if id(variable) in assigned:
            raise _no_rule(model, variable.path, "is trained, and its layer assigns it")
    averaged, seeds = [], []
    for k, variable in enumerate(untrained):
        if is_seed(variable):
            seeds.append(k)
        elif id(variable) in assigned:
            if not tf.as_dtype(variable.dtype).is_floating:
                what = f"is {variable.dtype}, and its layer changes it"
                raise _no_rule(model, variable.path, what)
            averaged.append(k)
    if assigned - {id(v) for v in model.variables}:
        raise errors.InputError(
            f"model {model.name} changes a variable that is not its own, as layers do "
            "that draw from Keras' global generator: give each of them a "
            "keras.random.SeedGenerator, kept as an attribute"
        )
    return StateRules(tuple(averaged), tuple(seeds))


def _assigned(model: keras.Model) -> set[int]:
    """Returns the ids of the variables that the model's training call assigns to."""
    assigned: set[int] = set()

    def call(values: list[tf.Tensor], images: tf.Tensor) -> None:
        mapping = list(zip(model.variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            before = dict(scope.state_mapping)
            model(images, training=True)
        after = scope.state_mapping
        assigned.update(k for k in after if after[k] is not before.get(k))

    specs = [tf.TensorSpec(v.shape, v.dtype) for v in model.variables]
    images = tf.TensorSpec([EXAMPLES_TO_TRACE, *model.input_shape[1:]], tf.float32)
    with tf.init_scope(), tf.device("CPU"):
        tf.function(call, autograph=False).get_concrete_function(specs, images)
    return assigned


def _no_rule(model: keras.Model, path: str, what: str) -> errors.InputError:
    return errors.InputError(
        f"model {model.name} can't be trained on microbatches: {path} {what}; a layer "
        "may only assign to floating-point variables with trainable=False"
    )
