"""Contenders that take turns, and what their turns say.

measured = measure(works, repetitions=5, seconds=2.0)
measured[0].median, ratio(measured[0], measured[1])
"""

import contextlib
import dataclasses
import statistics

from tfmirror import errors
from tfmirror.benchmarking import contenders
from tfmirror.benchmarking.workload import Workload
from tfmirror.command_config import PEERS

WARM_UP_STEPS = 5


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was measured of one Workload."""

    work: Workload
    speeds: tuple[float, ...]  # images a second of each turn
    start_seconds: float  # from the start of its process until it was ready
    ready: dict  # what its process said then
    parts: dict | None  # seconds a step of its parts; of tfmirror alone
    peak_bytes: int | None  # memory of its process
    roof: float | None  # operations a second of matrix products, just after

    @property
    def median(self):
        """Images a second."""
        return statistics.median(self.speeds)

    @property
    def step_seconds(self):
        """Seconds a step."""
        return self.work.global_batch_size / self.median

    @property
    def share_of_roof(self):
        """Operations of the model over those of a matrix product; None: not known."""
        if not self.roof:
            return None
        return self.median * self.ready["operations"] / self.roof


def measure(works, *, repetitions, seconds, torch_python="", say=print):
    """Returns (list of Measured, list of lines on what could not be measured).

    All contenders are started first; then each has a turn of about so many seconds,
    again and again, in an order that is turned round each time.

    Args:
      works: Works; a peer that can't be had is left out, and said so.
    """
    with contextlib.ExitStack() as stack:
        started, missing = [], []
        for work in works:
            try:
                started.append(
                    stack.enter_context(contenders.Contender(work, torch_python))
                )
                say(f"ready: {work.name}")
            except (errors.InputError, OSError) as error:
                if work.contender == "tfmirror":
                    raise
                missing.append(str(error))
                say(f"left out: {error}")
        speeds = take_turns(started, repetitions, seconds)
        found = [
            Measured(c.work, tuple(speeds[c]), c.start_seconds, c.ready, **_asked(c))
            for c in started
        ]
    return found, missing


def take_turns(started, repetitions, seconds):
    """Returns {contender: images a second of each of its turns}.

    Args:
      started: contenders.Contenders.
      repetitions, seconds: as of `measure`.
    """
    num_steps = {}
    for contender in started:
        contender.ask(WARM_UP_STEPS)
        once = contender.ask(WARM_UP_STEPS) / WARM_UP_STEPS
        num_steps[contender] = max(1, round(seconds / max(once, 1e-6)))
    speeds = {contender: [] for contender in started}
    for repetition in range(repetitions):
        for contender in started[:: -1 if repetition % 2 else 1]:
            taken = contender.ask(num_steps[contender])
            num_images = num_steps[contender] * contender.work.global_batch_size
            speeds[contender].append(num_images / taken)
    return speeds


def _asked(contender):
    """Returns what else is asked of a contender after its turns, as of Measured."""
    asked = {"peak_bytes": None, "roof": None, "parts": None}
    if contender.work.contender != "torch_ddp":
        asked["peak_bytes"] = contender.ask("memory")  # before the others need some
    if contender.work.contender == "tfmirror":
        asked |= {name: contender.ask(name) for name in ("roof", "parts")}
    return asked


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How two Measured compare, turn by turn."""

    of: Workload
    against: Workload
    median: float
    least: float
    most: float
    ideal: float | None  # None: there is none, as against others


def ratio(of, against, ideal=None):
    """Returns the Ratio of two Measured's speeds."""
    ratios = [a / b for a, b in zip(of.speeds, against.speeds, strict=True)]
    median = statistics.median(ratios)
    return Ratio(of.work, against.work, median, min(ratios), max(ratios), ideal)


def ratios(measured, ideal_grows):
    """Returns every Ratio that says something, in order.

    Each of ours against its peers, against the fewest replicas, against float32.

    Args:
      ideal_grows: whether N replicas have N times the cores or devices of one.
    """
    found = {m.work: m for m in measured}
    ours = [m for m in measured if m.work.contender == "tfmirror"]
    made = []
    for mine in ours:
        for peer in PEERS:
            if other := found.get(mine.work.by(peer)):
                made.append(ratio(mine, other))
        fewest = fewest_replicas(mine, ours)
        if fewest is not mine:
            times = mine.work.num_replicas / fewest.work.num_replicas
            made.append(ratio(mine, fewest, times if ideal_grows else 1.0))
        single = found.get(dataclasses.replace(mine.work, precision="float32"))
        if single and single is not mine:
            made.append(ratio(mine, single))
    return made


def fewest_replicas(mine, ours):
    """Returns the Measured of `ours` that differs from `mine` in having fewest."""

    def alike(work):
        return work.model, work.precision, work.contender

    return min(
        (m for m in ours if alike(m.work) == alike(mine.work) and _same_batch(m, mine)),
        key=lambda m: m.work.num_replicas,
    )


def _same_batch(one, other):
    """Returns whether two share the global batch, or the batch of a replica."""
    a, b = one.work, other.work
    per_replica = [w.global_batch_size / w.num_replicas for w in (a, b)]
    return (
        a.global_batch_size == b.global_batch_size or per_replica[0] == per_replica[1]
    )
