"""What runs leave in memory: in one process there may be many."""

import gc
import pathlib
import subprocess
import sys
import weakref

import pytest
import tensorflow as tf

from tfmirror.parallel import all_reduce

MIB = 2**20


def test_a_graph_with_an_all_reduce_is_freed():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice()
    )

    def add():
        return all_reduce.all_reduce([tf.ones([3]), tf.ones([2])], pack_bytes=0)

    function = tf.function(lambda: strategy.run(add)).get_concrete_function()
    total, _ = strategy.experimental_local_results(function()[0])
    assert total.numpy().tolist() == [2, 2, 2]
    graph = weakref.ref(function.graph)
    del function
    gc.collect()
    assert graph() is None


PIPELINES = """
import pathlib
import numpy as np
from tfmirror.data import pipeline
from tfmirror.data.examples import Examples

def resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096

def first_batch(examples):
    batches = pipeline.per_replica_batches(
        examples, first=0, per_replica_batch_sizes=(8,), batches_per_epoch=1,
        shuffle_seed=0,
    )
    iterator = iter(batches)
    next(iterator)
    return iterator

def make_examples(number):
    return Examples(np.ones((number, 32, 32, 3), np.uint8), np.ones(number, np.int32))

kept = [first_batch(make_examples(8))]
examples = make_examples(100_000)
before = resident()
kept += [first_batch(examples) for _ in range(4)]
print((resident() - before) / examples.images.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/statm").exists(), reason="reads Linux's /proc"
)
def test_four_pipelines_hold_no_copy_of_the_examples(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", PIPELINES],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert float(process.stdout) < 0.1


DELETED_WHILE_READING = """
import numpy as np
import tensorflow as tf
from tfmirror.data import pipeline
from tfmirror.data.examples import Examples
from tfmirror.parallel import devices

devices.set_up(2, "cpu")
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
examples = Examples(
    np.ones((60_000, 28, 28, 1), np.uint8), np.ones(60_000, np.int32)
)
batches = pipeline.per_replica_batches(
    examples, first=0, per_replica_batch_sizes=(20_000, 20_000), batches_per_epoch=1
)
for _ in range(10):
    distribute = strategy.distribute_datasets_from_function
    iterator = iter(distribute(lambda context: batches))
    next(iterator)
    del iterator
print("alive")
"""


@pytest.mark.slow
def test_an_iterator_can_be_deleted_while_it_reads(tmp_path):
    """TensorFlow 2.21 reads freed memory if it has not rewritten the pipeline."""
    process = subprocess.run(
        [sys.executable, "-c", DELETED_WHILE_READING],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (process.returncode, process.stdout) == (0, "alive\n")


PROGRAM = """
import gc, pathlib, sys, tempfile
from tfmirror import config
from tfmirror.training import run

def resident():
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096

num_runs, num_warm_up, microbatches = map(int, sys.argv[1:])
folder = pathlib.Path(tempfile.mkdtemp(dir="."))
sizes = []
for k in range(num_runs):
    run.train(config.TrainConfig(
        gpus=2, device_type="cpu", epochs=1, microbatches=microbatches,
        limit_train_examples=130, limit_eval_examples=60, workdir=str(folder / str(k)),
    ))
    sizes.append(resident())
print(max(sizes[num_warm_up:]) - sizes[num_warm_up - 1])
"""


@pytest.mark.hours
@pytest.mark.parametrize("microbatches", [0, 2])
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/statm").exists(), reason="reads Linux's /proc"
)
def test_fifty_runs_in_one_process_take_no_more_than_30_mb(microbatches, tmp_path):
    """After five, in which TensorFlow's pools fill. Each took 13 MB more once."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, "50", "5", str(microbatches)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert int(process.stdout.splitlines()[-1]) < 30 * MIB
