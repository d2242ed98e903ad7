"""How long training takes until the test accuracy is there, with a preset.

python experiments/time_to_accuracy.py --data_dir=FOLDER_WITH_MNIST --num_seeds=5

Seconds are those of training and evaluation up to the first epoch that reaches it;
tracing, which a run does once, stands beside.
"""

import dataclasses
import itertools

from tfmirror import command, config, errors, metrics

TITLES = (
    "preset | replicas | reached | seconds to it: median (range) | tracing, s "
    "| accuracy at the end: median (range)"
)


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment; all others are those of config.TrainConfig."""

    dataset: str = "mnist"
    data_dir: str = ""
    limit_train_examples: int = 0
    gpus: int = 1
    preset: str = dataclasses.field(
        default="fast", metadata={"help": "as of tfmirror.train"}
    )
    accuracy: float = dataclasses.field(
        default=0.99, metadata={"help": "on the test set, to be reached"}
    )
    num_seeds: int = dataclasses.field(
        default=1, metadata={"help": "train with so many seeds, 0, 1, ..."}
    )
    workdir: str = "runs/time_to_accuracy"


def check(settings):
    """Raises InputError for a wrong setting of the experiment's own."""
    got, accuracy = settings.num_seeds, settings.accuracy
    errors.require(got >= 1, "num_seeds", got, "at least 1")
    errors.require(0 < accuracy <= 1, "accuracy", accuracy, "more than 0 and at most 1")
    errors.require_one_of(config.PRESETS, "preset", settings.preset)


def main(settings):
    """Trains with every seed and prints what came out."""
    from tfmirror.training import run

    shared = config.PRESETS[settings.preset] | dataclasses.asdict(settings)
    for name in ("preset", "accuracy", "num_seeds"):
        del shared[name]
    summaries = []
    for seed in range(settings.num_seeds):
        shared |= {"seed": seed, "workdir": f"{settings.workdir}/seed{seed}"}
        summaries.append(run.train(config.TrainConfig(**shared)))
    row = cells(settings, summaries)
    print(f"| {TITLES} |\n{'|---' * len(row)}|\n| {' | '.join(row)} |")


def cells(settings, summaries):
    """Returns the cells of the table's row, as of TITLES."""
    times = [seconds_to(s["epochs"], settings.accuracy) for s in summaries]
    reached = [seconds for seconds in times if seconds is not None]
    return [
        settings.preset,
        str(summaries[0]["num_replicas"]),
        f"{settings.accuracy:g}: {len(reached)} of {len(times)}",
        metrics.median_and_range(reached, digits=1) if reached else "never",
        metrics.median_and_range([s["trace_seconds"] for s in summaries], digits=1),
        metrics.median_and_range([s["final_eval_accuracy"] for s in summaries]),
    ]


def seconds_to(epochs, accuracy):
    """Returns the seconds to the end of the first epoch that reaches it, or None."""
    spent = itertools.accumulate(e["train_seconds"] + e["eval_seconds"] for e in epochs)
    for seconds, epoch in zip(spent, epochs, strict=True):
        if epoch["eval_accuracy"] >= accuracy:
            return seconds
    return None


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check)
