"""The second chapter's two runs: ResNet-18 on one replica, then afresh on two.

python experiments/fashion_resnet18.py --data_dir=FOLDER_WITH_FASHION_MNIST

Prints test accuracy, seconds per epoch and README's table; leaves runs, table.md and
accuracy.png in --workdir. Runs that are finished there are not run again.
"""

import dataclasses
import pathlib
from statistics import median

from tfmirror import command, config, metrics

# Replicas, global batch and learning rate, as the chapter trains them.
SETTINGS = ("gpus", "global_batch_size", "learning_rate")
RUNS = ((1, 256, 0.1), (2, 512, 0.2))


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment; all others are those of config.TrainConfig."""

    dataset: str = "fashion_mnist"
    data_dir: str = ""
    limit_train_examples: int = 0
    limit_eval_examples: int = 0
    device_type: str = "auto"
    epochs: int = 10
    schedule: str = "constant"
    warmup_epochs: float = 0.0
    precision: str = "float32"
    seed: int = 0
    workdir: str = "runs/fashion_resnet18"


def check(settings):
    """Raises InputError for a wrong setting."""
    config.check(train_config(settings, RUNS[0]))


def train_config(settings, setup):
    """Returns the config.TrainConfig of one of RUNS."""
    own = dict(zip(SETTINGS, setup, strict=True)) | {"resume": "auto"}
    own["workdir"] = f"{settings.workdir}/{metrics.replicas_text(setup[0])}"
    return config.TrainConfig(model="resnet18", **dataclasses.asdict(settings) | own)


def main(settings):
    """Trains both runs and shows how they compare."""
    from tfmirror.reporting import plots
    from tfmirror.rundir import reader
    from tfmirror.training import run

    summaries = [run.train(train_config(settings, s)) for s in RUNS]
    print(*map(chapter_line, summaries), sep="\n")
    folder = pathlib.Path(settings.workdir)
    print(table := result_table(summaries))
    (folder / "table.md").write_text(table + "\n", encoding="utf-8")
    drawn = plots.draw_accuracy([reader.read(s["workdir"]) for s in summaries])
    plots.save(drawn, folder / "accuracy.png")


def chapter_line(summary):
    """Returns what the chapter prints at the end of a run."""
    seconds = median(record["train_seconds"] for record in summary["epochs"])
    text = f"test acc: {summary['final_eval_accuracy']:.4f}, {seconds:.1f} sec/epoch"
    return f"{text} on [{', '.join(summary['devices'])}]"


def result_table(summaries):
    """Returns the Markdown table: a row for each run."""
    lines = [
        "| replicas | global batch | learning rate | test accuracy: last, best "
        "| seconds an epoch: median | images/s | precision |\n" + "|---" * 7 + "|"
    ]
    for (num_replicas, batch_size, rate), summary in zip(RUNS, summaries, strict=True):
        records = summary["epochs"]
        best = max(record["eval_accuracy"] for record in records)
        seconds, speed = (
            median(record[key] for record in records)
            for key in ("train_seconds", "images_per_second")
        )
        accuracy = f"{summary['final_eval_accuracy']:.4f}, {best:.4f}"
        cells = f"{num_replicas} | {batch_size} | {rate} | {accuracy} | {seconds:.1f}"
        lines.append(f"| {cells} | {speed:,.0f} | {summary['precision']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check)
