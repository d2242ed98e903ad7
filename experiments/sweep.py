"""Every combination of some settings, each a run; a table and a heat map of them.

python experiments/sweep.py --gpus=1,2,4,8 --lr_scaling=none,linear --epochs=5
python experiments/sweep.py --learning_rate=0.1,0.3 --global_batch_size=64,256

Runs that are finished in --workdir are not run again, so it may be interrupted, and
lists may grow. Leaves the run directories, table.md and heat_map.png.
"""

import dataclasses
import itertools
import math
import pathlib

from tfmirror import command, config, flags


def setting(default, what):
    """Returns the field of a setting that may be a list."""
    text = f"{what}: one, or several with commas between; empty: the recipe's"
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Settings of the sweep; those that may be lists come first."""

    lr_scaling: str = setting("", "how the learning rate follows the global batch")
    warmup_epochs: str = setting("0", "epochs of linear rise")
    learning_rate: str = setting("", "step size")
    per_replica_batch_size: str = setting("", "examples a step on each replica")
    global_batch_size: str = setting("", "examples a step over all replicas")
    epochs: str = setting("", "passes over the training examples")
    seed: str = setting("0", "seeds")
    gpus: str = setting("2", "numbers of replicas")
    model: str = "cnn"
    dataset: str = "digits"
    data_dir: str = ""
    limit_train_examples: int = 0
    limit_eval_examples: int = 0
    device_type: str = "auto"
    precision: str = "float32"
    workdir: str = "runs/sweep"


LISTS = tuple(f.name for f in dataclasses.fields(SweepConfig) if f.metadata)


def check(settings):
    """Raises InputError for a wrong value in any of the lists."""
    for choice in combinations(settings):
        config.check(train_config(settings, choice))


def combinations(settings):
    """Returns a {setting: text} for each run, in order; the last list changes first."""
    lists = [getattr(settings, name).split(",") for name in LISTS]
    return [dict(zip(LISTS, c, strict=True)) for c in itertools.product(*lists)]


def train_config(settings, choice):
    """Returns the config.TrainConfig of one combination."""
    given = {name: text for name, text in choice.items() if text}
    name = " ".join(f"{name}={text}" for name, text in given.items())
    shared = {k: v for k, v in dataclasses.asdict(settings).items() if k not in LISTS}
    own = flags.parse([f"--{n}={t}" for n, t in given.items()], config.TrainConfig)
    workdir = str(pathlib.Path(settings.workdir) / name)
    return dataclasses.replace(own, **shared | {"workdir": workdir}, resume="auto")


def main(settings):
    """Trains what is not trained yet, and shows all."""
    from tfmirror.reporting import plots, sweeps
    from tfmirror.training import run

    choices = combinations(settings)
    accuracies = []
    for number, choice in enumerate(choices, start=1):
        print(f"run {number} of {len(choices)}: {choice}", flush=True)
        summary = run.train(train_config(settings, choice))
        accuracies.append(summary["final_eval_accuracy"])
    print(table := sweeps.make_table(choices, accuracies))
    folder = pathlib.Path(settings.workdir)
    (folder / "table.md").write_text(table + "\n", encoding="utf-8")
    drawn = plots.draw_heat_map(*sweeps.make_grid(choices, accuracies, math.nan))
    plots.save(drawn, folder / "heat_map.png")


if __name__ == "__main__":
    command.run(main, SweepConfig, __doc__, check)
