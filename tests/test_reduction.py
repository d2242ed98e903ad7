"""The fixed tree: every cut of its leaves adds in the same order."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from helpers import make_strategy

from tfmirror.parallel import all_reduce, microbatches, reduction, runtime


def cuts(num_leaves, num_replicas):
    """Yields every way to share the leaves out, empty shares included."""
    for ends in itertools.combinations_with_replacement(
        range(num_leaves + 1), num_replicas - 1
    ):
        bounds = (0, *ends, num_leaves)
        yield tuple(b - a for a, b in itertools.pairwise(bounds))


def expression(block, sums, num_leaves):
    """Returns the order in which tree_sum adds, written out: "((a+b)+c)"."""

    class Term(str):
        def __add__(self, other):
            return Term(f"({self[:]}+{other[:]})")

    terms = {key: [Term(value)] for key, value in sums.items()}
    original = reduction.tf.nest.map_structure
    reduction.tf.nest.map_structure = lambda _, a, b: [a[0] + b[0]]
    try:
        return str(reduction.tree_sum(block, terms, num_leaves)[0])
    finally:
        reduction.tf.nest.map_structure = original


def order_of(shares, num_leaves):
    """Returns the whole order of additions, inside replicas and across them."""
    plan = microbatches.BatchPlan(0, 1, (1,) * num_leaves, shares)
    sums = {}
    for r in range(len(shares)):
        leaves = {(k, 1): str(k) for k in plan.microbatches_of(r)}
        for block in reduction.aligned_subtrees(plan.microbatches_of(r), num_leaves):
            sums[block] = expression(block, leaves, num_leaves)
    return expression((0, reduction.tree_size(num_leaves)), sums, num_leaves)


@pytest.mark.parametrize("num_leaves", range(1, 10))
@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_every_cut_adds_in_the_same_order(num_leaves, num_replicas):
    orders = {order_of(shares, num_leaves) for shares in cuts(num_leaves, num_replicas)}
    assert len(orders) == 1
    (order,) = orders
    assert sorted(c for c in order if c.isdigit()) == [
        str(k) for k in range(num_leaves)
    ]


def test_the_order_is_the_balanced_tree():
    assert order_of((3, 2), 5) == "(((0+1)+(2+3))+4)"
    assert order_of((1,) * 8, 8) == "(((0+1)+(2+3))+((4+5)+(6+7)))"


@pytest.mark.parametrize(
    ("leaves", "num_leaves", "expected"),
    [
        (range(0, 8), 8, [(0, 8)]),
        (range(0, 5), 8, [(0, 4), (4, 1)]),
        (range(5, 8), 8, [(5, 1), (6, 2)]),
        (range(1, 7), 8, [(1, 1), (2, 2), (4, 2), (6, 1)]),
        (range(3, 5), 5, [(3, 1), (4, 4)]),  # reaches past the last leaf
        (range(0, 5), 5, [(0, 8)]),
        (range(2, 2), 5, []),
        (range(5, 5), 5, []),
        (range(0, 1), 1, [(0, 1)]),
    ],
)
def test_aligned_blocks(leaves, num_leaves, expected):
    assert reduction.aligned_subtrees(leaves, num_leaves) == expected


@pytest.mark.parametrize("shares", [(5,), (3, 2), (0, 5), (2, 0, 3), (1, 1, 1, 1, 1)])
def test_finish_tree_gives_every_replica_the_bits_of_the_tree(shares):
    """NumPy adds the same five float32 numbers as ((0+1)+(2+3))+4."""
    runtime.disable_arithmetic_optimizer()
    values = np.array([1e8, 1.5, -1e8, 3.25, 0.1], np.float32)
    v = values
    expected = ((v[0] + v[1]) + (v[2] + v[3])) + v[4]
    assert expected != np.float32(v.astype(np.float64).sum())  # the order matters
    strategy = make_strategy(len(shares))
    plan = microbatches.BatchPlan(0, 1, (1,) * 5, shares)
    blocks = [
        reduction.aligned_subtrees(plan.microbatches_of(r), 5)
        for r in range(len(shares))
    ]

    def replica():
        context = tf.distribute.get_replica_context()
        me = int(tf.get_static_value(context.replica_id_in_sync_group))
        leaves = {
            (k, 1): (tf.constant(values)[k], [tf.constant(values)[k] * 2])
            for k in plan.microbatches_of(me)
        }
        own = [reduction.tree_sum(block, leaves, 5) for block in blocks[me]]
        total = reduction.finish_tree(own, blocks, 5, structure=(0.0, [0.0]))
        return tf.nest.map_structure(tf.identity, total)

    single, (double,) = tf.function(lambda: strategy.run(replica), autograph=False)()
    for value, factor in ((single, 1), (double, 2)):
        copies = strategy.experimental_local_results(value)
        assert [copy.numpy() for copy in copies] == [factor * expected] * len(shares)


@pytest.mark.parametrize(
    ("sizes", "most", "packs"),
    [
        ([3, 4, 5], 12, [[0, 1, 2]]),
        ([3, 4, 5], 11, [[0, 1], [2]]),
        ([3, 40, 5, 6], 11, [[0], [1], [2, 3]]),  # one is larger by itself
        ([3, 4, 5], 1, [[0], [1], [2]]),
        ([0, 0], 1, [[0, 1]]),
        ([], 1, []),
    ],
)
def test_packs_are_of_neighbours_and_no_larger_than_asked(sizes, most, packs):
    assert all_reduce.pack(sizes, most) == packs


@pytest.mark.parametrize("pack_bytes", [1, 40, 10**6])
def test_packed_tensors_add_up_to_the_same_bits(pack_bytes):
    strategy = make_strategy(3)
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.normal(size=(3, *shape)).astype(np.float32)

    values = {"a": draw(2, 3), "b": [draw(5), draw()]}

    def replica(pack_bytes):
        context = tf.distribute.get_replica_context()
        me = int(tf.get_static_value(context.replica_id_in_sync_group))
        mine = tf.nest.map_structure(lambda v: tf.constant(v[me]), values)
        return all_reduce.all_reduce(mine, pack_bytes)

    def total(pack_bytes):
        run = tf.function(lambda: strategy.run(replica, args=(pack_bytes,)))
        return tf.nest.map_structure(strategy.experimental_local_results, run())

    packed, plain = total(pack_bytes), total(0)
    tf.nest.assert_same_structure(packed, plain)
    for name, found, expected in (
        ("a", packed["a"], plain["a"]),
        ("b 0", packed["b"][0], plain["b"][0]),
        ("b 1", packed["b"][1], plain["b"][1]),
    ):
        assert len(found) == 3, name
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(packed["a"][1], values["a"].sum(axis=0), rtol=1e-5)
