"""What more devices and hosts would give, predicted from what was measured.

    link = fit_link({2**20: 0.7e-3, 2**23: 4e-3}, num_replicas=2)
    seconds = ring_seconds(44e6, num_replicas=8, link=link)

The alpha-beta model of a ring all-reduce (Thakur, Rabenseifner and Gropp, 2005,
Optimization of collective communication operations in MPICH, section 4; Patarasuk and
Yuan, 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations): N
participants exchange n bytes in 2 (N - 1) rounds of n / N bytes each, and a round of m
bytes takes alpha + m beta seconds,

    T(n, N) = 2 (N - 1) alpha + 2 (N - 1) / N n beta.

On logical CPU devices gradients are added on one device, which is no ring: there the
formula is fitted to something else, and the error on a held-out N says how well.
"""

import dataclasses

import numpy as np

BITS_OF_A_BYTE = 8


@dataclasses.dataclass(frozen=True)
class Link:
    """What a round costs."""

    alpha: float  # seconds
    beta: float  # seconds a byte


def ring_seconds(num_bytes, num_replicas, link):
    """Returns the seconds in which a ring adds so many bytes; 0 for one replica."""
    rounds = 2 * (num_replicas - 1)
    return rounds * (link.alpha + num_bytes / num_replicas * link.beta)


def fit_link(seconds_of_bytes, num_replicas):
    """Returns the Link with which a ring takes the measured seconds, least squares.

    Args:
      seconds_of_bytes: {bytes: seconds}, two sizes or more.
      num_replicas: at least 2.
    """
    rounds = 2 * (num_replicas - 1)
    rows = [[rounds, rounds / num_replicas * n] for n in seconds_of_bytes]
    times = list(seconds_of_bytes.values())
    # Relative errors, so that small sizes count as much as large ones.
    weights = 1 / np.array(times)
    scaled = np.array(rows) * weights[:, np.newaxis]
    ones = np.ones(len(times))
    (alpha, beta), *_ = np.linalg.lstsq(scaled, ones, rcond=None)
    if alpha < 0:  # no time is: bandwidth alone explains it best
        alpha, beta = 0.0, scaled[:, 1] @ ones / (scaled[:, 1] @ scaled[:, 1])
    return Link(float(alpha), max(float(beta), 0.0))


def link_of(gigabits_per_second, microseconds):
    """Returns the Link of a stated bandwidth and latency."""
    return Link(microseconds * 1e-6, BITS_OF_A_BYTE / (gigabits_per_second * 1e9))


@dataclasses.dataclass(frozen=True)
class Model:
    """A training step in parts, for a fixed number of examples on each replica."""

    per_replica_batch_size: float
    compute_seconds: float  # forward and backward, on one replica's own cores or device
    other_seconds: float  # input, update and the rest
    num_bytes: int  # that are reduced: the gradients
    inside: Link  # within a host
    between: Link  # between hosts
    replicas_per_host: int
    share_cores: bool  # whether replicas share the same cores

    def step_seconds(self, num_replicas):
        """Returns the predicted seconds a step of so many replicas."""
        on_host = min(num_replicas, self.replicas_per_host)
        num_hosts = -(-num_replicas // self.replicas_per_host)
        turns = on_host if self.share_cores else 1
        return (
            turns * (self.compute_seconds + self.other_seconds)
            + ring_seconds(self.num_bytes, on_host, self.inside)
            + ring_seconds(self.num_bytes, num_hosts, self.between)
        )

    def images_per_second(self, num_replicas):
        """Returns the predicted speed of so many replicas."""
        images = self.per_replica_batch_size * num_replicas
        return images / self.step_seconds(num_replicas)

    def ideal_images_per_second(self, num_replicas):
        """Returns the speed of one replica times the hardware of so many."""
        num_hosts = -(-num_replicas // self.replicas_per_host)
        hardware = num_hosts if self.share_cores else num_replicas
        return hardware * self.images_per_second(1)


def fit(measured, *, share_cores, between, replicas_per_host):
    """Returns the Model of one Measured of tfmirror on two replicas or more."""
    work, parts = measured.work, measured.parts
    sizes = {int(n): t for n, t in parts["reduction_of_bytes"].items()}
    inside = fit_link(sizes, work.num_replicas)
    num_bytes = 4 * measured.ready["num_weights"]
    turns = work.num_replicas if share_cores else 1
    reduction = ring_seconds(num_bytes, work.num_replicas, inside)
    other = max(measured.step_seconds - parts["compute"] - reduction, 0.0)
    return Model(
        work.global_batch_size / work.num_replicas,
        parts["compute"] / turns,
        other / turns,
        num_bytes,
        inside,
        between,
        replicas_per_host,
        share_cores,
    )
