"""How epochs and batches are cut."""

import pytest

from tfmirror.parallel import microbatches


@pytest.mark.parametrize(
    ("total", "num_parts", "expected"),
    [
        (8, 2, (4, 4)),
        (5, 3, (2, 2, 1)),
        (2, 4, (1, 1, 0, 0)),
        (0, 2, (0, 0)),
        (7, 1, (7,)),
    ],
)
def test_even_split(total, num_parts, expected):
    assert microbatches.even_split(total, num_parts) == expected


@pytest.mark.parametrize(
    ("num_examples", "global_batch_size", "num_replicas", "expected"),
    [
        (100, 32, 2, [(0, 3, (16, 16)), (96, 1, (2, 2))]),
        (96, 32, 2, [(0, 3, (16, 16))]),
        (10, 32, 4, [(0, 1, (3, 3, 2, 2))]),  # fewer than one batch
        (9, 4, 4, [(0, 2, (1, 1, 1, 1)), (8, 1, (1, 0, 0, 0))]),  # replicas with none
        (9, 5, 2, [(0, 1, (3, 2)), (5, 1, (2, 2))]),  # B not divisible by N
    ],
)
def test_plan_epoch(num_examples, global_batch_size, num_replicas, expected):
    plan = microbatches.plan_epoch(num_examples, global_batch_size, num_replicas)
    assert [(b.first, b.num_batches, b.part_sizes) for b in plan] == expected
    assert sum(b.num_batches * b.global_batch_size for b in plan) == num_examples
