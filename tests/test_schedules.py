"""Learning rates over a run, against closed forms."""

import math

import pytest

from tfmirror import config
from tfmirror.training import schedules


def rates(name, num_steps=100, warmup_steps=0):
    schedule = schedules.make_schedule(
        name, 0.5, num_steps=num_steps, warmup_steps=warmup_steps
    )
    return [float(schedule(step)) for step in range(num_steps + 1)]


def test_constant_is_a_number():
    assert schedules.make_schedule("constant", 0.5, num_steps=100) == 0.5


def test_constant_with_warmup_rises_linearly_and_stays():
    found = rates("constant", warmup_steps=20)
    assert found[:21] == pytest.approx([0.5 * step / 20 for step in range(21)])
    assert found[20:] == pytest.approx([0.5] * 81)


def test_cosine_falls_to_zero():
    expected = [0.25 * (1 + math.cos(math.pi * step / 100)) for step in range(101)]
    assert rates("cosine") == pytest.approx(expected, abs=1e-6)


def test_cosine_with_warmup():
    found = rates("cosine", warmup_steps=20)
    assert found[10] == pytest.approx(0.25) and found[20] == pytest.approx(0.5)
    assert found[60] == pytest.approx(0.25) and found[100] == pytest.approx(0, abs=1e-6)


def test_one_cycle_starts_at_a_25th_peaks_at_30_percent_and_ends_near_zero():
    found = rates("one_cycle")
    assert found[0] == pytest.approx(0.02)
    assert max(found) == found[30] == pytest.approx(0.5)
    assert found[65] == pytest.approx(0.25, rel=1e-3)
    assert found[100] == pytest.approx(0.5 * 4e-6, rel=1e-2)


def resolved(**settings):
    given = config.TrainConfig(learning_rate=0.5, **settings)
    return config.resolve(given, num_replicas=1)


def test_a_schedule_stretched_by_more_epochs_says_the_rate_before_and_after():
    """At the end of 10 epochs the cosine is 0; half way through 20 it is 0.25."""
    (line,) = schedules.changes(10, resolved(schedule="cosine", epochs=20), 7, 70)
    assert line == (
        "the cosine schedule now spans 20 epochs instead of 10: after step 70 the "
        "learning rate was 0, now 0.25"
    )


def test_a_schedule_that_is_not_stretched_says_nothing():
    same = resolved(schedule="cosine", epochs=20)
    assert schedules.changes(20, same, 7, 70) == []
    assert schedules.changes(10, resolved(epochs=20), 7, 70) == []
