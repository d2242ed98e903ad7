"""Microbatches in a call of calls: each once, in the tree's order, few traces."""

import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from helpers import build_linear, make_examples, make_strategy

from tfmirror.parallel import reduction

HANGS = 600  # seconds after which a test fails instead of waiting for ever


def rounding_sums(seen):
    """Returns a function of a microbatch whose sums round, and that notes its sizes."""

    def sums(weights, state, images, labels, draw, scale):
        seen.append(images.shape[0])
        total = tf.reduce_sum(tf.cast(images, tf.float32)) / 3.0 * scale
        return {"sum": total, "draws": tf.one_hot(draw, 100), "labels": labels[:0]}

    return sums


def compile_for(seen, max_concurrent=1):
    """Returns reduction.compile_sums of it, and the model's values."""
    return compile_function(rounding_sums(seen), max_concurrent)


def compile_function(function, max_concurrent):
    """Returns reduction.compile_sums of a function, and the model's values."""
    model = build_linear(make_strategy(1))
    weights = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
    return reduction.compile_sums(
        function, model, with_loss_scale=True, max_concurrent=max_concurrent
    ), weights


@pytest.mark.parametrize(
    "max_concurrent",
    [1, 2, *(pytest.param(n, marks=pytest.mark.training) for n in (3, 4, 99))],
)
@pytest.mark.parametrize(
    "sizes", [(3,), (2, 2), (3, 3, 2), (2, 2, 2, 1, 1), (1,) * 7, (2, 0, 0, 0)]
)
def test_the_sum_is_that_of_numpy_in_the_order_of_the_tree(sizes, max_concurrent):
    sums, weights = compile_for([], max_concurrent)
    examples = make_examples(sum(sizes), shape=(4, 4, 1))
    found = sums(sizes, weights, [], examples.images, examples.labels, 40, 0.1)
    ends = np.cumsum(sizes)
    terms = []
    for begin, end in zip(ends - sizes, ends, strict=True):
        total = np.float32(examples.images[begin:end].astype(np.float32).sum())
        terms.append(total / np.float32(3) * np.float32(0.1))
    assert len({*terms} - {0}) == sum(size > 0 for size in sizes)  # all of them differ
    while len(terms) > 1:
        pairs = [terms[k : k + 2] for k in range(0, len(terms), 2)]
        terms = [np.float32(pair[0] + pair[-1] * (len(pair) > 1)) for pair in pairs]
    assert found["sum"].numpy() == terms[0]
    draws = np.flatnonzero(found["draws"])
    np.testing.assert_array_equal(draws, np.arange(40, 40 + len(sizes)))
    assert found["draws"].numpy().max() == 1  # each microbatch once


@pytest.mark.training
@pytest.mark.slow
def test_so_many_microbatches_are_computed_at_a_time():
    """With eight threads for operations, whatever the machine has."""
    code = (
        "import test_subtrees\n"
        "from tfmirror.parallel import runtime\n"
        "runtime.set_threads(1, 8)\n"
        "for n, expected in {1: 1, 2: 2, 3: 2, 4: 4, 99: 8}.items():\n"
        "    print(n, test_subtrees.most_at_a_time(n, expected))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=pathlib.Path(__file__).parent,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "1 1\n2 2\n3 2\n4 4\n99 8\n"


def most_at_a_time(max_concurrent, expected):
    """Returns how many of eight microbatches were computed at a time, at most.

    Args:
      expected: how many are expected: none ends before so many run at the same time,
        however slow the machine is.
    """
    running, lock, counts = set(), threading.Lock(), []
    are_enough = threading.Event()

    def wait(draw):
        with lock:
            running.add(int(draw))
            counts.append(len(running))
            if len(running) >= expected:
                are_enough.set()
        assert are_enough.wait(HANGS), f"only {max(counts)} at a time"
        time.sleep(0.2)  # for one more to begin, if it may: never a reason to fail
        with lock:
            running.discard(int(draw))
        return np.float32(0)

    def function(weights, state, images, labels, draw, scale):
        return tf.numpy_function(wait, [draw], tf.float32, stateful=False)

    sums, weights = compile_function(function, max_concurrent)
    examples = make_examples(8, shape=(4, 4, 1))
    found = sums((1,) * 8, weights, [], examples.images, examples.labels, 0, 1.0)
    assert found.numpy() == 0 and len(counts) == 8
    return max(counts)


@pytest.mark.training
@pytest.mark.parametrize(
    ("sizes", "traced"), [((1,) * 64, [1]), ((2,) * 20 + (1,) * 44, [1, 2])]
)
@pytest.mark.parametrize("max_concurrent", [1, 4])
def test_many_microbatches_are_traced_once_a_size(sizes, traced, max_concurrent):
    seen = []
    sums, weights = compile_for(seen, max_concurrent)
    examples = make_examples(sum(sizes), shape=(4, 4, 1))
    found = sums(sizes, weights, [], examples.images, examples.labels, 0, 1.0)
    assert sorted(seen) == traced
    assert found["draws"].numpy().sum() == 64
