"""Trains every combination of some settings; makes a table and a heat map of them.

python experiments/sweep.py --gpus=1,2,4,8 --lr_scaling=none,linear --epochs=5
python experiments/sweep.py --learning_rate=0.1,0.3 --global_batch_size=64,256

Runs that have finished in --workdir are not run again, so the sweep may be interrupted,
and lists may grow. Writes the run directories, table.md and heat_map.png.
"""

import dataclasses
import itertools
import pathlib
from typing import Any

from tfmirror import command, config, errors, files, flags
from tfmirror.settings import describe, flag_fields, setting, setting_of


def list_setting(default: str, what: str) -> Any:
    """Returns the field of a setting that may be a list."""
    text = f"{what}, comma-separated; empty: from the model's recipe"
    return setting(default, text, group="Experiment", is_list=True)


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Settings of the sweep; those that may be lists come first."""

    lr_scaling: str = list_setting("", "how the rate follows the global batch")
    warmup_epochs: str = list_setting("0", "epochs of warm-up")
    learning_rate: str = list_setting("", "step sizes")
    per_replica_batch_size: str = list_setting("", "examples per step on each replica")
    global_batch_size: str = list_setting("", "examples per step over all replicas")
    epochs: str = list_setting("", "passes over the training examples")
    seed: str = list_setting("0", "seeds")
    gpus: str = list_setting("2", "numbers of replicas")
    model: str = setting_of(config.TrainConfig, "model")
    dataset: str = setting_of(config.TrainConfig, "dataset")
    data_dir: str = setting_of(config.TrainConfig, "data_dir")
    limit_train_examples: int = setting_of(config.TrainConfig, "limit_train_examples")
    limit_eval_examples: int = setting_of(config.TrainConfig, "limit_eval_examples")
    device_type: str = setting_of(config.TrainConfig, "device_type")
    precision: str = setting_of(config.TrainConfig, "precision")
    workdir: str = setting_of(config.TrainConfig, "workdir", "runs/sweep")


LISTS = tuple(f.name for f in flag_fields(SweepConfig) if describe(f).is_list)


def check(settings: SweepConfig) -> None:
    """Raises InputError for a wrong value in any of the lists."""
    for choice in combinations(settings):
        config.check(train_config(settings, choice))


def combinations(settings: SweepConfig) -> list[dict[str, str]]:
    """Returns a {setting: text} for each run, in order; the last list changes first."""
    lists = [getattr(settings, name).split(",") for name in LISTS]
    return [dict(zip(LISTS, c, strict=True)) for c in itertools.product(*lists)]


def train_config(settings: SweepConfig, choice: dict[str, str]) -> config.TrainConfig:
    """Returns the settings of one combination."""
    given = {name: text for name, text in choice.items() if text}
    name = " ".join(f"{name}={text}" for name, text in given.items())
    shared = {k: v for k, v in dataclasses.asdict(settings).items() if k not in LISTS}
    own = flags.parse([f"--{n}={t}" for n, t in given.items()], config.TrainConfig)
    workdir = str(pathlib.Path(settings.workdir) / name)
    return dataclasses.replace(own, **shared | {"workdir": workdir}, resume="auto")


def main(settings: SweepConfig) -> None:
    """Trains the combinations that have not finished, and shows all of them."""
    from tfmirror.reporting import plots, sweeps
    from tfmirror.training import run

    choices, accuracies = combinations(settings), []
    for number, choice in enumerate(choices, start=1):
        print(f"run {number} of {len(choices)}: {choice}", flush=True)
        summary = run.train(train_config(settings, choice))
        accuracies.append(summary["final_eval_accuracy"])
    print(table := sweeps.make_table(choices, accuracies))
    folder = errors.expand_path("workdir", settings.workdir)
    files.write_text(folder / "table.md", table + "\n")
    plots.save(sweeps.draw(choices, accuracies), folder / "heat_map.png")


if __name__ == "__main__":
    command.run(main, SweepConfig, __doc__, check=check)
