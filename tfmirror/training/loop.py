"""The loop around the steps: how many a call takes, and what is read after it.

    totals, seconds = run_pass(segments, zero_totals, on_progress=print)

It knows no device: a segment (`tfmirror.parallel.step.Segment`) is a number of steps
and a function that takes some of them.
"""

import math
import time

from tfmirror import config, metrics

# A call of this length is long enough to hide the cost of leaving the device, and short
# enough for a progress bar.
TARGET_LOOP_SECONDS = 0.5
FIRST_LOOP_STEPS = 4


class Periodic:
    """Calls a function after every so many steps, counted over all passes."""

    def __init__(self, every, run):
        """`run` takes the number of steps taken so far; `every` 0: never called."""
        self.every, self._run, self._steps = every, run, 0

    @property
    def steps_until_due(self):
        """Steps that may be taken before the next call; infinite for never."""
        return self.every - self._steps % self.every if self.every else math.inf

    def advance(self, num_steps):
        """Counts steps taken, no more than `steps_until_due`; calls if it is due."""
        self._steps += num_steps
        if self.every and self._steps % self.every == 0:
            self._run(self._steps)


NEVER = Periodic(0, None)


def next_loop_steps(last_steps, last_seconds, target_seconds=TARGET_LOOP_SECONDS):
    """Returns how many steps the next call should take.

    As many as fit into `target_seconds` at the speed of the last call, but no more than
    four times as many as that took, since a short call is a poor measure.
    """
    fitting = int(last_steps * target_seconds / max(last_seconds, 1e-9))
    return max(1, min(4 * last_steps, fitting))


def run_pass(
    segments,
    totals,
    *,
    steps_per_loop=0,
    on_progress=None,
    periodic=NEVER,
    clock=time.monotonic,
):
    """Runs all steps of `segments`; returns (metrics.Totals, seconds).

    What is computed does not depend on how many steps a call takes: totals are handed
    on from call to call, in order.

    Args:
      totals: device totals of no step, as of step.zero_totals().
      steps_per_loop: steps a call; 0: chosen by `next_loop_steps`.
      on_progress: called after each call with (metrics.Totals so far, seconds so far).
      periodic: a Periodic; a call ends where it is due.
      clock: returns seconds; waits are over when it is read.

    Raises:
      TrainingStoppedError: the sum of losses is not finite any more.
    """
    start = clock()
    num_examples = 0
    loop_steps = steps_per_loop or FIRST_LOOP_STEPS
    for segment in segments:
        done = 0
        while done < segment.num_steps:
            left = segment.num_steps - done
            num_steps = min(loop_steps, left, periodic.steps_until_due)
            call_start = clock()
            totals = segment.run(num_steps, totals)
            done += num_steps
            num_examples += num_steps * segment.global_batch_size
            so_far = read(totals, num_examples)  # waits for the device
            if not math.isfinite(so_far.loss_sum):
                raise config.TrainingStoppedError(
                    f"loss is {so_far.loss_sum} within the last {num_steps} steps, "
                    f"{num_examples:,} examples into the epoch; try a lower "
                    "--learning_rate"
                )
            if not steps_per_loop:
                loop_steps = next_loop_steps(num_steps, clock() - call_start)
            if on_progress:
                on_progress(so_far, clock() - start)
            periodic.advance(num_steps)
    return so_far, clock() - start


def read(totals, num_examples):
    """Returns the metrics.Totals of device `totals`; waits until they are computed."""
    return metrics.Totals(float(totals.loss_sum), int(totals.num_correct), num_examples)


def trace(segments, totals):
    """Traces and compiles every segment without taking a step."""
    for segment in segments:
        segment.run(0, totals)
