"""What the same bits on any number of devices cost, with 8 microbatches.

python experiments/microbatch_cost.py --data_dir=FOLDER_WITH_MNIST

Trains the CNN on one and two replicas with the same global batch cut into 8
microbatches, into 2, and as the replicas come; each in a process of its own, in turn.
Prints the ratios of their speeds turn by turn.
"""

import contextlib
import dataclasses
import statistics

from tfmirror import command, errors, metrics

GLOBAL_BATCH_SIZES = (128, 512)
MICROBATCHES = 8
FEW_MICROBATCHES = 2
NUMBERS_OF_REPLICAS = (1, 2)


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Settings of the experiment."""

    dataset: str = "mnist"
    data_dir: str = ""
    device_type: str = "auto"
    repetitions: int = dataclasses.field(
        default=9, metadata={"help": "turns of each, of which the median is taken"}
    )
    seconds: float = dataclasses.field(
        default=1.5, metadata={"help": "of a turn, about"}
    )


def check(settings):
    """Raises InputError for a wrong setting of the experiment's own."""
    got = settings.repetitions
    errors.require(got >= 1, "repetitions", got, "at least 1")
    errors.require(settings.seconds > 0, "seconds", settings.seconds, "more than 0")


def main(settings):
    """Prints a row for each number of replicas and each global batch size."""
    print(
        "| replicas | microbatches | examples in each | global batch | images/s "
        f"| against {FEW_MICROBATCHES} microbatches | against none fixed |\n"
        + "|---" * 7
        + "|"
    )
    for num_replicas in NUMBERS_OF_REPLICAS:
        for global_batch_size in GLOBAL_BATCH_SIZES:
            free, few, many = speeds(settings, num_replicas, global_batch_size)
            examples = global_batch_size // MICROBATCHES
            cells = [num_replicas, MICROBATCHES, examples, global_batch_size]
            cells.append(f"{statistics.median(many):,.0f}")
            for other in (few, free):
                ratios = [a / b for a, b in zip(many, other, strict=True)]
                cells.append(metrics.median_and_range(ratios, digits=2))
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def speeds(settings, num_replicas, global_batch_size):
    """Returns images a second of each turn: of none fixed, of few, and of many."""
    from tfmirror.benchmarking import contenders, rounds, workload

    free = workload.Workload(
        "tfmirror",
        "cnn",
        settings.dataset,
        settings.data_dir,
        num_replicas,
        global_batch_size,
        "float32",
        device_type=settings.device_type,
    )
    works = [
        dataclasses.replace(free, microbatches=microbatches)
        for microbatches in (0, FEW_MICROBATCHES, MICROBATCHES)
    ]
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(contenders.Contender(w)) for w in works]
        taken = rounds.take_turns(started, settings.repetitions, settings.seconds)
        return [taken[contender] for contender in started]


if __name__ == "__main__":
    command.run(main, ExperimentConfig, __doc__, check)
