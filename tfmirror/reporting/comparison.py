"""Runs beside each other: speed, speed-up, efficiency, accuracy.

rows = compare([read("runs/one"), read("runs/two")])
rows[1].speed_up, rows[1].efficiency
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    """One run of the comparison. None: not known."""

    number: int  # from 1, in the order given
    run: object  # runs.Run
    images_per_second: float | None
    per_replica: float | None  # images per second
    speed_up: float | None  # over the baseline's images per second
    efficiency: float | None  # speed-up over the ratio of replicas; 1.0 is ideal
    baseline: int | None  # number of the run that the last two are relative to
    final_accuracy: float | None  # on the evaluation set, after the last finished epoch
    best_accuracy: float | None
    seconds: float  # of training and evaluation

    @property
    def state(self):
        """How far the run came, in words."""
        num_epochs = self.run.settings.get("epochs", "?")
        if self.run.is_finished:
            return f"{num_epochs} epochs"
        return f"not finished: {len(self.run.records)} of {num_epochs} epochs"


def compare(runs):
    """Returns a Row for each of `runs`.

    A run's baseline is the one with the fewest replicas, the first of them, among those
    of the same model, dataset and precision that finished an epoch.
    """
    return [_row(number, run, runs) for number, run in enumerate(runs, start=1)]


def _row(number, run, runs):
    """Returns the Row of one of `runs`."""
    speed = run.images_per_second
    speed_up = efficiency = baseline = None
    if speed:
        rivals = [r for r in runs if r.images_per_second and _work(r) == _work(run)]
        base = min(rivals, key=lambda rival: rival.num_replicas)
        baseline = next(k for k, r in enumerate(runs, start=1) if r is base)
        speed_up = speed / base.images_per_second
        efficiency = speed_up * base.num_replicas / run.num_replicas
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
        seconds=run.seconds[-1],
    )


def _work(run):
    """Returns what two runs must share for their speeds to be compared."""
    return tuple(run.settings[name] for name in ("model", "dataset", "precision"))


def differing_settings(runs):
    """Returns {setting: [its value in each of `runs`]} of those that differ."""
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    values = {name: [run.settings.get(name) for run in runs] for name in names}
    return {n: of_runs for n, of_runs in values.items() if not _are_equal(of_runs)}


def _are_equal(values):
    """Returns whether all of a list are the same."""
    return all(value == values[0] for value in values)
