"""How epochs and batches are cut."""

import pytest

from tfmirror import errors
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
    ("num_examples", "global_batch_size", "shares", "expected"),
    [
        (100, 32, (1, 1), [(0, 3, (16, 16)), (96, 1, (2, 2))]),
        (96, 32, (1, 1), [(0, 3, (16, 16))]),
        (10, 32, (1, 1, 1, 1), [(0, 1, (3, 3, 2, 2))]),  # fewer than one batch
        (9, 4, (1, 1, 1, 1), [(0, 2, (1, 1, 1, 1)), (8, 1, (1, 0, 0, 0))]),
        (9, 5, (1, 1), [(0, 1, (3, 2)), (5, 1, (2, 2))]),  # B not divisible by N
        (66, 64, (5, 3), [(0, 1, (40, 24)), (64, 1, (2, 0))]),  # unequal shares
        (10, 10, (2, 0, 1), [(0, 1, (7, 0, 3))]),
    ],
)
def test_plan_epoch(num_examples, global_batch_size, shares, expected):
    plans = microbatches.plan_epoch(num_examples, global_batch_size, shares)
    assert [
        (p.first, p.num_batches, p.per_replica_batch_sizes) for p in plans
    ] == expected
    assert sum(p.num_batches * p.global_batch_size for p in plans) == num_examples
    for plan in plans:
        assert sum(plan.per_replica_batch_sizes) == plan.global_batch_size
        assert [len(plan.microbatches_of(r)) for r in range(len(shares))] == list(
            shares
        )


def test_the_microbatches_do_not_depend_on_the_replicas():
    of_shares = [
        [plan.microbatch_sizes for plan in microbatches.plan_epoch(1000, 60, shares)]
        for shares in ((8,), (4, 4), (3, 3, 2), (5, 3), (1,) * 8)
    ]
    assert of_shares == [of_shares[0]] * 5
    assert of_shares[0] == [(8, 8, 8, 8, 7, 7, 7, 7), (5,) * 8]


@pytest.mark.parametrize(
    ("num_replicas", "num_microbatches", "explicit", "expected"),
    [
        (3, 0, (), (1, 1, 1)),
        (3, 8, (), (3, 3, 2)),
        (8, 8, (), (1,) * 8),
        (2, 8, (5, 3), (5, 3)),
        (3, 4, (0, 4, 0), (0, 4, 0)),
    ],
)
def test_share_out(num_replicas, num_microbatches, explicit, expected):
    shares = microbatches.share_out(num_replicas, num_microbatches, explicit)
    assert shares == expected


@pytest.mark.parametrize(
    ("num_replicas", "num_microbatches", "explicit", "says"),
    [
        (
            4,
            3,
            (),
            "microbatches must be at least the number of replicas .* got 3 for 4",
        ),
        (2, 8, (5, 2), r"must sum to microbatches=8: got 5\+2 = 7"),
        (
            3,
            8,
            (5, 3),
            "must be 3 numbers of at least 0, one for each replica: got 5,3",
        ),
    ],
)
def test_shares_that_do_not_fit_are_refused(
    num_replicas, num_microbatches, explicit, says
):
    with pytest.raises(errors.InputError, match=says):
        microbatches.share_out(num_replicas, num_microbatches, explicit)
