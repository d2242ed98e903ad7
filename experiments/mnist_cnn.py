"""The first chapter's two runs: the CNN on one replica, then afresh on two.

python experiments/mnist_cnn.py --data_dir=FOLDER_WITH_MNIST
python experiments/mnist_cnn.py --data_dir=FOLDER_WITH_MNIST --num_seeds=3

Prints seconds and validation accuracy per epoch side by side, then the table that README
shows; leaves the run directories, table.md and results.json in --workdir.
"""

import dataclasses
import pathlib
import statistics

from tfmirror import command, config

# (replicas, global batch size, learning rate), as the chapter calls its run().
RUNS = ((1, 64, 0.3), (2, 128, 0.3))


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment; unnamed ones are those of config.TrainConfig."""

    dataset: str = "mnist"
    data_dir: str = ""
    limit_train_examples: int = 0
    limit_eval_examples: int = 0
    device_type: str = "auto"
    epochs: int = 5
    num_seeds: int = dataclasses.field(
        default=1, metadata={"help": "train with so many seeds, 0, 1, ..."}
    )
    workdir: str = ""


def main(settings):
    """Trains every run with every seed, in turn, and prints what came out."""
    from tfmirror.training import writers

    config.require(
        settings.num_seeds >= 1, "num_seeds", settings.num_seeds, "at least 1"
    )
    folder = writers.create(settings.workdir, "mnist_cnn")
    summaries = {run: [] for run in RUNS}
    for seed in range(settings.num_seeds):
        for run in RUNS:
            summaries[run].append(train(settings, folder, seed, *run))
        print(
            f"\nseed {seed}\n"
            + epoch_table([summaries[run][-1] for run in RUNS])
            + "\n"
        )
    table = result_table(summaries)
    print(table)
    pathlib.Path(folder, "table.md").write_text(table + "\n", encoding="utf-8")
    results = [s for of_run in summaries.values() for s in of_run]
    writers.write_json(folder / "results.json", results)


def train(settings, folder, seed, num_replicas, batch_size, learning_rate):
    """Returns the summary of one run with a fresh model."""
    from tfmirror.training import run

    shared = dataclasses.asdict(settings)
    del shared["num_seeds"]
    workdir = str(folder / f"{num_replicas}replicas-seed{seed}")
    return run.train(
        config.TrainConfig(
            **shared | {"workdir": workdir},
            gpus=num_replicas,
            global_batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
        )
    )


def epoch_table(summaries):
    """Returns seconds and validation accuracy per epoch, a column pair for each run."""
    header = "".join(
        f" | {s['num_replicas']} replicas, batch {s['global_batch_size']:>3}"
        for s in summaries
    )
    lines = ["epoch" + header]
    for records in zip(*(s["epochs"] for s in summaries), strict=True):
        cells = (
            f"{r['train_seconds']:7.1f} s, acc {r['eval_accuracy']:.4f}"
            for r in records
        )
        lines.append(f"{records[0]['epoch']:5} | " + " | ".join(cells))
    return "\n".join(lines)


def result_table(summaries):
    """Returns the Markdown table: a row for each run, over its seeds."""
    lines = [
        "| replicas | global batch | learning rate | test accuracy, median (least to most) "
        "| seconds an epoch, median | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for (num_replicas, batch_size, learning_rate), of_run in summaries.items():
        accuracies = [s["final_eval_accuracy"] for s in of_run]
        seconds = [r["train_seconds"] for s in of_run for r in s["epochs"]]
        lines.append(
            f"| {num_replicas} | {batch_size} | {learning_rate} | "
            f"{statistics.median(accuracies):.4f} ({min(accuracies):.4f} to "
            f"{max(accuracies):.4f}) | {statistics.median(seconds):.1f} | {len(of_run)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__)
