"""Predicts the speed on more devices and hosts from a measurement on a few.

    link = fit_link({2**20: 0.7e-3, 2**23: 4e-3}, num_replicas=2)
    seconds = ring_seconds(44e6, num_replicas=8, link=link)

The alpha-beta model of a ring all-reduce (Thakur, Rabenseifner and Gropp, 2005,
Optimization of collective communication operations in MPICH, section 4; Patarasuk and
Yuan, 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations): N
participants exchange n bytes in 2 (N - 1) rounds of n / N bytes each. A round of m
bytes takes alpha + m beta seconds, so that

    T(n, N) = 2 (N - 1) alpha + 2 (N - 1) / N n beta.

Logical CPU devices don't use a ring: gradients are added on one device. There the
formula is only an approximation; the error on a measured N shows how good it is.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tfmirror.benchmarking.rounds import Measurement

BITS_PER_BYTE = 8
BYTES_PER_WEIGHT = 4  # gradients are float32


@dataclasses.dataclass(frozen=True)
class Link:
    """What one round of an all-reduce costs."""

    alpha: float  # latency, seconds
    beta: float  # inverse bandwidth, seconds per byte


def ring_seconds(num_bytes: float, num_replicas: int, link: Link) -> float:
    """Returns the seconds of a ring all-reduce: T(n, N); 0 for one replica.

    Args:
      num_bytes: n, the size of the values on each replica.
      num_replicas: N, at least 1.
      link: connects neighbours in the ring.
    """
    rounds = 2 * (num_replicas - 1)
    return rounds * (link.alpha + num_bytes / num_replicas * link.beta)


def fit_link(seconds_of_bytes: Mapping[int, float], num_replicas: int) -> Link:
    """Returns the Link with which T(n, N) fits measured times best.

    Minimizes the sum of squared relative errors; neither alpha nor beta is negative.

    Args:
      seconds_of_bytes: {n: measured seconds}, two sizes or more.
      num_replicas: N, at least 2.
    """
    rounds = 2 * (num_replicas - 1)
    rows = [[rounds, rounds / num_replicas * n] for n in seconds_of_bytes]
    times = list(seconds_of_bytes.values())
    # Relative errors, so that small sizes count as much as large ones.
    weights = 1 / np.array(times)
    scaled = np.array(rows) * weights[:, np.newaxis]
    ones = np.ones(len(times))
    (alpha, beta), *_ = np.linalg.lstsq(scaled, ones, rcond=None)
    if alpha < 0:  # then the best fit that is allowed has no latency
        alpha, beta = 0.0, scaled[:, 1] @ ones / (scaled[:, 1] @ scaled[:, 1])
    return Link(float(alpha), max(float(beta), 0.0))


def make_link(*, gigabits_per_second: float, microseconds: float) -> Link:
    """Returns the Link with this bandwidth and this latency, both above 0."""
    return Link(microseconds * 1e-6, BITS_PER_BYTE / (gigabits_per_second * 1e9))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepModel:
    """The parts of a training step with a fixed per-replica batch size."""

    per_replica_batch_size: float
    compute_seconds: float  # forward and backward, on one replica's own cores or device
    other_seconds: float  # input, update and everything else, on the same
    num_bytes: int  # of the gradients, which are added over the replicas
    link_in_host: Link
    link_between_hosts: Link
    replicas_per_host: int
    share_cores: bool  # whether the replicas of a host share the same cores

    def step_seconds(self, num_replicas: int) -> float:
        """Returns the predicted seconds per step on `num_replicas`."""
        on_host = min(num_replicas, self.replicas_per_host)
        num_hosts = self._num_hosts(num_replicas)
        num_sharing = on_host if self.share_cores else 1
        return (
            num_sharing * (self.compute_seconds + self.other_seconds)
            + ring_seconds(self.num_bytes, on_host, self.link_in_host)
            + ring_seconds(self.num_bytes, num_hosts, self.link_between_hosts)
        )

    def images_per_second(self, num_replicas: int) -> float:
        """Returns the predicted speed of `num_replicas`."""
        images = self.per_replica_batch_size * num_replicas
        return images / self.step_seconds(num_replicas)

    def ideal_images_per_second(self, num_replicas: int) -> float:
        """Returns one replica's speed times the hardware of `num_replicas`.

        The hardware is counted in hosts if replicas share cores, else in replicas.
        """
        hosts = self._num_hosts(num_replicas)
        return (hosts if self.share_cores else num_replicas) * self.images_per_second(1)

    def _num_hosts(self, num_replicas: int) -> int:
        """Returns how many hosts `num_replicas` need."""
        return -(-num_replicas // self.replicas_per_host)


def fit(
    measurement: Measurement,
    *,
    share_cores: bool,
    between_hosts: Link,
    replicas_per_host: int,
) -> StepModel:
    """Returns the StepModel that gives the measured speed on as many replicas.

    Args:
      measurement: of tfmirror on two replicas or more of one host.
      share_cores: whether the replicas of a host share the same cores.
      between_hosts: connects the hosts.
      replicas_per_host: at least 1.

    Raises:
      ValueError: the measurement has no step parts or no number of weights.
    """
    workload, parts = measurement.workload, measurement.step_parts
    if parts is None or measurement.info.num_weights is None:
        raise ValueError(f"{workload.name}: the parts of a step were not measured")
    in_host = fit_link(parts.reduction_seconds_of_bytes, workload.num_replicas)
    num_bytes = BYTES_PER_WEIGHT * measurement.info.num_weights
    reduction_seconds = ring_seconds(num_bytes, workload.num_replicas, in_host)
    busy_seconds = parts.compute_seconds + reduction_seconds
    other_seconds = max(measurement.step_seconds - busy_seconds, 0.0)
    num_sharing = workload.num_replicas if share_cores else 1
    return StepModel(
        per_replica_batch_size=workload.global_batch_size / workload.num_replicas,
        compute_seconds=parts.compute_seconds / num_sharing,
        other_seconds=other_seconds / num_sharing,
        num_bytes=num_bytes,
        link_in_host=in_host,
        link_between_hosts=between_hosts,
        replicas_per_host=replicas_per_host,
        share_cores=share_cores,
    )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted speed of a number of replicas."""

    fitted_on: str  # name of the workload whose measurement was used
    num_replicas: int
    images_per_second: float
    efficiency: float  # over the ideal speed of the same hardware
    measured_images_per_second: float | None  # None: not measured


