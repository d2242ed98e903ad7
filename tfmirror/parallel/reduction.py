"""Adding what the microbatches found: in one fixed tree, or as the strategy does.

Floating-point addition depends on its order, so the same bits on any number of replicas
need one order that the number of replicas doesn't enter: a binary tree over the M
microbatches. A replica adds the whole subtrees that lie in its own range
(`aligned_subtrees`); the rest of the tree is finished across replicas.

With M = 5 on two replicas that hold 3 and 2:

            +
         /     \\
        +       4          replica 0: blocks (0, 2) and (2, 1)
       /  \\                replica 1: blocks (3, 1) and (4, 4), which is leaf 4 alone
      +    +               across replicas: (2, 1) + (3, 1), then the two upper sums
     0 1  2 3
"""

import functools
import math

import tensorflow as tf

FLOAT32_BYTES = 4


def aligned_subtrees(leaves, num_leaves):
    """Returns the largest subtrees that cover the range `leaves`: [(first, count)].

    `count` is a power of two that divides `first`. A subtree may reach past the last
    leaf, where there is nothing to add.
    """
    low, high = leaves.start, leaves.stop
    whole = tree_size(num_leaves)
    if high == num_leaves:
        high = whole
    blocks = []
    while low < min(high, num_leaves):
        count = (low & -low) or whole
        while low + count > high:
            count //= 2
        blocks.append((low, count))
        low += count
    return blocks


def tree_size(num_leaves):
    """Returns the least power of two that is at least `num_leaves`."""
    return 1 << (num_leaves - 1).bit_length()


def tree_sum(block, sums, num_leaves):
    """Returns the sum of the leaves in `block`, added pairwise up the tree.

    Args:
      block: (first, count) of a subtree.
      sums: {(first, count): nested tensors} of subtrees that together cover it.
    """
    if block in sums:
        return sums[block]
    first, half = block[0], block[1] // 2
    left = tree_sum((first, half), sums, num_leaves)
    if first + half >= num_leaves:
        return left
    right = tree_sum((first + half, half), sums, num_leaves)
    return tf.nest.map_structure(tf.add, left, right)


def disable_arithmetic_optimizer():
    """Keeps TensorFlow from adding in another order than the graph says.

    Its graph optimizer rewrites trees of + into AddN, which has an order of its own.
    The setting is of the whole process, for all that is traced afterwards.
    """
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})


def all_reduce(sums, pack_bytes=0):
    """Returns the total of every replica's `sums`, the same on all, in replica context.

    The strategy's own reduction, and the fastest; its order depends on the replicas.

    Args:
      sums: nested float32 tensors.
      pack_bytes: tensors are joined up to so many bytes, for fewer and larger messages;
        0: left as they are.
    """
    context = tf.distribute.get_replica_context()
    add = functools.partial(context.all_reduce, tf.distribute.ReduceOp.SUM)
    if not pack_bytes:
        return add(sums)
    flat = tf.nest.flatten(sums)
    sizes = [tensor.shape.num_elements() for tensor in flat]
    packs = pack([size * FLOAT32_BYTES for size in sizes], pack_bytes)
    joined = [tf.concat([tf.reshape(flat[k], [-1]) for k in p], axis=0) for p in packs]
    totals = []
    for members, total in zip(packs, add(joined), strict=True):
        parts = tf.split(total, [sizes[k] for k in members])
        pairs = zip(members, parts, strict=True)
        totals += [tf.reshape(part, flat[k].shape) for k, part in pairs]
    return tf.nest.pack_sequence_as(sums, totals)


def pack(sizes, most):
    """Returns packs of neighbours, as lists of positions, none larger than `most`.

    Only what is larger by itself is a larger pack.

    Args:
      sizes: of what is packed, such as bytes.
    """
    packs, filled = [], math.inf
    for position, size in enumerate(sizes):
        if filled + size > most:
            packs.append([])
            filled = 0
        packs[-1].append(position)
        filled += size
    return packs


def finish_tree(block_sums, subtrees_of_replicas, num_leaves, like):
    """Returns the total of all leaves, the same bits on every replica. Replica context.

    Args:
      block_sums: nested tensors for each of this replica's blocks, in order.
      subtrees_of_replicas: the aligned_subtrees of every replica.
      like: nested tensors of the structure of one block's sums.
    """
    whole = (0, tree_size(num_leaves))
    if len(subtrees_of_replicas) == 1:
        return block_sums[0]
    # merge_call wants as many tensors from each replica: blocks that one has less are
    # filled up with scalars, which the merge leaves alone.
    num_slots = max(map(len, subtrees_of_replicas))
    width = len(tf.nest.flatten(like))
    flat = [tensor for sums in block_sums for tensor in tf.nest.flatten(sums)]
    flat += [tf.zeros([]) for _ in range(num_slots * width - len(flat))]

    def merge(strategy, *columns):
        rows = zip(*map(strategy.experimental_local_results, columns), strict=True)
        sums = {}
        for blocks, row in zip(subtrees_of_replicas, rows, strict=True):
            for slot, block in enumerate(blocks):
                sums[block] = list(row[slot * width : (slot + 1) * width])
        # A plain tensor: every replica reads it from this device.
        with tf.device(strategy.extended.worker_devices[0]):
            return tree_sum(whole, sums, num_leaves)

    context = tf.distribute.get_replica_context()
    return tf.nest.pack_sequence_as(like, context.merge_call(merge, args=tuple(flat)))
