"""How tracing grows with the number of microbatches: 64 of them against 8.

python experiments/tracing_cost.py

Builds a training step of the same global batch for each, in one process and in turn,
and prints how long it takes until the first step could run: tracing, compiling, and a
call of no step. A last batch of 100, cut into microbatches of two sizes, is traced too.
"""

import dataclasses
import functools
import statistics
import time

from tfmirror import command, errors

MODELS = ("probe", "cnn", "resnet18")
MICROBATCHES = (8, 64)
GLOBAL_BATCH_SIZE = 128


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment; all others are those of config.TrainConfig."""

    gpus: int = 2
    device_type: str = "auto"
    repetitions: int = dataclasses.field(
        default=5, metadata={"help": "turns of each, of which the median is taken"}
    )


def check(settings):
    """Raises InputError for a wrong setting of the experiment's own."""
    got = settings.repetitions
    errors.require(got >= 1, "repetitions", got, "at least 1")


def main(settings):
    """Prints a row for each model."""
    few, many = MICROBATCHES
    print(
        f"| model | M = {few}, seconds | M = {many}, seconds | ratio: median, range |"
    )
    print("|---|---|---|---|")
    for model in MODELS:
        seconds = {m: [] for m in MICROBATCHES}
        for _ in range(settings.repetitions):
            for m in MICROBATCHES:
                seconds[m].append(seconds_to_trace(settings, model, m))
        ratios = [b / a for a, b in zip(seconds[few], seconds[many], strict=True)]
        cells = [f"{statistics.median(seconds[m]):.2f}" for m in MICROBATCHES]
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        ratio = f"{statistics.median(ratios):.2f} {spread}"
        print(f"| {model} | {' | '.join(cells)} | {ratio} |", flush=True)


def seconds_to_trace(settings, name, num_microbatches):
    """Returns how long the steps of full batches and of an uneven last one take."""
    from tfmirror import models
    from tfmirror.data import datasets
    from tfmirror.parallel import devices, microbatches, optimizers, segments, step
    from tfmirror.training import loop

    chosen = devices.choose(settings.gpus, settings.device_type)
    strategy = devices.make_strategy(chosen)
    examples = datasets.load("synthetic").train
    with strategy.scope():
        model = models.build(name, datasets.SYNTHETIC_SHAPE, 10)
        optimizer = optimizers.make_optimizer("sgd", 0.1)
        optimizer = optimizers.MirroredOptimizer(optimizer, model)
    shares = microbatches.share_out(chosen.num_replicas, num_microbatches)
    start = time.perf_counter()
    made = segments.make_segments(
        strategy,
        examples,
        microbatches.plan_epoch(
            4 * GLOBAL_BATCH_SIZE + 100, GLOBAL_BATCH_SIZE, shares, True
        ),
        functools.partial(step.make_train_steps, strategy, model, optimizer),
    )
    loop.trace(made, step.zero_totals())
    return time.perf_counter() - start


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check)