def predict(
    measurements: Iterable[Measurement],
    *,
    numbers_of_replicas: Iterable[int],
    share_cores: bool,
    between_hosts: Link,
    replicas_per_host: int,
) -> list[Prediction]:
    """Returns predictions for each model and precision of tfmirror.

    They are fitted on the measurement with the fewest replicas above one. Measurements
    of more replicas with the same per-replica batch size are predicted as well, to show
    the error; they are not used for the fit.

    Args:
      measurements: those of one benchmark.
      numbers_of_replicas: to predict the speed of.
      share_cores, between_hosts, replicas_per_host: those of `fit`.
    """
    wanted = set(numbers_of_replicas)
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in sorted(measurements, key=lambda m: m.workload.num_replicas):
        if m.workload.contender == "tfmirror" and m.workload.num_replicas > 1:
            key = m.workload.model, m.workload.precision
            groups.setdefault(key, []).append(m)
    predictions = []
    for fewest, *more in groups.values():
        model = fit(
            fewest,
            share_cores=share_cores,
            between_hosts=between_hosts,
            replicas_per_host=replicas_per_host,
        )
        predictions += _predict_from(model, fewest, others=more, wanted=wanted)
    return predictions


def _predict_from(
    model: StepModel,
    fitted: Measurement,
    *,
    others: Sequence[Measurement],
    wanted: set[int],
) -> list[Prediction]:
    """Returns the predictions of `model` for `wanted` and for comparable `others`."""
    workload = fitted.workload
    measured = {
        m.workload.num_replicas: m.images_per_second
        for m in others
        if m.workload == workload.with_replicas(m.workload.num_replicas)
    }
    return [
        Prediction(
            fitted_on=workload.name,
            num_replicas=n,
            images_per_second=model.images_per_second(n),
            efficiency=model.images_per_second(n) / model.ideal_images_per_second(n),
            measured_images_per_second=measured.get(n),
        )
        for n in sorted(wanted | set(measured))
    ]
