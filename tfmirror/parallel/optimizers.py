"""How an aggregated gradient changes the variables: once, equally on every replica.

    with strategy.scope():
        optimizer = MirroredOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), model)
    optimizer.apply(gradients, state, new_state)          # in replica context

Clipping by global norm, weight decay, momentum and schedules are the Keras optimizer's
own. It gets a gradient that is aggregated already, so they act on it once.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfmirror import errors, recipes
from tfmirror.models import keras_defaults, variable_names
from tfmirror.parallel import batch_statistics

# Dynamic loss scaling as in Keras' LossScaleOptimizer (NVIDIA, Mixed precision
# training, section 3.2): halved on an overflow, doubled after this many steps without
# one. The largest scale lifts float16's smallest number, 2**-24, to 1: what is smaller
# even then has no effect on a float32 weight. The scaled loss itself is float32.
INITIAL_LOSS_SCALE = 2.0**15
LARGEST_LOSS_SCALE = 2.0**24
STEPS_TO_GROW_LOSS_SCALE = 2000


class MirroredOptimizer:
    """A Keras optimizer whose variables are mirrored, as are all that it updates.

    Beside the model's weights these are the moving statistics of batch norm, the moving
    averages of the weights with the statistics that belong to them, and the loss scale.
    """

    @keras_defaults.scope()
    def __init__(
        self,
        optimizer: keras.Optimizer,
        model: keras.Model,
        *,
        ema_decay: float = 0.0,
        scales_loss: bool = False,
    ) -> None:
        """Builds the optimizer's variables. Call it in the strategy's scope.

        Args:
          optimizer: not built yet.
          model: whose trainable variables the optimizer updates.
          ema_decay: decay of the weights' moving average, in [0, 1); 0: none is kept.
            In the first steps it is lower, see `averaging_decay`.
          scales_loss: whether the loss is scaled, for float16. A step whose aggregated
            gradient is not finite is then skipped.
        """
        optimizer.build(model.trainable_variables)
        disable_gradient_all_reduce(optimizer)
        self.keras_optimizer = optimizer
        self.trainable_variables = model.trainable_variables
        self.ema_decay = ema_decay
        self.ema: list[keras.Variable] = []
        # Batch norm's moving statistics with the averages as weights.
        self.statistics: list[keras.Variable] = []
        self._state = model.non_trainable_variables
        self._estimated = batch_statistics.indices(model) if ema_decay else []
        if ema_decay:
            self.ema = [_average_of(v) for v in model.trainable_variables]
            self.statistics = [_average_of(self._state[k]) for k in self._estimated]
        averaged = [*model.trainable_variables]
        averaged += [self._state[k] for k in self._estimated]
        self._averaged_names = _averaged_names(model, averaged)
        self.loss_scaler = LossScaler() if scales_loss else None

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is scaled."""
        return self.loss_scaler is not None

    @property
    def evaluated_variables(self) -> list[keras.Variable]:
        """The variables to evaluate with: moving averages if kept, else the weights."""
        return self.ema or self.trainable_variables

    @property
    def evaluated_state(self) -> list[keras.Variable]:
        """The model's state to evaluate with, ordered as its non-trainable variables.

        If averages are kept, it has the `statistics` that belong to them.
        """
        evaluated = dict(zip(self._estimated, self.statistics, strict=True))
        return [evaluated.get(k, variable) for k, variable in enumerate(self._state)]

    def finish(self) -> None:
        """Assigns to the model what it is evaluated with, if averages are kept."""
        own = [*self.trainable_variables, *self._state]
        evaluated = [*self.evaluated_variables, *self.evaluated_state]
        for variable, value in zip(own, evaluated, strict=True):
            if value is not variable:
                variable.assign(value.value)

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables that the model does not have, in a fixed order."""
        scaling = self.loss_scaler.variables if self.loss_scaler else []
        averaged = [*self.ema, *self.statistics]
        return [*self.keras_optimizer.variables, *averaged, *scaling]

    @property
    def named_variables(self) -> dict[str, keras.Variable]:
        """All of `variables`, by names that are the same in every process."""
        slots = self.keras_optimizer.variables
        # Without the optimizer's own name, which may be sgd_7.
        own = variable_names.unique(v.path.split("/", 1)[-1] for v in slots)
        names = [f"optimizer/{name}" for name in own]
        if self.ema:
            names += self._averaged_names
        names += [v.path for v in self.variables[len(names) :]]
        return dict(zip(names, self.variables, strict=True))

    def check_trainable(self, model: keras.Model) -> None:
        """Checks that the model trains the variables that this optimizer updates.

        Raises:
          InputError: a layer was frozen or unfrozen after the optimizer was made.
        """
        own = {id(v): v.path for v in self.trainable_variables}
        now = {id(v): v.path for v in model.trainable_variables}
        changed = [(own | now)[k] for k in own.keys() ^ now.keys()]
        if changed or list(own) != list(now):
            raise errors.InputError(
                "what is trained is fixed when the optimizer is made, but layers were "
                f"frozen or unfrozen since then: {', '.join(sorted(changed)[:5])}; set "
                "layer.trainable before, and make a new optimizer"
            )

    def step(self) -> tf.Tensor:
        """Returns the number of steps taken, a scalar integer. Replica context."""
        return tf.convert_to_tensor(self.keras_optimizer.iterations.value)

    def loss_scale(self) -> tf.Tensor:
        """Returns the factor for the loss, a scalar float32. Replica context."""
        return self.loss_scaler.value() if self.loss_scaler else tf.ones([])

    def learning_rate(self) -> float:
        """Returns the learning rate of the next step. Cross-replica context."""
        return float(self.keras_optimizer.learning_rate.numpy())

    def can_skip(self) -> tf.Tensor:
        """Returns whether a gradient that is not finite skips the step, a scalar bool.

        At a scale of 1 it can't be an overflow that a lower scale would prevent.
        Cross-replica context.
        """
        if not self.loss_scaler:
            return tf.constant(False)
        return self.loss_scaler.value() > 1

    def apply(
        self,
        gradients: list[tf.Tensor],
        state: list[keras.Variable],
        new_state: list[tf.Tensor],
    ) -> None:
        """Updates this replica's copy of all variables. Replica context.

        Args:
          gradients: of the global batch's mean loss times `loss_scale()`, ordered as
            the model's trainable variables; finite, and the same on every replica.
          state: variables to assign `new_state` to.
          new_state: a value for each of them.
        """
        if self.loss_scaler:
            scale = self.loss_scaler.scale.value
            gradients = [gradient / scale for gradient in gradients]
            self.loss_scaler.count_good_step()
        self.keras_optimizer.apply(gradients, self.trainable_variables)
        for variable, value in zip(state, new_state, strict=True):
            variable.assign(value)
        self._average_weights()

    def _average_weights(self) -> None:
        """Moves the averages, if kept, towards the weights. Replica context."""
        decay = averaging_decay(self.ema_decay, self.step())
        for average, variable in zip(self.ema, self.trainable_variables, strict=False):
            weight = tf.cast(variable.value, average.dtype)
            average.assign(decay * average.value + (1 - decay) * weight)

    def skip(self) -> None:
        """Lowers the loss scale after an overflow; changes nothing else."""
        if self.loss_scaler:
            self.loss_scaler.lower()


class LossScaler:
    """The loss scale of float16, which follows the overflows."""

    def __init__(self) -> None:
        """Makes its variables. Call it in the strategy's scope."""
        self.scale = _scalar(INITIAL_LOSS_SCALE, "float32", "loss_scale")
        self.good_steps = _scalar(0, "int32", "good_steps")

    @property
    def variables(self) -> list[keras.Variable]:
        """The scale, and the steps since the last overflow or growth."""
        return [self.scale, self.good_steps]

    def value(self) -> tf.Tensor:
        """Returns the scale, a scalar float32. Replica context."""
        return tf.convert_to_tensor(self.scale.value)

    def lower(self) -> None:
        """Halves the scale, down to 1. Replica context."""
        lower = tf.clip_by_value(self.scale.value / 2, 1.0, LARGEST_LOSS_SCALE)
        self.scale.assign(lower)
        self.good_steps.assign(0)

    def count_good_step(self) -> None:
        """Doubles the scale after many steps without an overflow, up to the largest.

        Replica context.
        """
        good_steps = self.good_steps.value + 1
        grows = good_steps >= STEPS_TO_GROW_LOSS_SCALE
        scale = self.scale.value * tf.where(grows, 2.0, 1.0)
        self.scale.assign(tf.minimum(scale, LARGEST_LOSS_SCALE))
        self.good_steps.assign(tf.where(grows, 0, good_steps))


