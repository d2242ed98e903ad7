"""The cost of the same bits on any number of devices, with 8 microbatches.

python experiments/microbatch_cost.py --data_dir=FOLDER_WITH_MNIST

Trains the CNN on one and two replicas with the same global batch cut into 8
microbatches, into 2, and into one for each replica. Each has its own process, and the
processes take turns. Prints the ratios of their speeds in the same turn.
"""

import contextlib
import dataclasses
import itertools
import statistics

from tfmirror import command, errors, tables
from tfmirror.settings import check_fields, setting, setting_of
from tfmirror.train_config import TrainConfig

GLOBAL_BATCH_SIZES = (128, 512)
MICROBATCHES = 8
FEW_MICROBATCHES = 2
NUMBERS_OF_REPLICAS = (1, 2)


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment."""

    dataset: str = setting_of(TrainConfig, "dataset", "mnist")
    data_dir: str = setting_of(TrainConfig, "data_dir")
    device_type: str = setting_of(TrainConfig, "device_type")
    repetitions: int = setting(
        9, "number of rounds; the median is reported", group="Experiment", minimum=1
    )
    seconds: float = setting(
        1.5, "approximate seconds of a measurement", group="Experiment"
    )


def check(settings: ExperimentConfig) -> None:
    """Raises InputError for a wrong setting of this experiment."""
    check_fields(settings)
    errors.require(settings.seconds > 0, "seconds", settings.seconds, "more than 0")


def main(settings: ExperimentConfig) -> None:
    """Prints a row for each number of replicas and each global batch size."""
    titles = ["replicas", "microbatches", "examples in each", "global batch"]
    titles += ["images/s", f"against {FEW_MICROBATCHES} microbatches"]
    print(tables.head([*titles, "against none fixed"]))
    setups = itertools.product(NUMBERS_OF_REPLICAS, GLOBAL_BATCH_SIZES)
    for num_replicas, global_batch_size in setups:
        free, few, many = measure_speeds(settings, num_replicas, global_batch_size)
        examples = global_batch_size // MICROBATCHES
        speed = f"{statistics.median(many):,.0f}"
        cells = [num_replicas, MICROBATCHES, examples, global_batch_size, speed]
        for other in (few, free):
            ratios = [a / b for a, b in zip(many, other, strict=True)]
            cells.append(tables.median_and_range(ratios, digits=2))
        print(tables.row(cells), flush=True)


def measure_speeds(
    settings: ExperimentConfig, num_replicas: int, global_batch_size: int
) -> list[list[float]]:
    """Returns images per second in each turn: with none fixed, with few, with many."""
    from tfmirror.benchmarking import contenders, rounds, workload

    free = workload.Workload(
        contender="tfmirror",
        model="cnn",
        dataset=settings.dataset,
        data_dir=settings.data_dir,
        num_replicas=num_replicas,
        global_batch_size=global_batch_size,
        precision="float32",
        device_type=settings.device_type,
    )
    workloads = [
        dataclasses.replace(free, microbatches=microbatches)
        for microbatches in (0, FEW_MICROBATCHES, MICROBATCHES)
    ]
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(contenders.Contender(w)) for w in workloads]
        of_rounds = rounds.run_rounds(started, settings.repetitions, settings.seconds)
        return [of_rounds[contender] for contender in started]


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check=check)
