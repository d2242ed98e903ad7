"""Compares runs: speed, speed-up, efficiency, accuracy.

rows = compare([reader.read("runs/one"), reader.read("runs/two")])
rows[1].speed_up, rows[1].efficiency
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfmirror.rundir.reader import RunRecord


@dataclasses.dataclass(frozen=True)
class Row:
    """One run of the comparison. None: no epoch has finished."""

    number: int  # from 1, in the given order
    run: RunRecord
    images_per_second: float | None
    per_replica: float | None  # images per second
    speed_up: float | None  # images per second, divided by those of the baseline
    efficiency: float | None  # speed-up, divided by the ratio of replicas; ideal: 1.0
    baseline: int | None  # number of the run that speed-up and efficiency refer to
    final_accuracy: float | None  # on the evaluation set, after the last finished epoch
    best_accuracy: float | None  # on the evaluation set, of all finished epochs
    final_top5: float | None  # top-5 accuracy with the final one; None: not counted
    seconds: float  # of training and evaluation

    @property
    def state(self) -> str:
        """How many epochs the run has finished, in words."""
        num_epochs = self.run.settings.get("epochs", "?")
        if self.run.is_finished:
            return f"{num_epochs} epochs"
        return f"not finished: {len(self.run.records)} of {num_epochs} epochs"


def compare(runs: Sequence[RunRecord]) -> list[Row]:
    """Returns a Row for each run.

    The baseline of a run is taken from the runs with the same model, dataset and
    precision that have finished an epoch: the first with the fewest replicas.
    """
    return [_row(number, run, runs) for number, run in enumerate(runs, start=1)]


def _row(number: int, run: RunRecord, runs: Sequence[RunRecord]) -> Row:
    """Returns the Row of one of `runs`."""
    speed = run.images_per_second
    speed_up = efficiency = baseline = None
    if speed:
        comparable = [
            (other.num_replicas, k, other.images_per_second)
            for k, other in enumerate(runs, start=1)
            if other.images_per_second and _workload(other) == _workload(run)
        ]
        num_replicas, baseline, baseline_speed = min(comparable)
        speed_up = speed / baseline_speed
        efficiency = speed_up * num_replicas / run.num_replicas
    accuracies = run.values("eval_accuracy")
    return Row(
        number,
        run,
        images_per_second=speed,
        per_replica=speed and speed / run.num_replicas,
        speed_up=speed_up,
        efficiency=efficiency,
        baseline=baseline,
        final_accuracy=accuracies[-1] if accuracies else None,
        best_accuracy=max(accuracies, default=None),
        final_top5=run.records[-1].get("eval_top5_accuracy") if run.records else None,
        seconds=run.seconds[-1],
    )


def _workload(run: RunRecord) -> tuple[str, ...]:
    """Returns the settings that runs must share for their speeds to be compared."""
    return tuple(run.settings[name] for name in ("model", "dataset", "precision"))


def differing_settings(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Returns {setting: [its value in each run]} for the settings that differ.

    The value is None in a run that lacks the setting.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    values = {name: [run.settings.get(name) for run in runs] for name in names}
    return {
        name: of_runs
        for name, of_runs in values.items()
        if any(value != of_runs[0] for value in of_runs)
    }
