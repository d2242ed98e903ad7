"""Which microbatch of which replica makes a loss or gradient that is not finite.

    find = make_finder(strategy, model, optimizer, plan)
    find(images, labels)                               # [] or Findings, in order

Looked for only after a step could not be taken: nothing has changed since, and the same
microbatches are computed once more.
"""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tfmirror.diagnostics import inspection
from tfmirror.parallel import gradients, step


@dataclasses.dataclass(frozen=True)
class Finding:
    """A microbatch that is not finite."""

    replica_id: int
    microbatch: int  # of the global batch, from 0
    has_loss: bool  # whether its loss is finite
    variables: tuple[str, ...]  # whose gradients are not finite

    def describe(self):
        """Returns one clause for people."""
        what = [] if self.has_loss else ["its loss"]
        if self.variables:
            more = len(self.variables) - 1
            others = f" and of {more} other variables" if more else ""
            what.append(f"the gradient of {self.variables[0]}{others}")
        where = f"replica {self.replica_id}, microbatch {self.microbatch}"
        return f"{where}: {' and '.join(what)}"


def make_finder(strategy, model, optimizer, plan, augment=None):
    """Returns a function of a global batch's (images, labels) that lists its Findings.

    Args:
      plan: microbatches.BatchPlan of the batch.
      augment: of gradients.microbatch_gradients.
    """
    microbatch = functools.partial(
        gradients.microbatch_gradients, model, augment=augment
    )

    def replica_flags(images, labels):
        weights = gradients.local_values(model.trainable_variables)
        state = gradients.local_values(model.non_trainable_variables)
        steps, loss_scale = tf.cast(optimizer.step(), tf.int32), optimizer.loss_scale()
        rows = []
        examples = step.microbatches_of_replica(plan, images, labels)
        for k, own in examples.items():
            draw = steps * plan.num_microbatches + k
            sums = microbatch(weights, state, *own, draw, loss_scale)
            values = [sums.loss, *sums.gradients]
            rows.append([tf.reduce_all(tf.math.is_finite(v)) for v in values])
        return tf.reshape(tf.convert_to_tensor(rows, tf.bool), [len(rows), -1])

    flags = tf.function(lambda *parts: strategy.run(replica_flags, parts))

    def find(images, labels):
        parts = [
            inspection.split_global_batch(strategy, array, plan.per_replica_batch_sizes)
            for array in (images, labels)
        ]
        of_replicas = strategy.experimental_local_results(flags(*parts))
        names = [variable.path for variable in model.trainable_variables]
        return [
            Finding(r, k, bool(row[0]), _names_of(names, row[1:]))
            for r, rows in enumerate(of_replicas)
            for k, row in zip(plan.microbatches_of(r), rows.numpy(), strict=True)
            if not row.all()
        ]

    return find


def _names_of(names, are_finite):
    """Returns the names whose flag is not set."""
    return tuple(names[k] for k in np.flatnonzero(~are_finite))
