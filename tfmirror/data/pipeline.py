"""The tf.data pipeline: yields the per-replica batches of shuffled global batches.

    batches = per_replica_batches(
        examples,
        first=0,
        per_replica_batch_sizes=(64, 64),
        batches_per_epoch=11,
        shuffle_seed=0,
    )
    # replica 0 of batch 0, replica 1 of batch 0, replica 0 of batch 1, ... endlessly

The examples of a global batch and their order depend only on (seed, epoch, batch). They
do not depend on the number of replicas or threads, or on what was read before.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfmirror.data.examples import ExampleSource

# Number of the function `order`. A run records it, since with another one it could not
# be resumed to the same bits. Version 1 (runs that record none) was
# tf.random.experimental.index_shuffle with the key (seed, epoch).
ORDER_VERSION = 2
# Even. With 8, neighbours of 60,000 examples stay neighbours 1.25 times too often.
CIPHER_ROUNDS = 10


def per_replica_batches(
    examples: ExampleSource,
    *,
    first: int,
    per_replica_batch_sizes: Sequence[int],
    batches_per_epoch: int,
    shuffle_seed: int | None = None,
    skipped_batches: int = 0,
) -> tf.data.Dataset:
    """Returns an endless tf.data.Dataset of per-replica batches, in replica order.

    With B the sum of `per_replica_batch_sizes`, global batch k of an epoch holds the
    examples at positions [first + k B, first + (k + 1) B) of that epoch's order. With
    b_r = `per_replica_batch_sizes[r]`, replica 0 gets the first b_0 of them, replica 1
    the next b_1, and so on. An element of the dataset is one per-replica batch: images
    [b_r, H, W, C] uint8 and labels [b_r] int32. N elements make up a global batch.

    The dataset is endless so that tf.distribute need not test for its end at every
    step. After `batches_per_epoch` global batches the next epoch begins.

    Args:
      examples: the E examples to read.
      first: position in the epoch's order at which the first batch begins.
      per_replica_batch_sizes: examples per replica, [N]; 0 gives an empty batch.
      batches_per_epoch: global batches per epoch; first + batches_per_epoch * B may be
        at most E.
      shuffle_seed: seed from which the order of every epoch is drawn; None: the stored
        order.
      skipped_batches: how many global batches to skip at the start.
    """
    num_examples, num_replicas = len(examples), len(per_replica_batch_sizes)
    starts = tf.constant(
        list(itertools.accumulate(per_replica_batch_sizes, initial=0)), tf.int64
    )
    global_batch_size = sum(per_replica_batch_sizes)
    static_size = (
        per_replica_batch_sizes[0] if len(set(per_replica_batch_sizes)) == 1 else None
    )

    def indices(counter: tf.Tensor) -> tf.Tensor:
        batch, replica = counter // num_replicas, counter % num_replicas
        epoch, k = batch // batches_per_epoch, batch % batches_per_epoch
        begin = first + k * global_batch_size
        positions = tf.range(begin + starts[replica], begin + starts[replica + 1])
        ordered = order(
            positions,
            shuffle_seed=shuffle_seed,
            epoch=epoch,
            num_examples=num_examples,
        )
        return tf.ensure_shape(ordered, [static_size])

    # Dataset.counter would be endless as well, but calls a function for each number.
    first_element = skipped_batches * num_replicas
    counter = tf.data.Dataset.range(first_element, tf.int64.max).repeat()
    batches = examples.batches(counter, indices).prefetch(2 * num_replicas)
    return batches.with_options(untuned_options())


def untuned_options() -> tf.data.Options:
    """Returns the options of the pipeline, which switch tuning off.

    The pipeline has nothing to tune, and when an iterator is deleted TensorFlow 2.21
    waits up to a minute for its autotuning thread. Rewriting stays on: without it, to
    delete a distributed iterator while it reads can end the process (it frees the
    dataset before it stops the thread that reads).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def global_batch(
    examples: ExampleSource,
    *,
    first: int,
    global_batch_size: int,
    epoch: int,
    batch: int,
    shuffle_seed: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns one global batch of `per_replica_batches` as NumPy arrays.

    Args:
      examples: the examples to read.
      first: position in the epoch's order at which batch 0 begins.
      global_batch_size: B.
      epoch: number of the epoch, from 0.
      batch: number of the global batch in the epoch, from 0.
      shuffle_seed: seed of the order; None: the stored order.

    Returns:
      Images [B, H, W, C] uint8 and labels [B] int32.
    """
    begin = first + batch * global_batch_size
    indices = order(
        tf.range(begin, begin + global_batch_size, dtype=tf.int64),
        shuffle_seed=shuffle_seed,
        epoch=tf.constant(epoch, tf.int64),
        num_examples=len(examples),
    ).numpy()
    return examples.read(indices)


def order(
    positions: tf.Tensor,
    *,
    shuffle_seed: int | None,
    epoch: tf.Tensor,
    num_examples: int,
) -> tf.Tensor:
    """Returns the indices of the examples at `positions` of an epoch's order.

    The order is a permutation of [0, num_examples). It needs no memory, because any
    position of any epoch can be computed by itself: a block cipher encrypts it. The key
    is drawn from all bits of seed and epoch. For up to 2^16 examples the cipher takes
    24 bits of the key, so there are as many orders; for more examples it takes more.

    Args:
      positions: [n] int64 in [0, num_examples); n may be 0.
      shuffle_seed: seed of the order, in the range of int64; None: the stored order.
      epoch: scalar int64.
      num_examples: E, 1 or more.

    Returns:
      [n] int64 in [0, num_examples).
    """
    if shuffle_seed is None:
        return positions
    seed = tf.stack([tf.constant(shuffle_seed, tf.int64), epoch])
    # The operation refuses an empty vector (TensorFlow 2.21), and a replica may have no
    # example in a last batch. So one position is added, and its result is dropped.
    padded = tf.concat([positions, tf.zeros([1], tf.int64)], axis=0)
    with tf.device("CPU"):
        key = tf.random.stateless_uniform(
            [3], seed, minval=None, maxval=None, dtype=tf.uint32, alg="philox"
        )
        # tf.random.experimental.index_shuffle has 4 rounds, which leave patterns, and
        # takes the seed itself as the key, of which small numbers have few bits.
        indices = tf.raw_ops.RandomIndexShuffle(
            index=padded,
            seed=key,
            max_index=tf.constant(num_examples - 1, tf.int64),
            rounds=CIPHER_ROUNDS,
        )
    return indices[:-1]


def to_unit_range(images: tf.Tensor) -> tf.Tensor:
    """Returns uint8 images [..., C] as float32 in [0, 1], of the same shape.

    Call it on the device, so that the smaller uint8 values are copied there.

    Multiplies by 1/255, as keras.layers.Rescaling(1 / 255) does. A division by 255
    would become a multiplication in graphs but not outside them, and half of the values
    would then differ in the last bit.
    """
    return tf.cast(images, tf.float32) * (1 / 255)
