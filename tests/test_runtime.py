"""The settings of the process: threads of operations, and memory of the runtime."""

import ctypes
import resource
import subprocess
import sys

import pytest
import tensorflow as tf
from helpers import FakeThreads

from tfmirror import config, errors, hardware
from tfmirror.parallel import devices, runtime
from tfmirror.training import setup

# Frees and takes 64 MiB again and again; prints the pages that had to be mapped anew.
PROGRAM = """
import ctypes, resource, sys
from tfmirror.parallel import runtime
if sys.argv[1] == "keep":
    assert runtime.keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
size = 64 << 20
def use():
    block = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(block, 1, size)
    libc.free(block)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode):
    """Returns the page faults of PROGRAM."""
    command = [sys.executable, "-c", PROGRAM, mode]
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.mark.training
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is no glibc"
)
@pytest.mark.slow
def test_freed_memory_is_not_mapped_anew():
    pages = (64 << 20) // resource.getpagesize()
    assert faults("keep") < pages / 10
    assert faults("leave") > pages / 10  # so the other figure says something


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert runtime.keep_freed_memory() is False


def test_threads_are_set_before_tensorflow_runs_or_refused():
    tf.constant(0)
    runtime.set_threads(0, 0)  # unchanged
    with pytest.raises(errors.InputError, match="can't change once TensorFlow runs"):
        runtime.set_threads(1, 0)


@pytest.mark.training
def test_a_new_process_gets_the_threads_of_its_run():
    """The real TensorFlow, on four cores, set up as `run.train` does it."""
    code = (
        "import os\n"
        "os.sched_getaffinity = lambda pid: range(4)\n"
        "from tfmirror import config\n"
        "from tfmirror.rundir import environment\n"
        "from tfmirror.training import setup\n"
        "settings = config.TrainConfig(gpus=1, microbatches=4, inter_op_threads=3,\n"
        "    device_type='cpu')\n"
        "chosen, _ = setup.choose(settings)\n"
        "described = environment.describe(chosen)\n"
        "print(described['intra_op_threads'], described['inter_op_threads'])\n"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["1", "3"]


@pytest.mark.parametrize(
    ("settings", "intra_op_threads"),
    [
        ({"gpus": 4}, 1),
        ({"gpus": 8}, 1),
        ({"gpus": 3}, 0),  # one pool for all: the fourth core gets work too
        ({"gpus": 1}, 0),
        ({"gpus": 4, "intra_op_threads": 3}, 3),
        # Fixed microbatches: at least one for each core, or not, on any N.
        ({"gpus": 1, "microbatches": 4}, 1),
        ({"gpus": 8, "microbatches": 9}, 1),
        ({"gpus": 1, "microbatches": 3}, 0),
        ({"gpus": 3, "microbatches_per_replica": "1,1,1"}, 0),
        ({"gpus": 2, "microbatches_per_replica": "4,1"}, 1),
        ({"gpus": 1, "microbatches": 4, "intra_op_threads": 2}, 2),
    ],
)
def test_an_operation_has_one_thread_if_microbatches_fill_four_cores(
    monkeypatch, settings, intra_op_threads
):
    threads = FakeThreads(monkeypatch)
    monkeypatch.setattr(hardware, "num_cores", lambda: 4)
    setup.choose(config.TrainConfig(**settings, device_type="cpu"))
    assert threads.intra == intra_op_threads


@pytest.mark.parametrize(
    ("threads", "num_replicas", "are_stand_ins", "expected"),
    [
        ((1, 0), 1, True, 8),  # a power of two, and no core without work
        ((1, 0), 2, True, 4),
        ((1, 0), 3, True, 2),
        ((1, 0), 4, True, 2),
        ((1, 0), 6, True, 1),
        ((1, 0), 8, True, 1),
        ((1, 1), 1, True, 1),  # only one operation at a time
        ((1, 4), 2, True, 2),
        ((1, 99), 1, True, 8),
        ((0, 0), 1, True, 1),  # TensorFlow's own number: an operation has all cores
        ((6, 0), 1, True, 1),
        ((1, 0), 1, False, 1),  # a GPU has memory for one
    ],
)
def test_a_replica_computes_so_many_microbatches_at_once_that_six_cores_have_work(
    monkeypatch, threads, num_replicas, are_stand_ins, expected
):
    for kind, number in zip(("intra", "inter"), threads, strict=True):
        name = f"get_{kind}_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, name, lambda number=number: number)
    monkeypatch.setattr(hardware, "num_cores", lambda: 6)
    names = tuple(f"X:{k}" for k in range(num_replicas))
    chosen = devices.Devices(names, are_stand_ins)
    assert runtime.max_concurrent_microbatches(chosen) == expected


def test_a_process_that_runs_already_keeps_its_threads():
    tf.constant(0)
    before = tf.config.threading.get_intra_op_parallelism_threads()
    setup.choose(config.TrainConfig(gpus=8, device_type="cpu"))
    assert tf.config.threading.get_intra_op_parallelism_threads() == before != 1
