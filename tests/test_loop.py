"""The loop, with a counter in place of a device."""

import contextlib
import functools
import math

import pytest

from tfmirror import metrics
from tfmirror.parallel import segments, step_loop
from tfmirror.rundir.state import PassProgress
from tfmirror.training import loop


class Counter:
    """A segment's `run` that records its calls and lets a clock go on."""

    def __init__(self, seconds_per_step=0.1, good_steps=math.inf):
        """The step after `good_steps` of the pass, and all others, can't be taken."""
        self.calls, self.now = [], 0.0
        self.seconds_per_step, self.good_steps = seconds_per_step, good_steps

    def __call__(self, iterator, num_steps, totals):
        num_steps = int(num_steps)
        self.calls.append(num_steps)
        self.now += num_steps * self.seconds_per_step
        taken = min(num_steps, self.good_steps - totals.num_steps)
        return step_loop.StepTotals(
            totals.loss_sum + 0.5 * taken,
            totals.num_correct + 2 * taken,
            totals.num_steps + taken,
            totals.num_skipped + taken // 2,
            totals.num_top5 + 3 * taken,
        )


ZERO = step_loop.StepTotals(0.0, 0, 0, 0, 0)


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
    both = [segments.Segment(7, 16, full, None), segments.Segment(1, 5, last, None)]
    seen = []
    reached = loop.run_pass(
        both,
        ZERO,
        steps_per_loop=3,
        on_call=lambda point: seen.append((point.totals.num_examples, point.seconds)),
        clock=lambda: full.now + last.now,
    )
    assert full.calls == [3, 3, 1] and last.calls == [1]
    assert reached.num_steps == 8
    assert reached.totals == metrics.Totals(4.0, 16, 7 * 16 + 5, 3 * 8)
    assert reached.seconds == pytest.approx(0.8)
    assert reached.num_skipped == 1 + 1 + 0 + 0  # as Counter says of its calls
    assert [n for n, _ in seen] == [48, 96, 112, 117]
    assert [s for _, s in seen] == pytest.approx([0.3, 0.6, 0.7, 0.8])


def test_without_a_number_calls_grow_to_half_a_second():
    full = Counter(seconds_per_step=0.01)
    loop.run_pass([segments.Segment(200, 1, full, None)], ZERO, clock=lambda: full.now)
    assert full.calls == [4, 16, 50, 50, 50, 30]


def test_a_pass_goes_on_where_it_stood():
    full, last = Counter(), Counter()
    both = [segments.Segment(7, 16, full, None), segments.Segment(2, 5, last, None)]
    whole = loop.run_pass(both, ZERO, clock=lambda: full.now + last.now)
    for num_steps in range(10):
        num_examples = min(num_steps, 7) * 16 + max(num_steps - 7, 0) * 5
        sums = 0.5 * num_steps, 2 * num_steps, num_examples, 3 * num_steps
        totals = metrics.Totals(*sums)
        start = PassProgress(num_steps, totals, seconds=0.1 * num_steps)
        full.calls, last.calls, full.now, last.now = [], [], 100.0, 0.0
        reached = loop.run_pass(
            both,
            step_loop.StepTotals(
                0.5 * num_steps, 2 * num_steps, num_steps, 0, 3 * num_steps
            ),
            start=start,
            clock=lambda: full.now + last.now,
        )
        assert sum(full.calls) + sum(last.calls) == 9 - num_steps
        assert reached.totals == whole.totals and reached.num_steps == 9
        assert reached.seconds == pytest.approx(whole.seconds)


@pytest.mark.parametrize("good_steps", [0, 3, 8])
def test_a_step_that_is_not_taken_ends_the_pass(good_steps):
    full = Counter(good_steps=good_steps)
    with pytest.raises(loop.NotFiniteError) as stopped:
        loop.run_pass([segments.Segment(9, 2, full, None)], ZERO, steps_per_loop=2)
    assert stopped.value.num_steps == good_steps
    assert len(full.calls) == good_steps // 2 + 1


def test_every_call_is_guarded():
    seen, full = [], Counter()

    @contextlib.contextmanager
    def note(name, segment):
        seen.append((name, segment, sum(full.calls)))
        yield
        seen.append((f"end of {name}", sum(full.calls)))

    part = segments.Segment(4, 1, full, None)
    guards = [functools.partial(note, "a"), functools.partial(note, "b")]
    loop.run_pass([part], ZERO, steps_per_loop=3, guards=guards)
    assert seen == [
        ("a", part, 0), ("b", part, 0), ("end of b", 3), ("end of a", 3),
        ("a", part, 3), ("b", part, 3), ("end of b", 4), ("end of a", 4),
    ]  # fmt: skip


def test_a_call_that_was_stopped_counts_the_steps_that_it_took():
    full, seen = Counter(good_steps=5), []

    def end(reached):
        seen.append((reached.num_steps, reached.totals))
        raise EOFError

    part = segments.Segment(9, 2, full, None)
    with pytest.raises(EOFError):
        loop.run_pass(
            [part],
            ZERO,
            steps_per_loop=9,
            on_call=end,
            is_asked_to_stop=lambda: True,
        )
    assert seen == [(5, metrics.Totals(2.5, 10, 10, 15))]


def test_a_step_that_is_not_taken_is_no_answer_to_a_request_to_stop():
    """Such a call takes a step at least. Without this the pass would never end."""
    part = segments.Segment(9, 2, Counter(good_steps=0), None)
    with pytest.raises(loop.NotFiniteError):
        loop.run_pass([part], ZERO, is_asked_to_stop=lambda: True)


def test_tracing_takes_no_step():
    full = Counter()
    loop.trace([segments.Segment(9, 2, full, None)], ZERO)
    assert full.calls == [0]


def test_periodic_calls_come_after_every_so_many_steps_over_all_passes():
    full, seen = Counter(), []

    def note(name):
        return lambda steps, point: seen.append((name, steps, point.num_steps))

    periodics = [loop.Periodic(5, note("a")), loop.Periodic(6, note("b"), steps=4)]
    for _ in range(2):
        loop.run_pass(
            [segments.Segment(7, 1, full, None)],
            ZERO,
            steps_per_loop=4,
            periodics=periodics,
        )
    assert full.calls == [2, 3, 2, 1, 2, 4]
    assert seen == [("b", 6, 2), ("a", 5, 5), ("b", 12, 1), ("a", 10, 3), ("b", 18, 7)]
