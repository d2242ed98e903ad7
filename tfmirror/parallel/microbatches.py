"""How examples are cut: epochs into global batches, these into one part a replica.

    full, last = plan_epoch(num_examples=100, global_batch_size=32, num_replicas=2)
    full.part_sizes, full.num_batches                  # (16, 16), 3
    last.part_sizes, last.num_batches                  # (2, 2), 1

Sizes are Python integers: a step is traced for them, and may skip what has no example.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class BatchSequence:
    """Global batches of one size and division that follow each other in an epoch."""

    first: int  # position in the epoch of the first example
    num_batches: int
    part_sizes: tuple[int, ...]  # examples on each of the N replicas

    @property
    def global_batch_size(self):
        """Examples in one global batch (B)."""
        return sum(self.part_sizes)


def even_split(total, num_parts):
    """Returns `num_parts` whole numbers that sum to `total` and differ by at most one.

    The larger ones come first: even_split(5, 3) is (2, 2, 1).
    """
    whole, rest = divmod(total, num_parts)
    return tuple(whole + (k < rest) for k in range(num_parts))


def plan_epoch(num_examples, global_batch_size, num_replicas):
    """Returns the BatchSequences of an epoch: full batches, then the last uneven one.

    Every example is in exactly one batch. In a last batch of fewer examples than
    replicas, the later replicas get none.
    """
    num_full, rest = divmod(num_examples, global_batch_size)
    plan = []
    if num_full:
        plan.append(
            BatchSequence(0, num_full, even_split(global_batch_size, num_replicas))
        )
    if rest:
        parts = even_split(rest, num_replicas)
        plan.append(BatchSequence(num_examples - rest, 1, parts))
    return tuple(plan)
