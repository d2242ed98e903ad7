"""A pass over examples as compiled segments: full batches, then an uneven last one.

segments = make_segments(strategy, examples, plans, make_steps, shuffle_seed=0)
totals = segments[0].run(10, step.zero_totals())
"""

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from tfmirror.data import pipeline


@dataclasses.dataclass(frozen=True)
class Segment:
    """Steps of one pass over examples that one trace serves."""

    num_steps: int
    global_batch_size: int
    steps: Callable  # compiled, as of step.make_train_steps
    iterator: object  # of the distributed parts, from which they take

    def run(self, num_steps, totals):
        """Takes so many more steps; returns the Totals after them, not waiting."""
        return self.steps(self.iterator, tf.constant(num_steps, tf.int64), totals)


def make_segments(
    strategy, examples, plans, make_steps, shuffle_seed=None, epochs=0, steps=0
):
    """Returns the Segments of a pass over `examples`, one for each of `plans`.

    Run whole and in order, they meet every example exactly once; the next run of all of
    them is the next epoch.

    Args:
      plans: of microbatches.plan_epoch, for as many examples.
      make_steps: BatchPlan -> compiled steps, as of step.make_train_steps.
      shuffle_seed: see pipeline.batch_parts.
      epochs, steps: stand where so many passes are over, and so many steps of the next.
    """
    made = []
    for plan in plans:
        taken = min(steps, plan.num_batches)
        steps -= taken
        skipped = epochs * plan.num_batches + taken
        made.append(
            _make_segment(strategy, examples, plan, make_steps, shuffle_seed, skipped)
        )
    return made


def _make_segment(strategy, examples, plan, make_steps, shuffle_seed, skipped):
    """Returns the Segment of one BatchPlan, with an iterator of its own."""
    parts = pipeline.batch_parts(
        examples,
        first=plan.first,
        per_replica_batch_sizes=plan.per_replica_batch_sizes,
        batches_per_epoch=plan.num_batches,
        shuffle_seed=shuffle_seed,
        skipped_batches=skipped,
    )
    iterator = _distribute(strategy, parts)
    return Segment(plan.num_batches, plan.global_batch_size, make_steps(plan), iterator)


def on_one_batch(segment, strategy, examples, plan):
    """Returns `segment` with one batch again and again, which costs no input.

    Args:
      plan: microbatches.BatchPlan that `segment` was made for.
    """
    parts = pipeline.batch_parts(
        examples,
        first=0,
        per_replica_batch_sizes=plan.per_replica_batch_sizes,
        batches_per_epoch=1,
    )
    again = parts.take(len(plan.per_replica_batch_sizes)).cache().repeat()
    again = again.prefetch(2 * len(plan.per_replica_batch_sizes))
    return dataclasses.replace(
        segment,
        iterator=_distribute(strategy, again.with_options(pipeline.untuned_options())),
    )


def _distribute(strategy, parts):
    """Returns an iterator that deals parts to the replicas in turn."""
    _leave_device_datasets_untuned()
    return iter(strategy.distribute_datasets_from_function(lambda context: parts))


def _leave_device_datasets_untuned():
    """Turns autotuning off in the datasets that tf.distribute adds for each device.

    There is nothing to tune in them, and the deletion of an iterator waits for the
    thread that would, up to a minute. There is no public way to reach them: a private
    function (TensorFlow 2.21, data/ops/multi_device_iterator_ops.py) is wrapped once;
    `test_device_datasets_are_not_tuned` fails when it changes.
    """
    create = multi_device_iterator_ops._create_device_dataset
    if hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def create_untuned(*args, **kwargs):
        return create(*args, **kwargs).with_options(pipeline.untuned_options())

    multi_device_iterator_ops._create_device_dataset = create_untuned
