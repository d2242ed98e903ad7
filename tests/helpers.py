"""Small models, data and references that several tests use."""

import gzip
import struct

import keras
import numpy as np
import tensorflow as tf

from tfmirror import command, models
from tfmirror.data import datasets, idx, idx_folder
from tfmirror.parallel import (
    devices,
    microbatches,
    optimizers,
    reduction,
    runtime,
)

NUM_CLASSES = 10


def make_strategy(num_replicas):
    """Returns a MirroredStrategy on so many logical CPU devices."""
    strategy = devices.make_strategy(devices.set_up(num_replicas, "cpu"))
    assert strategy.num_replicas_in_sync == num_replicas
    return strategy


def watch_threads(monkeypatch, max_concurrent=2):
    """Lets replicas compute so many microbatches at a time.

    Returns two lists that fill up later: the max_concurrent of each
    reduction.compile_sums, and the microbatches of each use_one_thread_per_op.
    """
    compiled, kept_apart = [], []
    compile_sums = reduction.compile_sums

    def compile_and_note(*args, **kwargs):
        compiled.append(kwargs["max_concurrent"])
        return compile_sums(*args, **kwargs)

    monkeypatch.setattr(reduction, "compile_sums", compile_and_note)
    monkeypatch.setattr(
        runtime, "max_concurrent_microbatches", lambda chosen: max_concurrent
    )
    monkeypatch.setattr(
        runtime, "use_one_thread_per_op", lambda _, number: kept_apart.append(number)
    )
    return compiled, kept_apart


class FakeThreads:
    """tf.config.threading of a process in which TensorFlow has not started."""

    def __init__(self, monkeypatch):
        self.intra, self.inter = 0, 0
        for kind in ("intra", "inter"):
            name = f"{kind}_op_parallelism_threads"
            monkeypatch.setattr(
                tf.config.threading,
                f"get_{name}",
                lambda kind=kind: getattr(self, kind),
            )
            monkeypatch.setattr(
                tf.config.threading,
                f"set_{name}",
                lambda number, kind=kind: setattr(self, kind, number),
            )


def make_examples(num_examples, shape=(28, 28, 1), seed=0, num_classes=NUM_CLASSES):
    """Returns Examples of which no two are equal."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (num_examples, *shape)).astype(np.uint8)
    labels = rng.integers(0, num_classes, num_examples).astype(np.int32)
    return datasets.Examples(images, labels)


def build_cnn(strategy, seed=0):
    """Returns the cnn with the weights of `seed`."""
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        return models.build("cnn", (28, 28, 1), NUM_CLASSES)


def build_linear(strategy, seed=0, shape=(4, 4, 1), num_classes=NUM_CLASSES):
    """Returns softmax regression without bias, whose gradient NumPy can tell."""
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        return keras.Sequential(
            [
                keras.Input(shape),
                keras.layers.Flatten(),
                keras.layers.Dense(num_classes, use_bias=False),
            ]
        )


def build_optimizer(strategy, model, learning_rate=0.1, **settings):
    """Returns the Update of plain SGD for `model`, or of what `settings` say."""
    extras = {k: settings.pop(k) for k in ("ema_decay", "scales_loss") if k in settings}
    name = settings.pop("name", "sgd")
    with strategy.scope():
        optimizer = optimizers.make_optimizer(name, learning_rate, **settings)
        return optimizers.MirroredOptimizer(optimizer, model, **extras)


def make_plan(per_replica_batch_sizes, num_batches=1):
    """Returns the BatchPlan of one microbatch a replica, of these sizes."""
    return microbatches.BatchPlan(
        0, num_batches, per_replica_batch_sizes, (1,) * len(per_replica_batch_sizes)
    )


def linear_reference(weights, examples):
    """Returns (loss sum, correct, gradient of the loss sum) of softmax regression.

    NumPy in float64: with p the softmax of x W, the gradient is x^T (p - onehot).
    """
    x = examples.images.reshape(len(examples), -1) / 255.0
    logits = x @ weights.astype(np.float64)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    onehot = np.eye(NUM_CLASSES)[examples.labels]
    loss_sum = -np.log(p[onehot == 1]).sum()
    return (
        loss_sum,
        int((logits.argmax(axis=1) == examples.labels).sum()),
        x.T @ (p - onehot),
    )


def replica_copies(strategy, variable):
    """Returns the copies of a Keras variable, [N, ...]."""
    copies = strategy.experimental_local_results(variable.value)
    return np.stack([copy.numpy() for copy in copies])


def idx_bytes(array, type_code=idx.UNSIGNED_BYTE):
    """Returns the IDX file of a uint8 array."""
    header = struct.pack(
        f">BBBB{array.ndim}I", 0, 0, type_code, array.ndim, *array.shape
    )
    return header + array.tobytes()


def write_idx_folder(folder, train, evaluation, joint="-", packed=True):
    """Writes the four IDX files of two Examples; returns the folder as text."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in (("train", train), ("eval", evaluation)):
        arrays = {"images": examples.images[..., 0], "labels": examples.labels}
        for kind, array in arrays.items():
            stem, ending = idx_folder.STEMS[split, kind], f"idx{array.ndim}-ubyte"
            content = idx_bytes(array.astype(np.uint8))
            if packed:
                ending, content = ending + ".gz", gzip.compress(content)
            (folder / f"{stem}{joint}{ending}").write_bytes(content)
    return str(folder)


def faults(content, other):
    """Yields (what was done, bytes) for each of 76 faults of a file.

    Args:
      content: of the whole file.
      other: of another file of the same kind.
    """
    rng = np.random.default_rng(0)
    for k in range(20):
        yield f"cut at {k}/20", content[: len(content) * k // 20]
    yield "cut by one byte", content[:-1]
    for bit in rng.choice(8 * len(content), 50, replace=False):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << (bit % 8)
        yield f"bit {bit} flipped", bytes(changed)
    yield "emptied", b""
    yield "zeros", bytes(len(content))
    yield "bytes added", content + b"\0"
    yield "another file's", other
    yield "text", b"{}" * 100


def make_call(main, settings_class, check):
    """Returns a function of (capsys, *arguments) that calls a command.

    It gives (exit code, standard output, standard error).
    """

    def call(capsys, *argv):
        code = command.run_and_return_exit_code(
            main, settings_class, "", check=check, argv=[str(a) for a in argv]
        )
        return (code, *capsys.readouterr())

    return call