@keras_defaults.scope()
def make_optimizer(
    name: str,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> keras.Optimizer:
    """Returns a Keras optimizer, not built.

    Args:
      name: "sgd", "adam" or "adamw".
      learning_rate: a number, or a Keras schedule.
      momentum: in [0, 1), only for sgd; 0: none.
      weight_decay: each step takes this times the learning rate off every weight,
        decoupled from the gradient (Loshchilov and Hutter, 2019); 0: none.
      clip_norm: largest global norm of the gradient; 0: not clipped.

    Raises:
      InputError: `name` is another one.
    """
    errors.require_one_of(recipes.OPTIMIZERS, "optimizer", name)
    kwargs: dict[str, Any] = {
        "weight_decay": weight_decay or None,
        "global_clipnorm": clip_norm or None,
    }
    if name == "sgd":
        return keras.optimizers.SGD(learning_rate, momentum, **kwargs)
    if name == "adam":
        return keras.optimizers.Adam(learning_rate, **kwargs)
    kwargs["weight_decay"] = weight_decay  # AdamW refuses None
    return keras.optimizers.AdamW(learning_rate, **kwargs)


def averaging_decay(ema_decay: float, num_steps: tf.Tensor | int) -> tf.Tensor:
    """Returns the decay of the weights' moving average at a step, a scalar float32.

    It is min(ema_decay, (1 + t) / (10 + t)) at step t. Otherwise the initial weights
    would have a share of ema_decay^t in the average, 0.82 after 20 steps with 0.99.

    Args:
      num_steps: t, steps taken including this one.
    """
    t = tf.cast(num_steps, tf.float32)
    return tf.minimum(tf.constant(ema_decay, tf.float32), (1 + t) / (10 + t))


def check_averages(names: Iterable[str]) -> None:
    """Checks the names of a checkpoint's variables before a run resumes from it.

    Raises:
      InputError: its averages were made without a warm-up of the decay.
    """
    if any(name.startswith(variable_names.EARLIER_AVERAGED) for name in names):
        raise errors.InputError(
            "the checkpoint's averaged weights are of an earlier version, whose decay "
            "had no warm-up: a run with ema_decay can't be resumed from it; train it "
            "anew (evaluate, predict and export do read it)"
        )


def _average_of(variable: keras.Variable) -> keras.Variable:
    """Returns a variable for the average of another, which starts with its value."""
    name = "averaged_" + variable.path.replace("/", "_")
    return keras.Variable(variable.numpy(), trainable=False, name=name)


def _averaged_names(
    model: keras.Model, variables: Sequence[keras.Variable]
) -> list[str]:
    """Returns the names of the averages of some of a model's variables."""
    pairs = zip(model.variables, variable_names.names_of(model), strict=True)
    names = {
        id(variable): variable_names.averaged_name(name) for variable, name in pairs
    }
    return [names[id(variable)] for variable in variables]


def _scalar(value: float, dtype: str, name: str) -> keras.Variable:
    """Returns a scalar variable that is not trained."""
    return keras.Variable(value, dtype=dtype, trainable=False, name=name)


def disable_gradient_all_reduce(optimizer: keras.Optimizer) -> None:
    """Makes a Keras `optimizer` apply gradients as it gets them.

    In replica context a Keras optimizer sums gradients over replicas before it applies
    them, and has no public switch for it. Ours are summed already: the step shows,
    checks and divides the sum. The hook is private (Keras 3.15.1,
    backend/tensorflow/optimizer.py), so Keras is pinned to a minor version, and
    `test_optimizer_applies_aggregated_gradients_once` fails when it changes.
    """
    if not hasattr(optimizer, "_all_reduce_sum_gradients"):
        raise TypeError(f"not an optimizer that tfmirror knows: {optimizer!r}")
    optimizer._all_reduce_sum_gradients = list
