"""How examples are cut: epochs into global batches, these into microbatches.

    full, last = plan_epoch(100, 32, microbatches_per_replica=(2, 2))
    full.sizes, full.num_batches                  # (8, 8, 8, 8), 3
    last.sizes, last.per_replica_batch_sizes      # (1, 1, 1, 1), (2, 2)

Sizes are Python integers: a step is traced for them, and may skip what has no example.
How a global batch is cut into M microbatches does not depend on the N replicas; these
only share them out.
"""

import dataclasses
import itertools

from tfmirror import errors


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """Global batches of one size, cut alike, that follow each other in an epoch."""

    first: int  # position in the epoch of the first example
    num_batches: int
    sizes: tuple[int, ...]  # examples in each of the M microbatches
    microbatches_per_replica: tuple[
        int, ...
    ]  # microbatches on each of the N replicas, whole ones in order
    in_fixed_tree: bool = (
        False  # whether they are added in an order that N can't change
    )

    @property
    def global_batch_size(self):
        """Examples in one global batch (B)."""
        return sum(self.sizes)

    @property
    def num_microbatches(self):
        """Microbatches in one global batch (M)."""
        return len(self.sizes)

    def microbatches_of(self, replica_id):
        """Returns the range of a replica's microbatches."""
        starts = list(itertools.accumulate(self.microbatches_per_replica, initial=0))
        return range(starts[replica_id], starts[replica_id + 1])

    def sizes_of(self, replica_id):
        """Returns how many examples each of a replica's microbatches has."""
        return tuple(self.sizes[k] for k in self.microbatches_of(replica_id))

    @property
    def per_replica_batch_sizes(self):
        """Examples on each of the N replicas."""
        return tuple(
            sum(self.sizes_of(r)) for r in range(len(self.microbatches_per_replica))
        )


def even_split(total, num_parts):
    """Returns `num_parts` whole numbers that sum to `total` and differ by at most one.

    The larger ones come first: even_split(5, 3) is (2, 2, 1).
    """
    whole, rest = divmod(total, num_parts)
    return tuple(whole + (k < rest) for k in range(num_parts))


def share_out(num_replicas, num_microbatches=0, explicit=()):
    """Returns how many microbatches each replica gets.

    Args:
      num_microbatches: M; 0: one for each replica.
      explicit: microbatches_per_replica to take as they are; empty: as even as can be.

    Raises:
      InputError: fewer microbatches than replicas, or microbatches_per_replica that don't fit.
    """
    if explicit:
        _check_shares(tuple(explicit), num_replicas, num_microbatches)
        return tuple(explicit)
    if num_microbatches and num_microbatches < num_replicas:
        raise errors.InputError(
            f"microbatches must be at least the number of replicas (0: one each): got "
            f"{num_microbatches} for {num_replicas} replicas"
        )
    return even_split(num_microbatches or num_replicas, num_replicas)


def _check_shares(microbatches_per_replica, num_replicas, num_microbatches):
    """Raises InputError unless there is one share a replica and they sum to M."""
    if (
        len(microbatches_per_replica) != num_replicas
        or min(microbatches_per_replica) < 0
    ):
        raise errors.InputError(
            f"microbatches_per_replica must be {num_replicas} numbers of at least 0, "
            f"one for each replica: got {','.join(map(str, microbatches_per_replica))}"
        )
    if sum(microbatches_per_replica) != num_microbatches:
        raise errors.InputError(
            f"microbatches_per_replica must sum to microbatches={num_microbatches}: "
            f"got {'+'.join(map(str, microbatches_per_replica))} = {sum(microbatches_per_replica)}"
        )


def plan_epoch(
    num_examples, global_batch_size, microbatches_per_replica, in_fixed_tree=False
):
    """Returns the BatchPlans of an epoch: of the full batches, then of an uneven last.

    Every example is in exactly one batch. Microbatches differ by at most one example;
    in a last batch of fewer examples than microbatches, the later ones have none.
    """
    num_full, rest = divmod(num_examples, global_batch_size)
    num_microbatches = sum(microbatches_per_replica)
    plans = []
    if num_full:
        sizes = even_split(global_batch_size, num_microbatches)
        plans.append(
            BatchPlan(0, num_full, sizes, microbatches_per_replica, in_fixed_tree)
        )
    if rest:
        sizes = even_split(rest, num_microbatches)
        first = num_examples - rest
        plans.append(
            BatchPlan(first, 1, sizes, microbatches_per_replica, in_fixed_tree)
        )
    return tuple(plans)
