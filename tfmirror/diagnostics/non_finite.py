"""Finds what is not finite: microbatches of a step that was not taken, and variables.

    find = make_finder(strategy, model, optimizer, plan)
    find(images, labels)                               # [], or Findings in order
    variables(training_setup.variables)                # [], or their names

After a step that was not taken nothing has changed, so the same microbatches are
computed once more.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import keras
import numpy as np
import tensorflow as tf

from tfmirror.parallel import gradients, microbatches, model_state, replicas
from tfmirror.parallel.microbatches import BatchPlan
from tfmirror.parallel.optimizers import MirroredOptimizer


@dataclasses.dataclass(frozen=True)
class Finding:
    """A microbatch that is not finite."""

    replica_id: int
    microbatch: int  # of the global batch, from 0
    is_loss_finite: bool
    variables: tuple[str, ...]  # paths of those whose gradients are not finite
    state: tuple[str, ...] = ()  # paths of moving statistics with such new values

    def describe(self) -> str:
        """Returns one clause for people."""
        what = [] if self.is_loss_finite else ["its loss"]
        if self.variables:
            what.append(f"the gradient of {_first_of(self.variables)}")
        if self.state:
            what.append(f"the new value of {_first_of(self.state)}")
        where = f"replica {self.replica_id}, microbatch {self.microbatch}"
        return f"{where}: {' and '.join(what)}"


def make_finder(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: MirroredOptimizer,
    plan: BatchPlan,
    *,
    augment: gradients.Augment | None = None,
    label_smoothing: float = 0.0,
) -> Callable[[np.ndarray, np.ndarray], list[Finding]]:
    """Returns a function of a global batch's (images, labels) that lists its Findings.

    Args:
      plan: how the global batch is cut.
      augment: the function that changes training images; None: nothing does.
      label_smoothing: of the training loss.
    """

    def replica_flags(images, labels):
        weights, state = replicas.weights_and_state(model)
        step, loss_scale = tf.cast(optimizer.step(), tf.int32), optimizer.loss_scale()
        rows = []
        own = plan.microbatches_of(replicas.replica_id())
        pieces = microbatches.split(
            images, labels, [plan.microbatch_sizes[k] for k in own]
        )
        for k, (x, y) in zip(own, pieces, strict=True):
            index = step * plan.num_microbatches + k
            sums = gradients.microbatch_gradients(
                model,
                weights,
                state,
                x,
                y,
                index,
                loss_scale,
                augment=augment,
                label_smoothing=label_smoothing,
                scales_loss=optimizer.scales_loss,
            )
            values = [sums.loss, *sums.gradients, *sums.state]
            rows.append([tf.reduce_all(tf.math.is_finite(v)) for v in values])
        return tf.reshape(tf.convert_to_tensor(rows, tf.bool), [len(rows), -1])

    flags = tf.function(lambda *parts: strategy.run(replica_flags, parts))

    def find(images, labels):
        parts = [
            replicas.split(strategy, array, plan.per_replica_batch_sizes)
            for array in (images, labels)
        ]
        of_replicas = replicas.local_values(strategy, flags(*parts))
        paths = [variable.path for variable in model.trainable_variables]
        states = [variable.path for variable in model_state.averaged_variables(model)]
        end = 1 + len(paths)
        return [
            Finding(
                r,
                k,
                bool(row[0]),
                _not_finite(paths, row[1:end]),
                _not_finite(states, row[end:]),
            )
            for r, rows in enumerate(of_replicas)
            for k, row in zip(plan.microbatches_of(r), rows.numpy(), strict=True)
            if not row.all()
        ]

    return find


def _first_of(paths: tuple[str, ...]) -> str:
    """Returns the first path, and how many follow."""
    more = len(paths) - 1
    return f"{paths[0]} and of {more} other variables" if more else paths[0]


def variables(variables: Mapping[str, keras.Variable]) -> list[str]:
    """Returns the names of the variables that hold a value that is not finite.

    With finite gradients only, an optimizer's own values may overflow: the square of
    1e20 is infinite in float32, and Adam then never changes that weight again.
    """
    return [
        name
        for name, variable in variables.items()
        if tf.as_dtype(variable.dtype).is_floating
        and not np.isfinite(variable.numpy()).all()
    ]


def _not_finite(paths: list[str], are_finite: Iterable[bool]) -> tuple[str, ...]:
    """Returns the paths whose flag is not set."""
    return tuple(
        p for p, is_finite in zip(paths, are_finite, strict=True) if not is_finite
    )
