"""Measures contenders in rounds, and compares their speeds round by round.

    measurements, not_measured = measure(workloads, num_rounds=5, seconds=2.0)
    measurements[0].images_per_second
    ratio(measurements[0], measurements[1]).median

In each round every contender trains once, so what slows the machine down for a while
slows all of them, and hardly changes their ratios.
"""

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence

from tfmirror import errors
from tfmirror.benchmarking import contenders, messages
from tfmirror.benchmarking.workload import PEERS, Workload

WARM_UP_STEPS = 5


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was measured of one Workload."""

    workload: Workload
    speeds: tuple[float, ...]  # images per second, one for each round
    start_seconds: float  # from the start of the process until it was ready to train
    info: messages.ContenderInfo
    step_parts: messages.StepParts | None = None  # None: measured for tfmirror only
    peak_bytes: int | None = None  # largest memory of the process; None: not known
    # Matrix-multiply peak of the same devices, FLOP/s, measured after the rounds; None:
    # measured for tfmirror only.
    peak_flops: float | None = None

    @property
    def images_per_second(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.speeds)

    @property
    def step_seconds(self) -> float:
        """Seconds per training step, at the median speed."""
        return self.workload.global_batch_size / self.images_per_second

    @property
    def share_of_peak_flops(self) -> float | None:
        """The model's FLOP/s over the matrix-multiply peak; None: not known."""
        if not self.peak_flops or self.info.flops_per_example is None:
            return None
        return self.images_per_second * self.info.flops_per_example / self.peak_flops


def measure(
    workloads: Iterable[Workload],
    *,
    num_rounds: int,
    seconds: float,
    torch_python: str = "",
    log: Callable[[str], None] = print,
) -> tuple[list[Measurement], list[str]]:
    """Starts a contender for each workload, and measures all of them in rounds.

    Args:
      workloads: what to train. A peer's workload is left out if it can't be started.
      num_rounds: at least 1.
      seconds: about how long each contender trains in a round.
      torch_python: Python interpreter of an environment with PyTorch.
      log: called with one line for each contender, once it is ready or left out.

    Returns:
      The measurements, and for each workload that was left out a line that says why.

    Raises:
      InputError: a workload of tfmirror can't be started, or a contender has failed.
    """
    with contextlib.ExitStack() as stack:
        started, left_out = _start(stack, workloads, torch_python, log)
        speeds = run_rounds(started, num_rounds, seconds)
        return [_measurement(c, speeds[c]) for c in started], left_out


def _start(
    stack: contextlib.ExitStack,
    workloads: Iterable[Workload],
    torch_python: str,
    log: Callable[[str], None],
) -> tuple[list[contenders.Contender], list[str]]:
    """Returns the contenders that could be started, and why others could not.

    Args:
      stack: ends the contenders when it is closed.
    """
    started, left_out = [], []
    for workload in workloads:
        try:
            contender = contenders.Contender(workload, torch_python)
        except (errors.InputError, OSError) as error:
            if workload.contender == "tfmirror":
                raise
            left_out.append(str(error))
            log(f"left out: {error}")
        else:
            started.append(stack.enter_context(contender))
            log(f"ready: {workload.name}")
    return started, left_out


def run_rounds(
    started: Sequence[contenders.Contender], num_rounds: int, seconds: float
) -> dict[contenders.Contender, list[float]]:
    """Returns {contender: images per second in each round}.

    The order of the contenders is reversed in every second round.

    Args:
      started: contenders that are ready to train.
      num_rounds: at least 1.
      seconds: about how long each contender trains in a round.
    """
    num_steps = {}
    for contender in started:
        contender.train(WARM_UP_STEPS)
        step_seconds = contender.train(WARM_UP_STEPS) / WARM_UP_STEPS
        num_steps[contender] = max(1, round(seconds / max(step_seconds, 1e-6)))
    speeds: dict[contenders.Contender, list[float]] = {c: [] for c in started}
    for round_number in range(num_rounds):
        for contender in started[:: -1 if round_number % 2 else 1]:
            num_images = num_steps[contender] * contender.workload.global_batch_size
            train_seconds = contender.train(num_steps[contender])
            speeds[contender].append(num_images / train_seconds)
    return speeds


def _measurement(
    contender: contenders.Contender, speeds: Sequence[float]
) -> Measurement:
    """Returns the Measurement of a contender after its rounds."""
    is_ours = contender.workload.contender == "tfmirror"
    is_torch = contender.workload.contender == "torch_ddp"
    return Measurement(
        workload=contender.workload,
        speeds=tuple(speeds),
        start_seconds=contender.start_seconds,
        info=contender.info,
        # First, because the other two need memory of their own.
        peak_bytes=None if is_torch else contender.peak_bytes(),
        peak_flops=contender.peak_flops() if is_ours else None,
        step_parts=contender.step_parts() if is_ours else None,
    )


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The speed of a workload over that of a baseline, compared round by round."""

    workload: Workload
    baseline: Workload
    median: float
    lowest: float
    highest: float
    ideal: float | None = None  # None: no ideal ratio is known, as against a peer


def ratio(
    measurement: Measurement, baseline: Measurement, ideal: float | None = None
) -> Ratio:
    """Returns the Ratio of two measurements with the same number of rounds."""
    pairs = zip(measurement.speeds, baseline.speeds, strict=True)
    of_rounds = [speed / baseline_speed for speed, baseline_speed in pairs]
    return Ratio(
        workload=measurement.workload,
        baseline=baseline.workload,
        median=statistics.median(of_rounds),
        lowest=min(of_rounds),
        highest=max(of_rounds),
        ideal=ideal,
    )


def ratios(measurements: Sequence[Measurement], hardware_grows: bool) -> list[Ratio]:
    """Returns the Ratios of tfmirror to its peers, to fewer replicas and to float32.

    Args:
      measurements: those of one benchmark; comparisons that lack one are left out.
      hardware_grows: whether N replicas have N times the cores or devices of one, so
        that the ideal is N; else it is 1.
    """
    by_workload = {m.workload: m for m in measurements}
    ours = [m for m in measurements if m.workload.contender == "tfmirror"]
    compared = []
    for mine in ours:
        for peer in PEERS:
            if other := by_workload.get(mine.workload.for_contender(peer)):
                compared.append(ratio(mine, other))
        fewest = _with_fewest_replicas(mine, ours)
        if fewest is not mine:
            factor = mine.workload.num_replicas / fewest.workload.num_replicas
            compared.append(ratio(mine, fewest, factor if hardware_grows else 1.0))
        in_float32 = dataclasses.replace(mine.workload, precision="float32")
        single = by_workload.get(in_float32)
        if single and single is not mine:
            compared.append(ratio(mine, single))
    return compared


def _with_fewest_replicas(
    mine: Measurement, ours: Iterable[Measurement]
) -> Measurement:
    """Returns the one of `ours` with the fewest replicas that `mine` compares with."""
    comparable = (m for m in ours if _are_comparable(m.workload, mine.workload))
    return min(comparable, key=lambda m: m.workload.num_replicas)


def _are_comparable(a: Workload, b: Workload) -> bool:
    """Returns whether two workloads of tfmirror have the same model and precision.

    They must also have the same global batch size or the same per-replica batch size.
    """
    same_global = a.global_batch_size == b.global_batch_size
    per_replica = [w.global_batch_size / w.num_replicas for w in (a, b)]
    same_batch = same_global or per_replica[0] == per_replica[1]
    return same_batch and (a.model, a.precision) == (b.model, b.precision)
