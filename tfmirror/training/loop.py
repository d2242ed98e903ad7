"""The loop around the steps: how many steps a call takes, and what follows each call.

    reached = run_pass(segments, zero_totals())
    reached.totals.accuracy, reached.seconds

It knows no device: a segment (`tfmirror.parallel.segments.Segment`) is a number of
steps and a function that takes some of them.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from tfmirror import metrics
from tfmirror.parallel.segments import Segment
from tfmirror.parallel.step_loop import StepTotals
from tfmirror.rundir.state import START_OF_PASS, PassProgress

# Long enough to hide the cost of a call, and short enough for a progress bar.
TARGET_LOOP_SECONDS = 0.5
FIRST_LOOP_STEPS = 4

Guard = Callable[[Segment], AbstractContextManager]


class NotFiniteError(Exception):
    """A step was not taken, since its loss, gradient or state is not finite."""

    def __init__(self, num_steps: int) -> None:
        """`num_steps` of the pass were taken before it."""
        super().__init__(num_steps)
        self.num_steps = num_steps


class Periodic:
    """Calls a function after every K steps, counted over all passes."""

    def __init__(
        self, every: int, run: Callable[[int, PassProgress], None], steps: int = 0
    ) -> None:
        """Starts to count.

        Args:
          every: K; 0: the function is never called.
          run: function of the steps so far and of the progress of the pass.
          steps: steps that have been taken before.
        """
        self.every, self._run, self.steps = every, run, steps

    @property
    def steps_until_due(self) -> float:
        """Steps to take before the next call; infinite for never."""
        return self.every - self.steps % self.every if self.every else math.inf

    def advance(self, num_steps: int, reached: PassProgress) -> None:
        """Counts `num_steps`, at most `steps_until_due`; calls the function if due."""
        self.steps += num_steps
        if self.every and self.steps % self.every == 0:
            self._run(self.steps, reached)


def next_loop_steps(
    last_steps: int, last_seconds: float, target_seconds: float = TARGET_LOOP_SECONDS
) -> int:
    """Returns how many steps the next call should take.

    As many as fit into `target_seconds` at the speed of the last call, but at most four
    times as many as it took, since a short call is a poor measure.
    """
    fitting = int(last_steps * target_seconds / max(last_seconds, 1e-9))
    return max(1, min(4 * last_steps, fitting))


def run_pass(
    segments: Sequence[Segment],
    totals: StepTotals,
    *,
    start: PassProgress = START_OF_PASS,
    steps_per_loop: int = 0,
    periodics: Sequence[Periodic] = (),
    on_call: Callable[[PassProgress], None] | None = None,
    guards: Sequence[Guard] = (),
    is_asked_to_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> PassProgress:
    """Runs all steps of `segments` that are left; returns the progress at the end.

    The result does not depend on how many steps a call takes, since the totals go from
    call to call, in order.

    Args:
      totals: totals on the device at `start`, as of step_loop.make_totals.
      start: the progress before; the segments' data continue there.
      steps_per_loop: steps in a call; 0: `next_loop_steps` chooses.
      periodics: a call ends where one of them is due.
      on_call: called after each call, before the periodics, with the progress.
      guards: functions of a segment that return a context manager for a call of it.
      is_asked_to_stop: whether a call may have taken fewer steps than it was to take,
        since a guard let another thread stop it. `on_call` should then end the pass.
      clock: returns seconds. It is read once a call's results are there.

    Raises:
      NotFiniteError: a step was not taken.
    """
    began = clock() - start.seconds
    reached, loop_steps = start, steps_per_loop or FIRST_LOOP_STEPS
    for segment, num_left in _left(segments, start.num_steps):
        while num_left:
            due = min((p.steps_until_due for p in periodics), default=math.inf)
            num_steps = int(min(loop_steps, num_left, due))
            call_start = clock()
            with contextlib.ExitStack() as stack:
                for guard in guards:
                    stack.enter_context(guard(segment))
                totals = segment.run(num_steps, totals)
                after = int(totals.num_steps)  # waits for the device
            num_taken = after - reached.num_steps
            # A call that was asked to stop has taken a step at least.
            if num_taken < num_steps and not (num_taken and is_asked_to_stop()):
                raise NotFiniteError(after)
            num_left -= num_taken
            reached = _advanced(reached, segment, totals, seconds=clock() - began)
            if not steps_per_loop:
                loop_steps = next_loop_steps(num_taken, clock() - call_start)
            if on_call:
                on_call(reached)
            for periodic in periodics:
                periodic.advance(num_taken, reached)
    return reached


def _advanced(
    reached: PassProgress, segment: Segment, totals: StepTotals, *, seconds: float
) -> PassProgress:
    """Returns the progress after a call that took steps of `segment`."""
    num_steps = int(totals.num_steps)
    num_new = (num_steps - reached.num_steps) * segment.global_batch_size
    so_far = metrics.Totals(
        float(totals.loss_sum),
        int(totals.num_correct),
        reached.totals.num_examples + num_new,
        int(totals.num_top5),
    )
    return PassProgress(num_steps, so_far, seconds, int(totals.num_skipped))


def _left(
    segments: Sequence[Segment], num_steps_taken: int
) -> Iterator[tuple[Segment, int]]:
    """Yields (segment, steps left in it) after `num_steps_taken` steps of a pass."""
    for segment in segments:
        taken = min(num_steps_taken, segment.num_steps)
        num_steps_taken -= taken
        yield segment, segment.num_steps - taken


def trace(segments: Sequence[Segment], totals: StepTotals) -> None:
    """Traces and compiles every segment without taking a step."""
    for segment in segments:
        segment.run(0, totals)
