"""The tf.data pipeline: parts of shuffled global batches, gathered whole by index.

    parts = batch_parts(
        examples,
        first=0,
        per_replica_batch_sizes=(64, 64),
        batches_per_epoch=11,
        shuffle_seed=0,
    )
    # part 0 of batch 0, part 1 of batch 0, part 0 of batch 1, ... without end

Which examples a global batch holds, and in what order, is a function of (seed, epoch,
batch) and of nothing else: not of the number of parts, nor of threads, nor of what ran
before.
"""

import itertools

import tensorflow as tf


def batch_parts(
    examples,
    *,
    first,
    per_replica_batch_sizes,
    batches_per_epoch,
    shuffle_seed=None,
    skipped_batches=0,
):
    """Returns an endless tf.data.Dataset of the parts of one batch after another.

    With B the sum of `per_replica_batch_sizes`, batch k of an epoch holds the examples at positions
    first + k B to first + (k + 1) B of that epoch's order, and its part p the
    `per_replica_batch_sizes[p]` of them that follow those of the parts before. An element is one
    part: images [per_replica_batch_sizes[p], H, W, C] uint8 and labels [per_replica_batch_sizes[p]] int32.

    It has no end so that tf.distribute need not test for one at every step; who takes
    `batches_per_epoch` batches stands at the start of the next epoch.

    Args:
      examples: datasets.Examples.
      shuffle_seed: each epoch has an order of its own drawn from it; None: as stored.
      skipped_batches: stand after so many batches of the first epochs.
    """
    num_examples, num_parts = len(examples), len(per_replica_batch_sizes)
    starts = tf.constant(
        list(itertools.accumulate(per_replica_batch_sizes, initial=0)), tf.int64
    )
    batch_size = sum(per_replica_batch_sizes)
    # As eager tensors these are captured once, not copied into the graph.
    images, labels = tf.constant(examples.images), tf.constant(examples.labels)
    static_size = (
        per_replica_batch_sizes[0] if len(set(per_replica_batch_sizes)) == 1 else None
    )

    def part(counter):
        batch, p = counter // num_parts, counter % num_parts
        epoch, k = batch // batches_per_epoch, batch % batches_per_epoch
        begin = first + k * batch_size
        positions = tf.range(begin + starts[p], begin + starts[p + 1])
        indices = order(positions, shuffle_seed, epoch, num_examples)
        indices = tf.ensure_shape(indices, [static_size])
        return tf.gather(images, indices), tf.gather(labels, indices)

    # Without end, but not Dataset.counter, which calls a function for each number.
    first_part = skipped_batches * num_parts
    counter = tf.data.Dataset.range(first_part, tf.int64.max).repeat()
    return counter.map(part).prefetch(2 * num_parts).with_options(untuned_options())


def untuned_options():
    """Returns the options of the pipeline: nothing is tuned while it runs.

    There is nothing to tune, and TensorFlow 2.21 waits up to a minute for the thread
    that would when an iterator is deleted.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def global_batch(examples, plan, epoch, batch, shuffle_seed):
    """Returns (images, labels) of one batch as NumPy arrays, as `batch_parts` has it.

    Args:
      plan: microbatches.BatchPlan of the batch and those like it.
      epoch, batch: counted from 0, the batch within `plan`.
    """
    begin = plan.first + batch * plan.global_batch_size
    positions = tf.range(begin, begin + plan.global_batch_size, dtype=tf.int64)
    epoch = tf.constant(epoch, tf.int64)
    indices = order(positions, shuffle_seed, epoch, len(examples)).numpy()
    return examples.images[indices], examples.labels[indices]


def order(positions, shuffle_seed, epoch, num_examples):
    """Returns the examples that stand at `positions` in an epoch's order.

    A permutation of [0, num_examples) that needs no memory: any position of any epoch
    can be asked for alone (tf.random.experimental.index_shuffle, a block cipher).

    Args:
      positions: [n] int64 in [0, num_examples).
      shuffle_seed: None for the stored order.
      epoch: scalar int64.
    """
    if shuffle_seed is None:
        return positions
    seed = tf.stack([tf.constant(shuffle_seed, tf.int64), epoch])
    # The operation refuses an empty vector (TensorFlow 2.21), and a replica may have no
    # example in a last batch: one position more goes in, and its answer is dropped.
    padded = tf.concat([positions, tf.zeros([1], tf.int64)], axis=0)
    return tf.random.experimental.index_shuffle(padded, seed, num_examples - 1)[:-1]


def to_unit_range(images):
    """Returns uint8 `images` as float32 in [0, 1]; on the device, after the copy.

    As keras.layers.Rescaling(1 / 255) does. Divided by 255, half of the values would
    have another last bit in a graph, which multiplies all the same, than outside it.
    """
    return tf.cast(images, tf.float32) * (1 / 255)
