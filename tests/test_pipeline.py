"""The pipeline yields every example once per epoch, in an order set by the seed."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from helpers import make_examples

from tfmirror.data import pipeline
from tfmirror.parallel import microbatches


def take(examples, plan, num_epochs, shuffle_seed):
    """Returns [epoch][batch] -> labels of global batches, read as the loop does.

    Labels are replaced with the indices of the examples.
    """
    numbered = type(examples)(examples.images, np.arange(len(examples), dtype=np.int32))
    iterators = [
        iter(
            pipeline.per_replica_batches(
                numbered,
                first=batches.first,
                per_replica_batch_sizes=batches.per_replica_batch_sizes,
                batches_per_epoch=batches.num_batches,
                shuffle_seed=shuffle_seed,
            )
        )
        for batches in plan
    ]
    epochs = []
    for _ in range(num_epochs):
        epoch = []
        for batches, iterator in zip(plan, iterators, strict=True):
            for _ in range(batches.num_batches):
                sizes = batches.per_replica_batch_sizes
                read = list(itertools.islice(iterator, len(sizes)))
                assert [len(labels) for _, labels in read] == list(sizes)
                for images, labels in read:
                    np.testing.assert_array_equal(images, examples.images[labels])
                epoch.append(np.concatenate([labels.numpy() for _, labels in read]))
        epochs.append(epoch)
    return epochs


@pytest.mark.parametrize("num_examples", [1, 2, 3, 7, 16, 100, 1438])
def test_an_epochs_order_is_a_permutation(num_examples):
    positions = tf.range(num_examples, dtype=tf.int64)
    for seed, epoch in itertools.product((0, 1, 2**31 - 1), (0, 1)):
        order = order_of(positions, seed, epoch, num_examples)
        assert sorted(order.numpy()) == list(range(num_examples))


def order_of(positions, seed, epoch, num_examples):
    """Returns pipeline.order at `positions` of an epoch, given as an int."""
    return pipeline.order(
        positions,
        shuffle_seed=seed,
        epoch=tf.constant(epoch, tf.int64),
        num_examples=num_examples,
    )


def test_any_positions_of_an_order_can_be_computed_alone():
    whole = order_of(tf.range(50, dtype=tf.int64), 3, 2, 50)
    some = order_of(tf.range(20, 31, dtype=tf.int64), 3, 2, 50)
    np.testing.assert_array_equal(some, whole[20:31])
    none = order_of(tf.range(0, dtype=tf.int64), 3, 2, 50)
    assert none.shape == (0,)


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4])
def test_every_example_is_in_exactly_one_batch_of_an_epoch(num_replicas):
    examples = make_examples(43, shape=(2, 2, 1))
    plan = microbatches.plan_epoch(43, 8, (1,) * num_replicas)
    for epoch in take(examples, plan, 2, shuffle_seed=0):
        assert [len(batch) for batch in epoch] == [8, 8, 8, 8, 8, 3]
        assert sorted(np.concatenate(epoch)) == list(range(43))


def test_the_global_batches_do_not_depend_on_the_number_of_replicas():
    examples = make_examples(43, shape=(2, 2, 1))
    of_one, of_two, of_five = (
        take(examples, microbatches.plan_epoch(43, 8, (1,) * n), 3, shuffle_seed=7)
        for n in (1, 2, 5)
    )
    for epochs in (of_two, of_five):
        for batch, expected in zip(sum(epochs, []), sum(of_one, []), strict=True):
            np.testing.assert_array_equal(batch, expected)


def test_orders_differ_between_epochs_and_seeds_and_no_seed_gives_the_stored_one():
    examples = make_examples(43, shape=(2, 2, 1))
    plan = microbatches.plan_epoch(43, 8, (1, 1))
    orders = [
        np.concatenate(epoch)
        for seed in (0, 1)
        for epoch in take(examples, plan, 2, seed)
    ]
    for a, b in itertools.combinations(orders, 2):
        assert (a == b).mean() < 0.3
    for epoch in take(examples, plan, 2, None):
        np.testing.assert_array_equal(np.concatenate(epoch), np.arange(43))


def test_uint8_becomes_0_to_1():
    images = tf.constant([[0, 51, 255]], tf.uint8)
    np.testing.assert_allclose(pipeline.to_unit_range(images), [[0, 0.2, 1]], rtol=1e-7)


@pytest.mark.parametrize("skipped", [0, 7, 10**12])
def test_it_starts_after_skipped_batches_and_has_no_end(skipped):
    """tf.distribute would test at every step for the end of a dataset that has one."""
    examples = make_examples(12, shape=(2, 2, 1))
    numbered = type(examples)(examples.images, np.arange(12, dtype=np.int32))
    batches = pipeline.per_replica_batches(
        numbered,
        first=0,
        per_replica_batch_sizes=(2, 1),
        batches_per_epoch=4,
        skipped_batches=skipped,
    )
    assert batches.cardinality() == tf.data.INFINITE_CARDINALITY
    found = [labels.numpy().tolist() for _, labels in itertools.islice(batches, 9)]
    order = np.roll(np.arange(12), -3 * (skipped % 4)).tolist()
    global_batches = [order[begin : begin + 3] for begin in (0, 3, 6, 9)]
    epoch = [half for batch in global_batches for half in (batch[:2], batch[2:])]
    assert found == [*epoch, order[:2]]


def test_one_global_batch_is_the_per_replica_batches_together():
    examples = make_examples(12, shape=(2, 2, 1))
    batches = pipeline.per_replica_batches(
        examples,
        first=2,
        per_replica_batch_sizes=(3, 2),
        batches_per_epoch=2,
        shuffle_seed=5,
    )
    read = list(itertools.islice(batches, 8))  # two epochs of two global batches
    for k, (epoch, batch) in enumerate(itertools.product((0, 1), (0, 1))):
        images, labels = pipeline.global_batch(
            examples,
            first=2,
            global_batch_size=5,
            epoch=epoch,
            batch=batch,
            shuffle_seed=5,
        )
        (x0, y0), (x1, y1) = read[2 * k : 2 * k + 2]
        np.testing.assert_array_equal(images, np.concatenate([x0, x1]))
        np.testing.assert_array_equal(labels, np.concatenate([y0, y1]))
