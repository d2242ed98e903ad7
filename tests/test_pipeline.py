"""The pipeline: every example once an epoch, in an order that only the seed decides."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from helpers import make_examples

from tfmirror.data import pipeline
from tfmirror.parallel import microbatches


def take(examples, plan, num_epochs, shuffle_seed):
    """Returns [epoch][batch] -> labels of global batches, taken as the loop does."""
    numbered = type(examples)(examples.images, np.arange(len(examples), dtype=np.int32))
    iterators = [
        iter(
            pipeline.batch_parts(
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
                parts = list(
                    itertools.islice(iterator, len(batches.per_replica_batch_sizes))
                )
                assert [len(labels) for _, labels in parts] == list(
                    batches.per_replica_batch_sizes
                )
                for images, labels in parts:
                    np.testing.assert_array_equal(images, examples.images[labels])
                epoch.append(np.concatenate([labels.numpy() for _, labels in parts]))
        epochs.append(epoch)
    return epochs


@pytest.mark.parametrize("num_examples", [1, 2, 3, 7, 16, 100, 1438])
def test_an_epochs_order_is_a_permutation(num_examples):
    positions = tf.range(num_examples, dtype=tf.int64)
    for seed, epoch in itertools.product((0, 1, 2**31 - 1), (0, 1)):
        order = pipeline.order(
            positions, seed, tf.constant(epoch, tf.int64), num_examples
        )
        assert sorted(order.numpy()) == list(range(num_examples))


def test_positions_can_be_asked_for_alone_and_for_none():
    whole = pipeline.order(
        tf.range(50, dtype=tf.int64), 3, tf.constant(2, tf.int64), 50
    )
    part = pipeline.order(
        tf.range(20, 31, dtype=tf.int64), 3, tf.constant(2, tf.int64), 50
    )
    np.testing.assert_array_equal(part, whole[20:31])
    none = pipeline.order(tf.range(0, dtype=tf.int64), 3, tf.constant(2, tf.int64), 50)
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


def test_epochs_and_seeds_have_orders_of_their_own_and_no_seed_the_stored_one():
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
    """What tf.distribute would test for at every step of a dataset that ends."""
    examples = make_examples(12, shape=(2, 2, 1))
    numbered = type(examples)(examples.images, np.arange(12, dtype=np.int32))

    def parts(skipped_batches):
        return pipeline.batch_parts(
            numbered,
            first=0,
            per_replica_batch_sizes=(2, 1),
            batches_per_epoch=4,
            skipped_batches=skipped_batches,
        )

    made = parts(skipped)
    assert made.cardinality() == tf.data.INFINITE_CARDINALITY
    found = [labels.numpy().tolist() for _, labels in itertools.islice(made, 9)]
    order = np.roll(np.arange(12), -3 * (skipped % 4)).tolist()
    batches = [order[begin : begin + 3] for begin in (0, 3, 6, 9)]
    whole = [part for batch in batches for part in (batch[:2], batch[2:])]
    assert found == [*whole, order[:2]]
