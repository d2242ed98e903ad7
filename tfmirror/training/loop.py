"""The loop around the steps: how many a call takes, and what is read after it.

    reached = run_pass(segments, zero_totals())
    reached.totals.accuracy, reached.seconds

It knows no device: a segment (`tfmirror.parallel.segments.Segment`) is a number of
steps and a function that takes some of them.
"""

import contextlib
import math
import time

from tfmirror import metrics
from tfmirror.rundir.state import START_OF_PASS, PassProgress

# A call of this length is long enough to hide the cost of leaving the device, and short
# enough for a progress bar.
TARGET_LOOP_SECONDS = 0.5
FIRST_LOOP_STEPS = 4


class NotFiniteError(Exception):
    """A step was not taken, since its loss or gradient is not finite."""

    def __init__(self, num_steps):
        """`num_steps` of the pass were taken before."""
        super().__init__(num_steps)
        self.num_steps = num_steps


class Periodic:
    """Calls a function after every so many steps, counted over all passes."""

    def __init__(self, every, run, steps=0):
        """`run` takes (steps so far, PassProgress of the pass); `every` 0: never called.

        `steps` have been taken before.
        """
        self.every, self._run, self.steps = every, run, steps

    @property
    def steps_until_due(self):
        """Steps that may be taken before the next call; infinite for never."""
        return self.every - self.steps % self.every if self.every else math.inf

    def advance(self, num_steps, point):
        """Counts steps taken, no more than `steps_until_due`; calls if it is due."""
        self.steps += num_steps
        if self.every and self.steps % self.every == 0:
            self._run(self.steps, point)


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
    start=START_OF_PASS,
    steps_per_loop=0,
    periodics=(),
    on_call=None,
    guard=lambda num_steps: contextlib.nullcontext(),
    clock=time.monotonic,
):
    """Runs all steps of `segments` that are left; returns the PassProgress at the end.

    What is computed does not depend on how many steps a call takes: totals are handed
    on from call to call, in order.

    Args:
      totals: device totals at `start`, as of step.make_totals.
      start: PassProgress that was reached before; the segments' data stand there too.
      steps_per_loop: steps a call; 0: chosen by `next_loop_steps`.
      periodics: Periodics; a call ends where one is due.
      on_call: called after each call, before the periodics, with the PassProgress.
      guard: function of a number of steps that gives a context manager for a call.
      clock: returns seconds; waits are over when it is read.

    Raises:
      NotFiniteError: a step could not be taken.
    """
    began = clock() - start.seconds
    point, loop_steps = start, steps_per_loop or FIRST_LOOP_STEPS
    for segment, num_left in _left(segments, start.num_steps):
        while num_left:
            due = min((p.steps_until_due for p in periodics), default=math.inf)
            num_steps = min(loop_steps, num_left, due)
            call_start = clock()
            with guard(num_steps):
                totals = segment.run(num_steps, totals)
                taken = int(totals.num_steps) - point.num_steps  # waits for the device
            if taken < num_steps:
                raise NotFiniteError(int(totals.num_steps))
            num_left -= num_steps
            num_examples = point.totals.num_examples + taken * segment.global_batch_size
            so_far = metrics.Totals(
                float(totals.loss_sum), int(totals.num_correct), num_examples
            )
            point = PassProgress(point.num_steps + taken, so_far, clock() - began)
            if not steps_per_loop:
                loop_steps = next_loop_steps(num_steps, clock() - call_start)
            if on_call:
                on_call(point)
            for periodic in periodics:
                periodic.advance(num_steps, point)
    return point


def _left(segments, num_steps_taken):
    """Yields (segment, steps of it that are left) of a pass that has come so far."""
    for segment in segments:
        taken = min(num_steps_taken, segment.num_steps)
        num_steps_taken -= taken
        yield segment, segment.num_steps - taken


def trace(segments, totals):
    """Traces and compiles every segment without taking a step."""
    for segment in segments:
        segment.run(0, totals)
