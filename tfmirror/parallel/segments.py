"""A pass over examples as compiled segments: full batches, then an uneven last one.

segments = make_segments(strategy, examples, plans, make_steps, shuffle_seed=0)
totals = segments[0].run(10, step_loop.zero_totals())
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from tfmirror.data import pipeline
from tfmirror.data.examples import ExampleSource
from tfmirror.models import keras_defaults
from tfmirror.parallel.microbatches import BatchPlan
from tfmirror.parallel.step_loop import StepLoop, StepTotals


@dataclasses.dataclass(frozen=True)
class Segment:
    """Steps of one pass over examples that one trace serves."""

    num_steps: int
    global_batch_size: int
    steps: StepLoop
    # Yields the distributed (images, labels) of one global batch after another.
    iterator: Iterator[Any]

    @keras_defaults.scope()  # the first call traces
    def run(self, num_steps: int, totals: StepTotals) -> StepTotals:
        """Takes `num_steps` more steps; returns the totals without waiting for them."""
        return self.steps(self.iterator, tf.constant(num_steps, tf.int64), totals)

    def num_finished(self) -> int:
        """Returns how many steps have come to their end, for any thread."""
        return self.steps.num_finished()

    def ask_to_stop(self) -> None:
        """Lets any thread end a running call after its current step."""
        self.steps.ask_to_stop()


def make_segments(
    strategy: tf.distribute.Strategy,
    examples: ExampleSource,
    plans: Sequence[BatchPlan],
    make_steps: Callable[[BatchPlan], StepLoop],
    *,
    shuffle_seed: int | None = None,
    epochs: int = 0,
    steps: int = 0,
) -> list[Segment]:
    """Returns the Segments of a pass over `examples`, one for each of `plans`.

    If all of them run, whole and in order, they use every example exactly once. The
    next time that all of them run is the next epoch.

    Args:
      plans: from microbatches.plan_epoch, for as many examples.
      make_steps: function that compiles the steps of a BatchPlan.
      shuffle_seed: seed of the epochs' orders; None: the stored order.
      epochs, steps: epochs to skip, and steps to skip in the epoch after them.
    """
    made = []
    for plan in plans:
        taken = min(steps, plan.num_batches)
        steps -= taken
        batches = pipeline.per_replica_batches(
            examples,
            first=plan.first,
            per_replica_batch_sizes=plan.per_replica_batch_sizes,
            batches_per_epoch=plan.num_batches,
            shuffle_seed=shuffle_seed,
            skipped_batches=epochs * plan.num_batches + taken,
        )
        iterator = _distribute(strategy, batches)
        made.append(
            Segment(
                plan.num_batches, plan.global_batch_size, make_steps(plan), iterator
            )
        )
    return made


def on_one_batch(
    segment: Segment,
    strategy: tf.distribute.Strategy,
    examples: ExampleSource,
    plan: BatchPlan,
) -> Segment:
    """Returns `segment` with the first batch in every step, which needs no input.

    Args:
      plan: the BatchPlan of `segment`.
    """
    batches = pipeline.per_replica_batches(
        examples,
        first=0,
        per_replica_batch_sizes=plan.per_replica_batch_sizes,
        batches_per_epoch=1,
    )
    repeated = batches.take(plan.num_replicas).cache().repeat()
    repeated = repeated.prefetch(2 * plan.num_replicas)
    repeated = repeated.with_options(pipeline.untuned_options())
    return dataclasses.replace(segment, iterator=_distribute(strategy, repeated))


def _distribute(
    strategy: tf.distribute.Strategy, batches: tf.data.Dataset
) -> Iterator[Any]:
    """Returns an iterator that deals per-replica batches to the replicas in turn."""
    _leave_device_datasets_untuned()
    return iter(strategy.distribute_datasets_from_function(lambda context: batches))


def _leave_device_datasets_untuned() -> None:
    """Turns autotuning off in the datasets that tf.distribute adds for each device.

    They have nothing to tune, and the deletion of an iterator waits for the tuning
    thread, up to a minute. There is no public way to reach them. A private function
    (TensorFlow 2.21, data/ops/multi_device_iterator_ops.py) is wrapped once;
    `test_device_datasets_are_not_tuned` fails when it changes.
    """
    create = multi_device_iterator_ops._create_device_dataset
    if hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def create_untuned(*args, **kwargs):
        return create(*args, **kwargs).with_options(pipeline.untuned_options())

    multi_device_iterator_ops._create_device_dataset = create_untuned
