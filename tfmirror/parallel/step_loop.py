"""The loop around a step: many steps in one call, and what they add up to.

steps = make_step_loop(step, plan)
totals = steps(iterator, tf.constant(100, tf.int64), zero_totals())
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfmirror.parallel import runtime
from tfmirror.parallel.microbatches import BatchPlan


class StepTotals(NamedTuple):
    """What steps add up to, on the device; `metrics.Totals` is made from it."""

    loss_sum: tf.Tensor  # scalar float64, nats
    num_correct: tf.Tensor  # scalar int64
    num_steps: tf.Tensor  # scalar int64


# (distributed iterator of per-replica batches, number of steps, totals) -> totals
StepLoop = Callable[[Iterator, tf.Tensor, StepTotals], StepTotals]


def make_step_loop(
    step: Callable[[Any, Any], tuple[tf.Tensor, tf.Tensor, tf.Tensor]], plan: BatchPlan
) -> StepLoop:
    """Returns the compiled loop around one step.

    Args:
      step: function of the distributed (images, labels) of a global batch that returns
        its loss sum, its number correct, and whether the step was taken.
    """
    if plan.in_fixed_tree:
        runtime.disable_arithmetic_optimizer()

    # AutoGraph converts only the loop below: the step's Python runs as written.
    @tf.autograph.experimental.do_not_convert
    def counted_step(iterator, totals):
        loss, num_correct, is_taken = step(*next(iterator))
        after = StepTotals(
            totals.loss_sum + tf.cast(loss, tf.float64),
            totals.num_correct + tf.cast(num_correct, tf.int64),
            totals.num_steps + 1,
        )
        kept = [
            tf.where(is_taken, new, old) for new, old in zip(after, totals, strict=True)
        ]
        return StepTotals(*kept), is_taken

    @tf.function
    def steps(iterator, num_steps, totals):
        for _ in tf.range(num_steps):
            totals, is_taken = counted_step(iterator, totals)
            if not is_taken:
                break
        return totals

    return steps


def make_totals(loss_sum: float, num_correct: int, num_steps: int) -> StepTotals:
    """Returns the StepTotals of these numbers."""
    return StepTotals(
        tf.constant(loss_sum, tf.float64),
        tf.constant(num_correct, tf.int64),
        tf.constant(num_steps, tf.int64),
    )


def zero_totals() -> StepTotals:
    """Returns the StepTotals before the first step."""
    return make_totals(0.0, 0, 0)


def is_finite(value: tf.Tensor) -> tf.Tensor:
    """Returns whether all elements of a tensor are finite, a scalar bool."""
    return tf.reduce_all(tf.math.is_finite(value))
