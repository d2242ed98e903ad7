"""How tracing grows with the number of microbatches: 64 of them against 8.

python experiments/tracing_cost.py

Builds a training step with the same global batch for each number, in one process and in
turn. Prints the time until the first step could run: tracing, compiling, and a call of
no step. A last batch of 100, cut into microbatches of two sizes, is traced too.
"""

import dataclasses
import functools
import statistics
import time

from tfmirror import command, tables
from tfmirror.settings import check_fields, setting, setting_of
from tfmirror.train_config import TrainConfig

MODELS = ("probe", "cnn", "resnet18")
MICROBATCHES = (8, 64)
GLOBAL_BATCH_SIZE = 128


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment; all others are those of config.TrainConfig."""

    gpus: int = setting_of(TrainConfig, "gpus", 2)
    device_type: str = setting_of(TrainConfig, "device_type")
    repetitions: int = setting(
        5, "number of rounds; the median is reported", group="Experiment", minimum=1
    )


def check(settings: ExperimentConfig) -> None:
    """Raises InputError for a wrong setting of this experiment."""
    check_fields(settings)


def main(settings: ExperimentConfig) -> None:
    """Prints a row for each model."""
    few, many = MICROBATCHES
    numbers = [f"M = {m}, seconds" for m in MICROBATCHES]
    print(tables.head(["model", *numbers, "ratio: median (range)"]))
    for model in MODELS:
        seconds: dict[int, list[float]] = {m: [] for m in MICROBATCHES}
        for _ in range(settings.repetitions):
            for m in MICROBATCHES:
                seconds[m].append(seconds_to_trace(settings, model, m))
        ratios = [b / a for a, b in zip(seconds[few], seconds[many], strict=True)]
        medians = [f"{statistics.median(seconds[m]):.2f}" for m in MICROBATCHES]
        ratio = tables.median_and_range(ratios, digits=2)
        print(tables.row([model, *medians, ratio]), flush=True)


def seconds_to_trace(
    settings: ExperimentConfig, name: str, num_microbatches: int
) -> float:
    """Returns the seconds to trace the steps of full batches and of a smaller last."""
    from tfmirror import models
    from tfmirror.data import datasets
    from tfmirror.parallel import devices, microbatches, optimizers, segments, step
    from tfmirror.parallel.step_loop import zero_totals
    from tfmirror.training import loop

    chosen = devices.set_up(settings.gpus, settings.device_type)
    strategy = devices.make_strategy(chosen)
    examples = datasets.load("synthetic").train
    with strategy.scope():
        model = models.build(name, datasets.SYNTHETIC_SHAPE, 10)
        sgd = optimizers.make_optimizer("sgd", 0.1)
        optimizer = optimizers.MirroredOptimizer(sgd, model)
    per_replica = microbatches.share_out(chosen.num_replicas, num_microbatches)
    plans = microbatches.plan_epoch(
        4 * GLOBAL_BATCH_SIZE + 100, GLOBAL_BATCH_SIZE, per_replica, in_fixed_tree=True
    )
    make_steps = functools.partial(step.make_train_steps, strategy, model, optimizer)
    start = time.perf_counter()
    made = segments.make_segments(strategy, examples, plans, make_steps)
    loop.trace(made, zero_totals())
    return time.perf_counter() - start


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check=check)
