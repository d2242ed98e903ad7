"""The second chapter's two runs: ResNet-18 on one replica, then afresh on two.

python experiments/fashion_resnet18.py --data_dir=FOLDER_WITH_FASHION_MNIST

Prints test accuracy, seconds per epoch and a table; writes the runs, table.md and
accuracy.png to --workdir. Runs that have finished there are not run again.
"""

import dataclasses
from statistics import median

from tfmirror import command, config, errors, files, metrics, tables
from tfmirror.settings import setting_of

# As the chapter trains them.
SETTINGS = ("gpus", "global_batch_size", "learning_rate")
RUNS = ((1, 256, 0.1), (2, 512, 0.2))


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment; all others are those of config.TrainConfig."""

    dataset: str = setting_of(config.TrainConfig, "dataset", "fashion_mnist")
    data_dir: str = setting_of(config.TrainConfig, "data_dir")
    limit_train_examples: int = setting_of(config.TrainConfig, "limit_train_examples")
    limit_eval_examples: int = setting_of(config.TrainConfig, "limit_eval_examples")
    device_type: str = setting_of(config.TrainConfig, "device_type")
    epochs: int = setting_of(config.TrainConfig, "epochs", 10)
    schedule: str = setting_of(config.TrainConfig, "schedule")
    warmup_epochs: float = setting_of(config.TrainConfig, "warmup_epochs")
    precision: str = setting_of(config.TrainConfig, "precision")
    seed: int = setting_of(config.TrainConfig, "seed")
    workdir: str = setting_of(config.TrainConfig, "workdir", "runs/fashion_resnet18")


def check(settings: ExperimentConfig) -> None:
    """Raises InputError for a wrong setting."""
    config.check(train_config(settings, RUNS[0]))


def train_config(
    settings: ExperimentConfig, setup: tuple[int, int, float]
) -> config.TrainConfig:
    """Returns the settings of one of RUNS."""
    own = dict(zip(SETTINGS, setup, strict=True), resume="auto")
    own["workdir"] = f"{settings.workdir}/{metrics.replicas_text(setup[0])}"
    return config.TrainConfig(model="resnet18", **dataclasses.asdict(settings) | own)


def main(settings: ExperimentConfig) -> None:
    """Trains both runs and compares them."""
    from tfmirror.reporting import plots
    from tfmirror.rundir import reader
    from tfmirror.training import run

    summaries = [run.train(train_config(settings, s)) for s in RUNS]
    print(*map(chapter_line, summaries), sep="\n")
    print(table := result_table(summaries))
    folder = errors.expand_path("workdir", settings.workdir)
    files.write_text(folder / "table.md", table + "\n")
    drawn = plots.draw_accuracy([reader.read(s["workdir"]) for s in summaries])
    plots.save(drawn, folder / "accuracy.png")


def chapter_line(summary: dict) -> str:
    """Returns what the chapter prints at the end of a run."""
    seconds = median(record["train_seconds"] for record in summary["epochs"])
    text = f"test acc: {summary['final_eval_accuracy']:.4f}, {seconds:.1f} sec/epoch"
    return f"{text} on [{', '.join(summary['devices'])}]"


def result_table(summaries: list[dict]) -> str:
    """Returns the Markdown table: a row for each run."""
    titles = ["replicas", "global batch", "learning rate", "test accuracy: last, best"]
    titles += ["seconds an epoch: median", "images/s", "precision"]
    rows = []
    for setup, summary in zip(RUNS, summaries, strict=True):
        records = summary["epochs"]
        best = max(record["eval_accuracy"] for record in records)
        accuracy = f"{summary['final_eval_accuracy']:.4f}, {best:.4f}"
        seconds = f"{median(record['train_seconds'] for record in records):.1f}"
        speed = f"{median(record['images_per_second'] for record in records):,.0f}"
        rows.append([*setup, accuracy, seconds, speed, summary["precision"]])
    return tables.markdown(titles, rows)


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check=check)
