"""The loop around a step: many steps in one call, and what they add up to.

steps = make_step_loop(step, plan)
totals = steps(iterator, tf.constant(100, tf.int64), zero_totals())

While a call runs, other threads can watch it and end it:

steps.num_finished(), steps.ask_to_stop()
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfmirror.parallel import runtime
from tfmirror.parallel.microbatches import BatchPlan

# (distributed iterator, totals) -> (totals after one step, whether it was taken)
CountedStep = Callable[[Iterator, "StepTotals"], tuple["StepTotals", tf.Tensor]]


class StepTotals(NamedTuple):
    """What steps add up to, on the device; `metrics.Totals` is made from it."""

    loss_sum: tf.Tensor  # scalar float64, nats
    num_correct: tf.Tensor  # scalar int64
    num_steps: tf.Tensor  # scalar int64, with the skipped ones
    # Scalar int64: steps whose update was left out, since a gradient overflowed.
    num_skipped: tf.Tensor
    # Scalar int64, counted in evaluations of more than ten classes, else 0.
    num_top5: tf.Tensor


class StepResult(NamedTuple):
    """What one step returns, scalars."""

    loss: tf.Tensor  # float32: sum over the global batch, nats
    num_correct: tf.Tensor  # float32, a whole number
    goes_on: tf.Tensor  # bool; False: the step does not count, and the loop ends
    is_skipped: tf.Tensor | bool = False  # whether the update was left out
    num_top5: tf.Tensor | int = 0  # float32, a whole number; 0: not counted


class StepLoop:
    """Takes many steps in one call; other threads may watch the call and end it.

    Both go through variables in the host's memory, which the call reads and writes
    after each step. To use them waits for no device, so it works while a step hangs.
    """

    def __init__(self, step: CountedStep) -> None:
        """`step` is what one step does; nothing is traced yet."""
        with tf.device("CPU:0"):
            self._is_asked = tf.Variable(False, trainable=False)
            self._num_finished = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.compiled = _compile(step, self._is_asked, self._num_finished)

    def __call__(
        self, iterator: Iterator, num_steps: tf.Tensor, totals: StepTotals
    ) -> StepTotals:
        """Takes steps; returns the totals without waiting for them.

        Fewer than `num_steps` are taken if a step can't be taken, or if the call is
        asked to stop.

        Args:
          iterator: yields the distributed per-replica batches of a global batch.
          num_steps: scalar int64; 0: the steps are traced, and nothing is changed.
          totals: the totals before.
        """
        return self.compiled(iterator, num_steps, totals)

    def num_finished(self) -> int:
        """Returns how many steps have come to their end, over all calls so far."""
        return int(self._num_finished)

    def ask_to_stop(self) -> None:
        """Ends a running call, and each later one, after its current step."""
        self._is_asked.assign(True)


def make_step_loop(step: Callable[[Any, Any], StepResult], plan: BatchPlan) -> StepLoop:
    """Returns the compiled loop around one step.

    Args:
      step: function of the distributed (images, labels) of a global batch.
    """
    if plan.in_fixed_tree:
        runtime.disable_arithmetic_optimizer()

    # AutoGraph converts only the loop below: the step's Python runs as written.
    @tf.autograph.experimental.do_not_convert
    def counted_step(iterator, totals):
        result = step(*next(iterator))
        after = StepTotals(
            totals.loss_sum + tf.cast(result.loss, tf.float64),
            totals.num_correct + tf.cast(result.num_correct, tf.int64),
            totals.num_steps + 1,
            totals.num_skipped + tf.cast(result.is_skipped, tf.int64),
            totals.num_top5 + tf.cast(result.num_top5, tf.int64),
        )
        kept = [
            tf.where(result.goes_on, new, old)
            for new, old in zip(after, totals, strict=True)
        ]
        return StepTotals(*kept), result.goes_on

    return StepLoop(counted_step)


def _compile(
    step: CountedStep, is_asked: tf.Variable, num_finished: tf.Variable
) -> tf.types.experimental.PolymorphicFunction:
    """Returns the compiled loop of a StepLoop.

    Args:
      is_asked: scalar bool on the host; true: the loop ends after the current step.
      num_finished: scalar int64 on the host; the loop counts its steps there.
    """

    @tf.autograph.experimental.do_not_convert
    def reported_step(iterator, totals):
        totals, is_taken = step(iterator, totals)
        # After the step, so that a request during the step ends the loop with it.
        with tf.control_dependencies([is_taken]), tf.device("CPU:0"):
            num_finished.assign_add(1, read_value=False)
            return totals, is_taken & ~is_asked.read_value()

    @tf.function
    def steps(iterator, num_steps, totals):
        for _ in tf.range(num_steps):
            totals, goes_on = reported_step(iterator, totals)
            if not goes_on:
                break
        return totals

    return steps


def make_totals(
    loss_sum: float, num_correct: int, num_steps: int, *, num_skipped: int = 0
) -> StepTotals:
    """Returns the StepTotals of these numbers, with no example counted in num_top5."""
    return StepTotals(
        tf.constant(loss_sum, tf.float64),
        tf.constant(num_correct, tf.int64),
        tf.constant(num_steps, tf.int64),
        tf.constant(num_skipped, tf.int64),
        tf.constant(0, tf.int64),
    )


def zero_totals() -> StepTotals:
    """Returns the StepTotals before the first step."""
    return make_totals(0.0, 0, 0)


def is_finite(values: Any) -> tf.Tensor:
    """Returns whether all elements of nested tensors are finite, a scalar bool."""
    flat = [tf.reduce_all(tf.math.is_finite(v)) for v in tf.nest.flatten(values)]
    return tf.reduce_all(tf.convert_to_tensor(flat, tf.bool))
