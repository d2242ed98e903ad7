"""How an aggregated gradient changes the variables: once, and alike on every replica.

    with strategy.scope():
        optimizer = Update(keras.optimizers.SGD(0.1, momentum=0.9), model)
    optimizer.apply(gradients, state, new_state)          # in replica context

Clipping by global norm, weight decay, momentum and schedules are the Keras optimizer's
own: given a gradient that is aggregated already, they act on it once.
"""

import keras
import tensorflow as tf

# Dynamic loss scaling as Keras' LossScaleOptimizer does it (NVIDIA, Mixed precision
# training, section 3.2): halved on an overflow, doubled after so many steps without
# one.
INITIAL_LOSS_SCALE = 2.0**15
STEPS_TO_GROW_LOSS_SCALE = 2000


class MirroredOptimizer:
    """The optimizer of a model, and what else follows each of its steps."""

    def __init__(self, optimizer, model, *, ema_decay=0.0, scales_loss=False):
        """Builds the optimizer's variables; call it in the strategy's scope.

        Args:
          optimizer: a Keras optimizer, not built.
          ema_decay: of the moving average of the weights, in [0, 1); 0: none is kept.
          scales_loss: whether the loss is scaled, for float16. A step whose aggregated
            gradient is not finite is then skipped.
        """
        optimizer.build(model.trainable_variables)
        disable_gradient_all_reduce(optimizer)
        self.keras_optimizer = optimizer
        self.trainable_variables = model.trainable_variables
        self.ema_decay = ema_decay
        self.ema = []
        if ema_decay:
            self.ema = [_copy(v, ema_name(v.path)) for v in model.trainable_variables]
        self.scale = self.good_steps = None
        if scales_loss:
            self.scale = _scalar(INITIAL_LOSS_SCALE, "float32", "loss_scale")
            self.good_steps = _scalar(0, "int32", "good_steps")

    @property
    def scales_loss(self):
        """Whether the loss is scaled."""
        return self.scale is not None

    @property
    def evaluated_variables(self):
        """What to evaluate: the moving averages if there are any, else the weights."""
        return self.ema or self.trainable_variables

    def finish(self):
        """Gives the model's weights the values of their moving averages, if any."""
        for variable, average in zip(self.trainable_variables, self.ema, strict=False):
            variable.assign(average.value)

    @property
    def variables(self):
        """All variables that are not the model's, in a fixed order."""
        scaling = [self.scale, self.good_steps] if self.scales_loss else []
        return [*self.keras_optimizer.variables, *self.ema, *scaling]

    @property
    def named_variables(self):
        """All of `variables` by a name that is the same in every process."""
        own = {v.path.split("/", 1)[-1]: v for v in self.keras_optimizer.variables}
        named = {f"optimizer/{name}": v for name, v in own.items()}  # not "sgd_7/..."
        others = self.variables[len(own) :]
        return named | {v.path: v for v in others}

    def step(self):
        """Returns the number of steps taken, a scalar integer. Replica context."""
        return tf.convert_to_tensor(self.keras_optimizer.iterations.value)

    def loss_scale(self):
        """Returns what losses are to be multiplied by. Replica context."""
        return (
            tf.convert_to_tensor(self.scale.value) if self.scales_loss else tf.ones([])
        )

    def apply(self, gradients, state, new_state):
        """Changes the variables of this replica. Replica context.

        Args:
          gradients: of the mean loss of the global batch times `loss_scale()`, finite,
            the same on every replica, ordered as the model's trainable variables.
          state: variables that take `new_state` as it is.
        """
        if self.scales_loss:
            gradients = [gradient / self.scale.value for gradient in gradients]
            self._grow_scale()
        self.keras_optimizer.apply(gradients, self.trainable_variables)
        for variable, value in zip(state, new_state, strict=True):
            variable.assign(value)
        for average, variable in zip(self.ema, self.trainable_variables, strict=False):
            weight = tf.cast(variable.value, average.dtype)
            average.assign(
                self.ema_decay * average.value + (1 - self.ema_decay) * weight
            )

    def skip(self):
        """Halves the loss scale, after an overflow; changes nothing else."""
        self.scale.assign(tf.maximum(self.scale.value / 2, 1.0))
        self.good_steps.assign(0)

    def _grow_scale(self):
        """Doubles the loss scale after many steps without an overflow."""
        good_steps = self.good_steps.value + 1
        grows = good_steps >= STEPS_TO_GROW_LOSS_SCALE
        self.scale.assign(self.scale.value * tf.where(grows, 2.0, 1.0))
        self.good_steps.assign(tf.where(grows, 0, good_steps))


def make_optimizer(name, learning_rate, momentum=0.0, weight_decay=0.0, clip_norm=0.0):
    """Returns a Keras optimizer, not built.

    Weight decay is decoupled for all of them (Loshchilov and Hutter, 2019).

    Args:
      name: "sgd", "adam" or "adamw".
      learning_rate: a number, or a Keras schedule.
      momentum: of sgd.
      weight_decay, clip_norm: 0: none.
    """
    kwargs = {
        "weight_decay": weight_decay or None,
        "global_clipnorm": clip_norm or None,
    }
    if name == "sgd":
        return keras.optimizers.SGD(learning_rate, momentum, **kwargs)
    if name == "adam":
        return keras.optimizers.Adam(learning_rate, **kwargs)
    kwargs["weight_decay"] = weight_decay  # AdamW refuses None
    return keras.optimizers.AdamW(learning_rate, **kwargs)


def ema_name(path):
    """Returns the name of the moving average of the variable with that path."""
    return f"ema_{path.replace('/', '_')}"


def _copy(variable, name):
    """Returns a variable that starts with the value of another."""
    return keras.Variable(variable.numpy(), trainable=False, name=name)


def _scalar(value, dtype, name):
    """Returns a scalar variable that is not trained."""
    return keras.Variable(value, dtype=dtype, trainable=False, name=name)


def disable_gradient_all_reduce(optimizer):
    """Makes a Keras `optimizer` apply the gradients that it is given as they are.

    In replica context a Keras optimizer sums gradients over replicas before it applies
    them, and has no public switch for it. Ours are summed already: we show, check and
    divide the sum ourselves. The hook is private (Keras 3.15.1,
    backend/tensorflow/optimizer.py), so Keras is pinned to a minor version, and
    `test_optimizer_applies_aggregated_gradients_once` fails when it changes.
    """
    if not hasattr(optimizer, "_all_reduce_sum_gradients"):
        raise TypeError(f"not an optimizer that tfmirror knows: {optimizer!r}")
    optimizer._all_reduce_sum_gradients = list
