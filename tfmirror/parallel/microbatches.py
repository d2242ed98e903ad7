"""How examples are cut: epochs into global batches, global batches into microbatches.

    full, last = plan_epoch(100, 32, microbatches_per_replica=(2, 2))
    full.microbatch_sizes, full.num_batches       # (8, 8, 8, 8), 3
    last.microbatch_sizes                         # (1, 1, 1, 1)
    last.per_replica_batch_sizes                  # (2, 2)

Sizes are Python integers, so that a step is traced for them and skips microbatches
without examples. How a global batch is cut into M microbatches does not depend on the
N replicas. The replicas only share the microbatches out.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import tensorflow as tf

from tfmirror import errors


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """Global batches of one size that follow each other in an epoch, all cut alike."""

    # Position in the epoch's order of the first example.
    first: int
    num_batches: int
    # Examples in each of the M microbatches of a global batch.
    microbatch_sizes: tuple[int, ...]
    # Microbatches of each of the N replicas: whole ones, in order.
    microbatches_per_replica: tuple[int, ...]
    # Whether microbatches are added in one fixed tree, which N can't change. If not,
    # each replica has one microbatch, and the strategy adds them.
    in_fixed_tree: bool = False

    @property
    def global_batch_size(self) -> int:
        """Examples in one global batch (B)."""
        return sum(self.microbatch_sizes)

    @property
    def num_microbatches(self) -> int:
        """Microbatches in one global batch (M)."""
        return len(self.microbatch_sizes)

    @property
    def num_replicas(self) -> int:
        """Replicas that share the microbatches (N)."""
        return len(self.microbatches_per_replica)

    @property
    def per_replica_batch_sizes(self) -> tuple[int, ...]:
        """Examples on each of the N replicas."""
        return tuple(sum(self.sizes_of(r)) for r in range(self.num_replicas))

    def microbatches_of(self, replica_id: int) -> range:
        """Returns the indices of a replica's microbatches."""
        starts = list(itertools.accumulate(self.microbatches_per_replica, initial=0))
        return range(starts[replica_id], starts[replica_id + 1])

    def sizes_of(self, replica_id: int) -> tuple[int, ...]:
        """Returns how many examples each of a replica's microbatches has."""
        return tuple(self.microbatch_sizes[k] for k in self.microbatches_of(replica_id))


def even_split(total: int, num_parts: int) -> tuple[int, ...]:
    """Returns `num_parts` whole numbers that sum to `total` and differ by at most one.

    The larger ones come first: even_split(5, 3) is (2, 2, 1).
    """
    whole, rest = divmod(total, num_parts)
    return tuple(whole + (k < rest) for k in range(num_parts))


def share_out(
    num_replicas: int, num_microbatches: int = 0, explicit: Sequence[int] = ()
) -> tuple[int, ...]:
    """Returns how many microbatches each replica gets.

    Args:
      num_replicas: N.
      num_microbatches: M; 0: one for each replica.
      explicit: the numbers to use, one for each replica; empty: as even as possible.

    Raises:
      InputError: there are fewer microbatches than replicas, or `explicit` is not N
        numbers that sum to M.
    """
    if explicit:
        _check_explicit(tuple(explicit), num_replicas, num_microbatches)
        return tuple(explicit)
    if num_microbatches and num_microbatches < num_replicas:
        raise errors.InputError(
            f"microbatches must be at least the number of replicas (0: one each): got "
            f"{num_microbatches} for {num_replicas} replicas"
        )
    return even_split(num_microbatches or num_replicas, num_replicas)


def _check_explicit(
    numbers: tuple[int, ...], num_replicas: int, num_microbatches: int
) -> None:
    """Raises InputError unless there is one number a replica and they sum to M."""
    if len(numbers) != num_replicas or min(numbers) < 0:
        raise errors.InputError(
            f"microbatches_per_replica must be {num_replicas} numbers of at least 0, "
            f"one for each replica: got {','.join(map(str, numbers))}"
        )
    if sum(numbers) != num_microbatches:
        raise errors.InputError(
            f"microbatches_per_replica must sum to microbatches={num_microbatches}: "
            f"got {'+'.join(map(str, numbers))} = {sum(numbers)}"
        )


def plan_epoch(
    num_examples: int,
    global_batch_size: int,
    microbatches_per_replica: Sequence[int],
    *,
    in_fixed_tree: bool = False,
) -> tuple[BatchPlan, ...]:
    """Returns the BatchPlans of an epoch: the full batches, then an uneven last one.

    Every example is in exactly one batch. Microbatches differ by at most one example.
    If the last batch has fewer examples than microbatches, the later ones are empty.

    Args:
      num_examples: examples in the epoch (E).
      global_batch_size: examples in a full batch (B).
      microbatches_per_replica: one number for each of the N replicas; their sum is M.
      in_fixed_tree: whether microbatches are added in an order that N can't change.
    """
    num_full, rest = divmod(num_examples, global_batch_size)
    per_replica = tuple(microbatches_per_replica)
    plans = []
    if num_full:
        sizes = even_split(global_batch_size, sum(per_replica))
        plans.append(BatchPlan(0, num_full, sizes, per_replica, in_fixed_tree))
    if rest:
        sizes = even_split(rest, sum(per_replica))
        first = num_examples - rest
        plans.append(BatchPlan(first, 1, sizes, per_replica, in_fixed_tree))
    return tuple(plans)


def split(
    images: tf.Tensor, labels: tf.Tensor, sizes: Sequence[int]
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns [(images, labels)] of neighbouring pieces with these numbers of examples.

    Args:
      images, labels: a replica's part of the global batch: [b, H, W, C] and [b], with
        b the sum of `sizes`.
      sizes: examples in each piece. Pieces have this known size when traced.
    """
    ends = list(itertools.accumulate(sizes, initial=0))
    images = tf.ensure_shape(images, [ends[-1], *images.shape[1:]])
    labels = tf.ensure_shape(labels, [ends[-1]])
    return [
        (images[begin:end], labels[begin:end])
        for begin, end in itertools.pairwise(ends)
    ]
