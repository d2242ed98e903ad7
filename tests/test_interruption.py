"""Signals and hanging steps, on real processes."""

import signal
import subprocess
import sys

import pytest

# Waits in one long call, as into TensorFlow, during which no Python handler runs.
WATCHED = """
import ctypes, sys
from tfmirror.training import interruption
with interruption.Watch() as watch:
    print("ready", flush=True)
    while not watch.is_asked:
        ctypes.CDLL(None).usleep(50_000)
    print("asked", flush=True)
    if sys.argv[1] == "go on":
        while True:
            ctypes.CDLL(None).sleep(60)
print("left in peace", flush=True)
"""


def start(program, *arguments):
    """Starts a Python process whose output can be read; returns it."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_nothing_else_happens(number):
    with start(WATCHED, "end") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("asked\nleft in peace\n", "", 0)


def test_the_second_signal_ends_the_process_within_a_long_call():
    with start(WATCHED, "go on") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


GUARDED = """
import sys, time
from tfmirror.training import watchdog
dog = watchdog.Watchdog(float(sys.argv[1]), lambda: ["replica 0: 12 steps taken"])
with dog.guard(num_steps=2):
    time.sleep(0.4)
print("in time")
"""


@pytest.mark.parametrize("seconds_per_step", ["0", "30"])
def test_a_step_in_time_is_left_alone(seconds_per_step):
    with start(GUARDED, seconds_per_step) as process:
        out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("in time\n", "", 0)


def test_a_step_that_hangs_is_reported_and_given_up():
    with start(GUARDED, "0.05") as process:
        out, err = process.communicate(timeout=30)
    assert process.returncode == 1 and out == ""
    assert "2 training steps have taken more than 0.1 s (step_timeout)" in err
    assert "replica 0: 12 steps taken" in err
    assert 'File "<string>", line 6 in <module>' in err
