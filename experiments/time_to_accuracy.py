"""How long training with a preset takes to reach a test accuracy.

python experiments/time_to_accuracy.py --data_dir=FOLDER_WITH_MNIST --num_seeds=5

The seconds are those of training and evaluation up to the end of the first epoch that
reaches it. Tracing, which a run does once, has its own column.
"""

import dataclasses
import itertools
from typing import Any

from tfmirror import command, config, errors, recipes, tables
from tfmirror.settings import check_fields, setting, setting_of
from tfmirror.train_config import TrainConfig

TITLES = (
    "preset", "replicas", "reached", "seconds to it: median (range)", "tracing, s",
    "accuracy at the end: median (range)",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment; all others are those of config.TrainConfig."""

    dataset: str = setting_of(TrainConfig, "dataset", "mnist")
    data_dir: str = setting_of(TrainConfig, "data_dir")
    limit_train_examples: int = setting_of(TrainConfig, "limit_train_examples")
    gpus: int = setting_of(TrainConfig, "gpus", 1)
    preset: str = setting(
        "fast", "preset to train with", group="Experiment", choices=recipes.PRESETS
    )
    accuracy: float = setting(
        0.99, "test accuracy to reach, in (0, 1]", group="Experiment"
    )
    num_seeds: int = setting(
        1, "number of seeds: 0, 1, ...", group="Experiment", minimum=1
    )
    workdir: str = setting_of(TrainConfig, "workdir", "runs/time_to_accuracy")


def check(settings: ExperimentConfig) -> None:
    """Raises InputError for a wrong setting of this experiment."""
    check_fields(settings)
    accuracy = settings.accuracy
    errors.require(0 < accuracy <= 1, "accuracy", accuracy, "in (0, 1]")


def main(settings: ExperimentConfig) -> None:
    """Trains with every seed and prints the results."""
    from tfmirror.training import run

    shared: dict[str, Any] = recipes.PRESETS[settings.preset] | dataclasses.asdict(
        settings
    )
    for name in ("preset", "accuracy", "num_seeds"):
        del shared[name]
    summaries = []
    for seed in range(settings.num_seeds):
        shared |= {"seed": seed, "workdir": f"{settings.workdir}/seed{seed}"}
        summaries.append(run.train(config.TrainConfig(**shared)))
    print(tables.markdown(TITLES, [cells(settings, summaries)]))


def cells(settings: ExperimentConfig, summaries: list[dict]) -> list[str]:
    """Returns the cells of the table's row, one for each of TITLES."""
    times = [seconds_to(s["epochs"], settings.accuracy) for s in summaries]
    reached = [seconds for seconds in times if seconds is not None]
    return [
        settings.preset,
        str(summaries[0]["num_replicas"]),
        f"{settings.accuracy:g}: {len(reached)} of {len(times)}",
        tables.median_and_range(reached, digits=1) if reached else "never",
        tables.median_and_range([s["trace_seconds"] for s in summaries], digits=1),
        tables.median_and_range([s["final_eval_accuracy"] for s in summaries]),
    ]


def seconds_to(epochs: list[dict], accuracy: float) -> float | None:
    """Returns the seconds to the end of the first epoch that reaches `accuracy`."""
    spent = itertools.accumulate(e["train_seconds"] + e["eval_seconds"] for e in epochs)
    for seconds, epoch in zip(spent, epochs, strict=True):
        if epoch["eval_accuracy"] >= accuracy:
            return seconds
    return None


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check=check)
