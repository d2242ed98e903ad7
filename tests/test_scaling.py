"""The model of more devices matches its closed form."""

import numpy as np
import pytest

from tfmirror.benchmarking import messages, rounds, scaling, workload

LINK = scaling.Link(alpha=1e-4, beta=1e-9)


def test_a_ring_takes_the_seconds_of_the_closed_form():
    # 6 rounds of a quarter of 8 MB, each 0.1 ms and 2 MB at 1 GB/s.
    assert scaling.ring_seconds(8e6, 4, LINK) == pytest.approx(6 * (1e-4 + 2e-3))
    assert scaling.ring_seconds(8e6, 1, LINK) == 0


def test_fit_link_recovers_the_link_of_exact_times():
    measured = {n: scaling.ring_seconds(n, 4, LINK) for n in (10**6, 10**7, 10**8)}
    found = scaling.fit_link(measured, 4)
    assert found.alpha == pytest.approx(LINK.alpha)
    assert found.beta == pytest.approx(LINK.beta)


def test_no_time_is_negative():
    """If small sizes are faster than the bandwidth allows, alpha is 0 and beta fits."""
    measured = {1e6: 0.1e-3, 8e6: 2e-3, 32e6: 10e-3}
    found = scaling.fit_link(measured, 2)
    assert found.alpha == 0
    predicted = [scaling.ring_seconds(n, 2, found) for n in measured]
    errors = np.array(predicted) / list(measured.values()) - 1
    for factor in (0.99, 1.01):  # no other beta has smaller relative errors
        other = (errors + 1) * factor - 1
        assert (other**2).sum() > (errors**2).sum()


def test_a_stated_link_has_its_units():
    link = scaling.make_link(gigabits_per_second=80, microseconds=5)
    assert link.alpha == pytest.approx(5e-6) and link.beta == pytest.approx(1e-10)


@pytest.mark.parametrize(
    ("share_cores", "num_replicas", "milliseconds"),
    [
        (False, 1, 10 + 2),
        (False, 4, 10 + 2 + 6 * 2.1),
        # Two hosts of four: the ring of each, and two rounds of 4 MB between them.
        (False, 8, 10 + 2 + 6 * 2.1 + 2 * (1 + 4 * 2)),
        (True, 4, 4 * (10 + 2) + 6 * 2.1),
        (True, 8, 4 * (10 + 2) + 6 * 2.1 + 2 * (1 + 4 * 2)),
    ],
)
def test_a_step_is_the_sum_of_its_parts(share_cores, num_replicas, milliseconds):
    between = scaling.Link(alpha=1e-3, beta=2e-9)
    model = scaling.StepModel(
        per_replica_batch_size=32,
        compute_seconds=10e-3,
        other_seconds=2e-3,
        num_bytes=8_000_000,
        link_in_host=LINK,
        link_between_hosts=between,
        replicas_per_host=4,
        share_cores=share_cores,
    )
    seconds = model.step_seconds(num_replicas)
    assert seconds == pytest.approx(milliseconds * 1e-3)
    speed = model.images_per_second(num_replicas)
    assert speed == pytest.approx(32 * num_replicas / seconds)
    num_hosts = {1: 1, 4: 1, 8: 2}[num_replicas]
    hardware = num_hosts if share_cores else num_replicas
    ideal = 32 / 12e-3 * hardware
    assert model.ideal_images_per_second(num_replicas) == pytest.approx(ideal)


@pytest.mark.parametrize("share_cores", [False, True])
def test_the_fitted_model_predicts_the_speed_it_was_fitted_on(share_cores):
    sizes = {n: scaling.ring_seconds(n, 2, LINK) for n in (10**6, 10**7, 10**8)}
    measurement = rounds.Measurement(
        workload=workload.Workload(
            contender="tfmirror",
            model="cnn",
            dataset="synthetic",
            data_dir="",
            num_replicas=2,
            global_batch_size=128,
            precision="float32",
        ),
        speeds=(6400.0,),  # 20 ms per step
        start_seconds=1.0,
        info=messages.ContenderInfo(trace_seconds=1.0, num_weights=10**6),
        step_parts=messages.StepParts(1e-4, 12e-3, 1e-3, sizes),
    )
    model = scaling.fit(
        measurement, share_cores=share_cores, between_hosts=LINK, replicas_per_host=8
    )
    assert model.images_per_second(2) == pytest.approx(6400)
    assert model.num_bytes == 4 * 10**6 and model.per_replica_batch_size == 64
    assert model.compute_seconds == pytest.approx(6e-3 if share_cores else 12e-3)
