"""What the same bits on any number of devices cost: 8 microbatches against 2.

python experiments/microbatch_cost.py --data_dir=FOLDER_WITH_MNIST

Trains the CNN on two replicas with the same global batch cut into 2 and into 8
microbatches, in one process and in turn, and prints the median ratio of their speeds.
"""

import dataclasses
import statistics
import time

from tfmirror import command, config

GLOBAL_BATCH_SIZES = (128, 512)
MICROBATCHES = (2, 8)
EXAMPLES_A_TURN = 12_800


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment; all others are those of config.TrainConfig."""

    dataset: str = "mnist"
    data_dir: str = ""
    device_type: str = "auto"
    repetitions: int = dataclasses.field(
        default=9, metadata={"help": "turns of each, of which the median is taken"}
    )


def check(settings):
    """Raises InputError for a wrong setting of the experiment's own."""
    got = settings.repetitions
    config.require(got >= 1, "repetitions", got, "at least 1")


def main(settings):
    """Prints a row for each global batch size."""
    print("| microbatches | examples in each | global batch | images/s | ratio |")
    print("|---|---|---|---|---|")
    for global_batch_size in GLOBAL_BATCH_SIZES:
        segments = {m: prepare(settings, global_batch_size, m) for m in MICROBATCHES}
        speeds = {m: [] for m in MICROBATCHES}
        for _ in range(settings.repetitions):
            for m, segment in segments.items():
                speeds[m].append(images_per_second(segment))
        few, many = MICROBATCHES
        ratios = [b / a for a, b in zip(speeds[few], speeds[many], strict=True)]
        speed = f"{statistics.median(speeds[many]):,.0f}"
        against = f"{statistics.median(speeds[few]):,.0f}"
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        ratio = f"{statistics.median(ratios):.2f} {spread}"
        cut = f"{many} | {global_batch_size // many} | {global_batch_size}"
        print(f"| {cut} | {speed} against {against} | {ratio} |", flush=True)


def prepare(settings, global_batch_size, num_microbatches):
    """Returns the segment of full batches, traced and warmed up."""
    from tfmirror.parallel import step
    from tfmirror.training import job

    chosen, resolved = job.choose(
        config.TrainConfig(
            gpus=2,
            dataset=settings.dataset,
            data_dir=settings.data_dir,
            device_type=settings.device_type,
            microbatches=num_microbatches,
            global_batch_size=global_batch_size,
        )
    )
    segment = job.prepare(resolved, chosen).train_segments[0]
    segment.run(10, step.zero_totals())
    return segment


def images_per_second(segment):
    """Returns the speed of one turn."""
    from tfmirror.parallel import step

    num_steps = EXAMPLES_A_TURN // segment.global_batch_size
    start = time.perf_counter()
    float(segment.run(num_steps, step.zero_totals()).loss_sum)  # waits for the device
    return num_steps * segment.global_batch_size / (time.perf_counter() - start)


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check)
