"""Signals and hanging steps, on real processes."""

import os
import pathlib
import pty
import re
import signal
import subprocess
import sys

import pytest

from tfmirror import command
from tfmirror.rundir import checkpoints
from tfmirror.training import interruption, watchdog

ROOT = pathlib.Path(__file__).resolve().parents[1]
HANGS = 600  # seconds after which a test fails instead of waiting for ever
NAMES = [number.name for number in interruption.SIGNALS]

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


@pytest.fixture(autouse=True)
def heeds_signals():
    """Heeds the signals that nohup and a shell's background jobs ignore.

    So do the processes that a test starts.
    """
    numbers = [signal.Signals[name] for name in NAMES]
    before = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        if handler == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def start(program, *arguments, **options):
    """Starts a Python process as a user would; its output can be read."""
    environment = {k: v for k, v in os.environ.items() if k != command.LOG_LEVEL}
    environment |= options.pop("variables", {})
    program = ["-c", program] if "\n" in program else ["-m", program]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        env=environment,
        cwd=ROOT,
        **(streams | options),
    )


def end_of(process):
    """Returns (output, errors, exit code)."""
    out, err = process.communicate(timeout=HANGS)
    return out, err, process.returncode


@pytest.mark.parametrize("name", NAMES)
def test_the_first_signal_is_noted_and_nothing_else_happens(name):
    with start(WATCHED, "end") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[name])
        assert end_of(process) == ("asked\nleft in peace\n", "", 0)


def test_the_second_signal_ends_the_process_within_a_long_call():
    with start(WATCHED, "go on") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        assert end_of(process)[2] == 130


def test_a_signal_that_was_ignored_from_the_start_stays_ignored():
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with start(WATCHED, "end", preexec_fn=ignore) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)  # a second one would end it with 130
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == ("asked\nleft in peace\n", "", 0)


def test_what_is_to_be_called_is_called_at_once_and_only_within_its_block():
    calls = []
    with interruption.Watch() as watch:
        with watch.calling(lambda: calls.append("early")):
            pass
        assert not watch.is_asked
        signal.raise_signal(signal.SIGHUP)
        while not watch.is_asked:
            pass
        with watch.calling(lambda: calls.append("asked before")):
            assert calls == ["asked before"]
    assert calls == ["asked before"]


def test_handlers_are_those_of_before_afterwards():
    before = [signal.getsignal(number) for number in interruption.SIGNALS]
    with interruption.Watch(raises=True), interruption.Watch():
        pass
    assert [signal.getsignal(number) for number in interruption.SIGNALS] == before


# What every command does: its flags, TensorFlow, its own work.
COMMAND = """
import ctypes, sys
from tfmirror import command, config
class Dropping:
    def __del__(self):  # Python drops what is raised here
        print("ready", flush=True)
        ctypes.CDLL(None).sleep(60)
        for _ in range(1000): pass
def main(settings):
    if "drops" in sys.argv[0]:
        Dropping()
    if "turns" in sys.argv[0]:
        try:
            wait()
        except KeyboardInterrupt:
            raise ImportError("an extension failed to load")
    wait()
def wait():
    print("ready", flush=True)
    while True:
        ctypes.CDLL(None).usleep(50_000)
sys.argv[0] = sys.argv.pop()
command.run(main, config.TrainConfig, "", check=config.check, needs_tensorflow=False)
"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["works", "turns it into another error"])
def test_a_signal_ends_a_command_with_code_130_and_one_line(way, name):
    with start(COMMAND, way) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[name])
        by_name = "" if way.startswith("turns") else f" by {name}"
        assert end_of(process) == ("", f"error: interrupted{by_name}\n", 130)


def test_a_signal_whose_exception_python_drops_ends_the_command_too():
    with start(COMMAND, "drops it") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == ("", "error: interrupted by SIGTERM\n", 130)


def test_every_command_starts_the_way_that_handles_signals():
    """By command.run, as the tests above do."""
    programs = [
        path
        for path in [*ROOT.glob("tfmirror/*.py"), *ROOT.glob("experiments/*.py")]
        if '__name__ == "__main__"' in path.read_text()
    ]
    assert len(programs) > 10
    for path in programs:
        main = path.read_text().split('__name__ == "__main__"')[1]
        assert "command.run(" in main, path


@pytest.mark.parametrize("name", NAMES)
def test_a_signal_during_the_import_of_tensorflow_shows_none_of_its_lines(
    name, tmp_path
):
    (tmp_path / "tensorflow.py").write_text(
        "import os, time\n"
        "os.write(2, b'a line from C++\\n')\n"
        "os.write(1, b'ready\\n')\n"
        "time.sleep(3600)\n"
    )
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    workdir = f"--workdir={tmp_path}/run"
    with start("tfmirror.train", workdir, variables=paths) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[name])
        assert end_of(process) == ("", f"error: interrupted by {name}\n", 130)
    assert not (tmp_path / "run").exists()


# An epoch is one call of 719 steps, so long ones that a signal comes within one.
RUN = [
    "--gpus=2", "--global_batch_size=2", "--limit_eval_examples=2", "--epochs=100000",
    "--steps_per_loop=100000", "--learning_rate=0.001",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.training
def test_a_signal_ends_a_call_of_many_steps_after_the_current_one(tmp_path):
    with start("tfmirror.train", *RUN, f"--workdir={tmp_path}") as process:
        while not process.stdout.readline().startswith("epoch "):
            pass
        process.send_signal(signal.SIGHUP)
        _, err, code = end_of(process)
    found = re.match(r"error: interrupted after step (\d+) of epoch (\d+); wrote ", err)
    assert code == 130 and err.count("\n") == 1 and found, err
    num_steps, epoch = map(int, found.groups())
    assert 0 < num_steps < 719 and epoch > 1
    state, _ = checkpoints.latest(tmp_path / "checkpoints", pytest.fail)
    assert state.position.point.num_steps == num_steps
    assert state.position.num_epochs == epoch - 1


@pytest.mark.slow
@pytest.mark.training
def test_a_closed_terminal_ends_a_run_with_a_checkpoint(tmp_path):
    """Its writes fail from then on, before the signal or after."""
    ours, theirs = pty.openpty()
    wait = f"\nimport os, fcntl, termios\nfcntl.ioctl({theirs}, termios.TIOCSCTTY, 0)\n"
    program = (
        wait + "import runpy\nrunpy.run_module('tfmirror.train', None, '__main__')\n"
    )
    with start(
        program,
        *RUN,
        f"--workdir={tmp_path}",
        start_new_session=True,
        pass_fds=[theirs],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        while b"train loss" not in shown:
            shown += os.read(ours, 1000)
        os.close(ours)
        assert process.wait(HANGS) == 130, shown
    state, _ = checkpoints.latest(tmp_path / "checkpoints", pytest.fail)
    assert state.position.point.num_steps > 0


# Steps that hang at the end of a call, after three that do not.
GUARDED = """
import sys, time
import numpy as np
import tensorflow as tf
from tfmirror.parallel import microbatches, step_loop
from tfmirror.training import watchdog
tf.config.threading.set_inter_op_parallelism_threads(1)
begun = []
def hang():
    begun.append(1)
    time.sleep(3600 if len(begun) == 4 and sys.argv[2] == "hangs" else 0)
    return np.float32(1)
