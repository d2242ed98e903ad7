"""The loop, with a counter in place of a device."""

import math

import pytest

from tfmirror import config
from tfmirror.parallel import segments, step
from tfmirror.training import loop


class Counter:
    """A segment's `run` that records its calls and lets a clock go on."""

    def __init__(self, seconds_per_step=0.1, losses=None):
        self.calls, self.now = [], 0.0
        self.seconds_per_step, self.losses = seconds_per_step, losses or {}

    def __call__(self, num_steps, totals):
        self.calls.append(num_steps)
        self.now += num_steps * self.seconds_per_step
        loss = self.losses.get(len(self.calls), 0.5 * num_steps)
        return step.Totals(totals.loss_sum + loss, totals.num_correct + 2 * num_steps)


ZERO = step.Totals(0.0, 0)


@pytest.mark.parametrize(
    ("last_steps", "last_seconds", "expected"),
    [
        (10, 0.5, 10),  # just right
        (10, 1.0, 5),
        (10, 0.25, 20),
        (10, 0.01, 40),  # at most four times as many
        (10, 60.0, 1),  # at least one
        (1, 0.0, 4),
    ],
)
def test_next_loop_steps(last_steps, last_seconds, expected):
    assert (
        loop.next_loop_steps(last_steps, last_seconds, target_seconds=0.5) == expected
    )


def test_a_pass_takes_every_step_of_every_segment_and_adds_up():
    full, last = Counter(), Counter()
    both = [segments.Segment(7, 16, full), segments.Segment(1, 5, last)]
    seen = []
    totals, seconds = loop.run_pass(
        both,
        ZERO,
        steps_per_loop=3,
        on_progress=lambda so_far, s: seen.append((so_far.num_examples, s)),
        clock=lambda: full.now + last.now,
    )
    assert full.calls == [3, 3, 1] and last.calls == [1]
    assert totals.num_examples == 7 * 16 + 5
    assert (totals.loss_sum, totals.num_correct) == (4.0, 16)
    assert seconds == pytest.approx(0.8)
    assert [n for n, _ in seen] == [48, 96, 112, 117]
    assert [s for _, s in seen] == pytest.approx([0.3, 0.6, 0.7, 0.8])


def test_without_a_number_calls_grow_to_half_a_second():
    full = Counter(seconds_per_step=0.01)
    loop.run_pass([segments.Segment(200, 1, full)], ZERO, clock=lambda: full.now)
    assert full.calls == [4, 16, 50, 50, 50, 30]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_the_pass(loss):
    full = Counter(losses={2: loss})
    with pytest.raises(
        config.TrainingStoppedError, match=f"loss is {loss} .* 8 examples"
    ):
        loop.run_pass([segments.Segment(9, 2, full)], ZERO, steps_per_loop=2)
    assert full.calls == [2, 2]


def test_tracing_takes_no_step():
    full = Counter()
    loop.trace([segments.Segment(9, 2, full)], ZERO)
    assert full.calls == [0]


def test_periodic_calls_come_after_every_so_many_steps_over_all_passes():
    full, seen = Counter(), []
    periodic = loop.Periodic(5, lambda steps: seen.append((steps, sum(full.calls))))
    for _ in range(2):
        loop.run_pass(
            [segments.Segment(7, 1, full)], ZERO, steps_per_loop=4, periodic=periodic
        )
    assert full.calls == [4, 1, 2, 3, 4]
    assert seen == [(5, 5), (10, 10)]
