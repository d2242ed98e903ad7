"""A pass over examples as compiled segments: full batches, then an uneven last one.

segments = make_segments(strategy, examples, plans, make_steps, shuffle_seed=0)
totals = segments[0].run(10, step.zero_totals())
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfmirror.data import pipeline


@dataclasses.dataclass(frozen=True)
class Segment:
    """Steps of one pass over examples that one trace serves."""

    num_steps: int
    global_batch_size: int
    run: Callable  # (number of steps, Totals so far) -> Totals, waiting for neither


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
        part_sizes=plan.part_sizes,
        batches_per_epoch=plan.num_batches,
        shuffle_seed=shuffle_seed,
        skipped_batches=skipped,
    )
    iterator = iter(strategy.distribute_datasets_from_function(lambda context: parts))
    steps = make_steps(plan)

    def run(num_steps, totals):
        return steps(iterator, tf.constant(num_steps, tf.int64), totals)

    return Segment(plan.num_batches, plan.global_batch_size, run)