def step(images, labels):
    loss = tf.ensure_shape(tf.numpy_function(hang, [], tf.float32), [])
    return step_loop.StepResult(loss, loss, goes_on=loss > 0)
(plan,) = microbatches.plan_epoch(2, 2, (1,), in_fixed_tree=False)
steps = step_loop.make_step_loop(step, plan)
batches = iter(tf.data.Dataset.from_tensors((0, 0)).repeat())
def describe():
    yield f"replica 0: {steps.num_finished()} steps taken"
steps(batches, tf.constant(0, tf.int64), step_loop.zero_totals())
dog = watchdog.Watchdog(float(sys.argv[1]), describe)
with dog.guard(steps.num_finished):
    steps(batches, tf.constant(10, tf.int64), step_loop.zero_totals())
print("in time")
"""


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("seconds", ["0", "3600"])
def test_steps_in_time_are_left_alone(seconds):
    with start(GUARDED, seconds, "ends") as process:
        out, _, code = end_of(process)
    assert (out, code) == ("in time\n", 0)


@pytest.mark.training
def test_a_step_that_hangs_is_reported_and_given_up():
    with start(GUARDED, "3", "hangs") as process:
        out, err, code = end_of(process)
    assert code == 1 and out == ""
    assert "error: a step has taken more than 3 s (step_timeout)" in err
    assert "replica 0: 3 steps taken" in err
    assert 'File "<string>", line 24 in <module>' in err


class GaveUpError(Exception):
    """Stands in for the end of the process."""


def look(monkeypatch, seconds, looks):
    """Lets a watchdog look at a call; returns how often it did before it gave up.

    Args:
      looks: (time, finished steps) at each look.
    """
    num_looks = 0

    class Ended:
        def wait(self, pause):
            nonlocal num_looks
            assert 0 < pause <= seconds / 20
            num_looks += 1
            return num_looks == len(looks)

    def now():
        return looks[num_looks][0]

    def give_up(self):
        raise GaveUpError

    monkeypatch.setattr(watchdog.time, "monotonic", now)
    monkeypatch.setattr(watchdog.Watchdog, "_give_up", give_up)
    dog = watchdog.Watchdog(seconds, lambda: [])
    try:
        dog._watch(lambda: looks[num_looks][1], Ended())
    except GaveUpError:
        return num_looks
    return None


def test_the_limit_is_that_of_a_step_however_long_a_call_is(monkeypatch):
    slow = [(59.0 * k, k) for k in range(1000)]
    assert look(monkeypatch, 60.0, slow) is None
    hangs = [*slow[:500], *((499 * 59.0 + t, 499) for t in range(1, 1000))]
    # The last step was seen at look 499: 61 seconds later are more than 60.
    assert look(monkeypatch, 60.0, hangs) == 499 + 61
    assert look(monkeypatch, 60.0, [(t * 1.0, 7) for t in range(100)]) == 61
