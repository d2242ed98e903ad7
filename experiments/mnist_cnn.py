"""The first chapter's two runs: the CNN on one replica, then afresh on two.

python experiments/mnist_cnn.py --data_dir=FOLDER_WITH_MNIST --num_seeds=3

Prints seconds and validation accuracy per epoch side by side, then README's table;
leaves the run directories, table.md and results.json in --workdir.
"""

import dataclasses
import pathlib
from statistics import median

from tfmirror import command, config, errors, metrics

# As the chapter calls its run().
SETTINGS = ("gpus", "global_batch_size", "learning_rate")
RUNS = ((1, 64, 0.3), (2, 128, 0.3))


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment; all others are those of config.TrainConfig."""

    dataset: str = "mnist"
    data_dir: str = ""
    limit_train_examples: int = 0
    limit_eval_examples: int = 0
    device_type: str = "auto"
    epochs: int = 5
    num_seeds: int = dataclasses.field(
        default=1, metadata={"help": "train with so many seeds, 0, 1, ..."}
    )
    workdir: str = "runs/mnist_cnn"


def check(settings):
    """Raises InputError for a wrong setting of the experiment's own."""
    got = settings.num_seeds
    errors.require(got >= 1, "num_seeds", got, "at least 1")


def main(settings):
    """Trains every run with every seed, in turn, and prints what came out."""
    from tfmirror.rundir import directory
    from tfmirror.training import run

    folder = pathlib.Path(settings.workdir)
    shared = dataclasses.asdict(settings)
    del shared["num_seeds"]
    summaries = {setup: [] for setup in RUNS}
    for seed in range(settings.num_seeds):
        for setup in RUNS:  # a fresh model each
            own = dict(zip(SETTINGS, setup, strict=True), seed=seed)
            own["workdir"] = str(folder / f"{setup[0]}replicas-seed{seed}")
            summaries[setup].append(run.train(config.TrainConfig(**shared | own)))
        print(epoch_table(seed, [summaries[setup][-1] for setup in RUNS]))
    print(table := result_table(summaries))
    (folder / "table.md").write_text(table + "\n", encoding="utf-8")
    directory.write_json(folder / "results.json", sum(summaries.values(), []))


def epoch_table(seed, summaries):
    """Returns seconds and validation accuracy per epoch, side by side for each run."""
    lines = [f"seed {seed}: epoch, then a column for each number of replicas"]
    for records in zip(*(s["epochs"] for s in summaries), strict=True):
        cells = [
            f"{r['train_seconds']:5.1f} s {r['eval_accuracy']:.4f}" for r in records
        ]
        lines.append(f"{records[0]['epoch']:2} | " + " | ".join(cells))
    return "\n".join(lines)


def result_table(summaries):
    """Returns the Markdown table: a row for each run, over its seeds."""
    lines = [
        "| replicas | global batch | learning rate | test accuracy: median (range) "
        "| seconds an epoch: median | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for (num_replicas, batch_size, rate), of_run in summaries.items():
        accuracy = metrics.median_and_range([s["final_eval_accuracy"] for s in of_run])
        seconds = median(r["train_seconds"] for s in of_run for r in s["epochs"])
        cells = f"{num_replicas} | {batch_size} | {rate} | {accuracy} | {seconds:.1f}"
        lines.append(f"| {cells} | {len(of_run)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check)
