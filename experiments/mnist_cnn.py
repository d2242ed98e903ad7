"""The first chapter's two runs: the CNN on one replica, then afresh on two.

python experiments/mnist_cnn.py --data_dir=FOLDER_WITH_MNIST --num_seeds=3

Prints seconds and validation accuracy per epoch side by side, then a table; writes the
run directories, table.md and results.json to --workdir.
"""

import dataclasses
from statistics import median
from typing import Any

from tfmirror import command, config, errors, files, tables
from tfmirror.settings import check_fields, setting, setting_of
from tfmirror.train_config import TrainConfig

# As the chapter trains them.
SETTINGS = ("gpus", "global_batch_size", "learning_rate")
RUNS = ((1, 64, 0.3), (2, 128, 0.3))


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment; all others are those of config.TrainConfig."""

    dataset: str = setting_of(TrainConfig, "dataset", "mnist")
    data_dir: str = setting_of(TrainConfig, "data_dir")
    limit_train_examples: int = setting_of(TrainConfig, "limit_train_examples")
    limit_eval_examples: int = setting_of(TrainConfig, "limit_eval_examples")
    device_type: str = setting_of(TrainConfig, "device_type")
    epochs: int = setting_of(TrainConfig, "epochs", 5)
    num_seeds: int = setting(
        1, "number of seeds: 0, 1, ...", group="Experiment", minimum=1
    )
    workdir: str = setting_of(TrainConfig, "workdir", "runs/mnist_cnn")


def check(settings: ExperimentConfig) -> None:
    """Raises InputError for a wrong setting of this experiment."""
    check_fields(settings)


def main(settings: ExperimentConfig) -> None:
    """Trains every run with every seed, in turn, and prints the results."""
    from tfmirror.training import run

    folder = errors.expand_path("workdir", settings.workdir)
    shared = dataclasses.asdict(settings)
    del shared["num_seeds"]
    summaries: dict[tuple, list[dict]] = {setup: [] for setup in RUNS}
    for seed in range(settings.num_seeds):
        for setup in RUNS:  # a fresh model each
            own: dict[str, Any] = dict(zip(SETTINGS, setup, strict=True), seed=seed)
            own["workdir"] = str(folder / f"{setup[0]}replicas-seed{seed}")
            summaries[setup].append(run.train(config.TrainConfig(**shared | own)))
        print(epoch_table(seed, [summaries[setup][-1] for setup in RUNS]))
    print(table := result_table(summaries))
    files.write_text(folder / "table.md", table + "\n")
    files.write_json(folder / "results.json", sum(summaries.values(), []))


def epoch_table(seed: int, summaries: list[dict]) -> str:
    """Returns seconds and validation accuracy per epoch, with a column for each run."""
    lines = [f"seed {seed}: epoch, then a column for each number of replicas"]
    for records in zip(*(s["epochs"] for s in summaries), strict=True):
        cells = [
            f"{r['train_seconds']:5.1f} s {r['eval_accuracy']:.4f}" for r in records
        ]
        lines.append(f"{records[0]['epoch']:2} | " + " | ".join(cells))
    return "\n".join(lines)


def result_table(summaries: dict[tuple, list[dict]]) -> str:
    """Returns the Markdown table: a row for each run, over its seeds."""
    titles = ["replicas", "global batch", "learning rate"]
    titles += ["test accuracy: median (range)", "seconds an epoch: median", "seeds"]
    rows = []
    for setup, of_run in summaries.items():
        accuracy = tables.median_and_range([s["final_eval_accuracy"] for s in of_run])
        seconds = median(r["train_seconds"] for s in of_run for r in s["epochs"])
        rows.append([*setup, accuracy, f"{seconds:.1f}", len(of_run)])
    return tables.markdown(titles, rows)


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check=check)
