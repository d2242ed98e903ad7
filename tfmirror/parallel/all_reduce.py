"""The strategy's own reduction, with gradients packed into larger messages if asked.

total = all_reduce(sums, pack_bytes=2**20)          # in replica context
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

FLOAT32_BYTES = 4


def all_reduce(sums: Any, pack_bytes: int = 0) -> Any:
    """Returns the total of every replica's `sums`, the same on all of them.

    The strategy's own reduction, which is the fastest. Its order depends on the number
    of replicas. Runs in replica context.

    Args:
      sums: nested float32 tensors.
      pack_bytes: tensors are joined up to this many bytes, for fewer and larger
        messages; 0: not joined.
    """
    flat = tf.nest.flatten(sums)
    if not pack_bytes:
        return tf.nest.pack_sequence_as(sums, _add(flat))
    sizes = [tensor.shape.num_elements() for tensor in flat]
    packs = pack([size * FLOAT32_BYTES for size in sizes], pack_bytes)
    joined = [tf.concat([tf.reshape(flat[k], [-1]) for k in p], axis=0) for p in packs]
    totals = []
    for members, total in zip(packs, _add(joined), strict=True):
        parts = tf.split(total, [sizes[k] for k in members])
        pairs = zip(members, parts, strict=True)
        totals += [tf.reshape(part, flat[k].shape) for k, part in pairs]
    return tf.nest.pack_sequence_as(sums, totals)


def _add(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Returns the total of every replica's `tensors`, which has no gradient.

    The replica context's own all_reduce does the same, but in a graph it registers a
    gradient for each call, which TensorFlow 2.21 keeps, with the graph and all that
    belongs to it, until the process ends.
    """

    def reduce(strategy, *columns):
        pairs = [
            # With one replica a column is a tensor, which is no destination.
            (c, c.device if isinstance(c, tf.Tensor) else c)
            for c in columns
        ]
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)

    context = tf.distribute.get_replica_context()
    return context.merge_call(reduce, args=tuple(tensors))


def pack(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Returns packs of neighbours, as lists of positions, none larger than `most`.

    Only a single element that is larger by itself makes a larger pack.

    Args:
      sizes: of the elements, such as bytes.
      most: largest sum of sizes in a pack.
    """
    packs: list[list[int]] = []
    filled = math.inf
    for position, size in enumerate(sizes):
        if filled + size > most:
            packs.append([])
            filled = 0
        packs[-1].append(position)
        filled += size
    return packs
