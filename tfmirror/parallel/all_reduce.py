"""The strategy's own reduction, with gradients packed into larger messages if asked.

total = all_reduce(sums, pack_bytes=2**20)          # in replica context
"""

import functools
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
