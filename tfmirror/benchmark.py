"""Measures how fast it trains, against others and against what the machine can do.

python -m tfmirror.benchmark --gpus=1,2 --peer=keras_fit
python -m tfmirror.benchmark --model=resnet18 --precision=float32,bfloat16 --gpus=2 \\
    --peer=keras_fit,torch_ddp --torch_python=TORCH_ENVIRONMENT/bin/python
python -m tfmirror.benchmark --gpus=1,2,4 --per_replica_batch_size=64 --predict=8,16

Every contender is a process of its own; they train alternately, in rounds. The last
line of the output is one JSON object.
"""

import dataclasses
import json
import math
import re
import typing
from collections.abc import Iterable, Sequence

from tfmirror import (
    command,
    errors,
    hardware,
    model_source,
    process_environment,
)
from tfmirror.benchmarking.workload import PEERS
from tfmirror.recipes import RECIPES
from tfmirror.settings import LARGEST_INT, check_fields, setting, setting_of
from tfmirror.train_config import TrainConfig

GROUP = "Benchmark"
MOST_REPLICAS = 256  # as the setting gpus of a training run


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """All settings of a benchmark. Lists are comma-separated texts."""

    model: str = setting(
        "cnn",
        "models to train, comma-separated; FILE.py:FUNCTION or "
        "package.module:FUNCTION is one of your own",
        group=GROUP,
        choices=sorted(RECIPES),
        check_choice=model_source.check,
        is_list=True,
    )
    gpus: str = setting(
        "1,2", "numbers of replicas, comma-separated", group=GROUP, is_list=True
    )
    global_batch_size: str = setting(
        "128",
        "examples per step over all replicas, comma-separated",
        group=GROUP,
        is_list=True,
    )
    per_replica_batch_size: str = setting(
        "",
        "examples per step on each replica, comma-separated; if given, "
        "global_batch_size is not used; empty: not given",
        group=GROUP,
        is_list=True,
    )
    precision: str = setting(
        "float32",
        "data types that the model computes in, comma-separated",
        group=GROUP,
        choices=("float32", "bfloat16"),
        is_list=True,
    )
    cores: str = setting(
        "shared",
        "cores that the logical CPU devices compute on. shared: any number of devices "
        "shares all cores; one_each: N devices have N cores",
        group=GROUP,
        choices=("shared", "one_each"),
    )
    peer: str = setting(
        "",
        "contenders to compare with, comma-separated: "
        + "; ".join(f"{name}, {what}" for name, what in PEERS.items())
        + "; empty: none",
        group=GROUP,
        choices=PEERS,
        is_list=True,
    )
    torch_python: str = setting(
        "",
        "Python interpreter of an environment with PyTorch, for peer=torch_ddp",
        group=GROUP,
    )
    repetitions: int = setting(
        5, "number of rounds; the median is reported", group=GROUP, minimum=1
    )
    seconds: float = setting(
        2.0, "seconds that each contender trains for in a round", group=GROUP
    )
    predict: str = setting(
        "",
        "numbers of replicas to predict the speed of, comma-separated; empty: none",
        group=GROUP,
        is_list=True,
    )
    replicas_per_host: int = setting(
        8, "replicas on each host, for predict", group=GROUP, minimum=1
    )
    link_gigabits: float = setting(
        100.0,
        "bandwidth of the link between two hosts, for predict, in gigabits per second",
        group=GROUP,
    )
    link_microseconds: float = setting(
        10.0,
        "latency of the link between two hosts, for predict, in microseconds",
        group=GROUP,
    )
    plot_file: str = setting(
        "", "picture of speed and efficiency to write; empty: none", group=GROUP
    )
    dataset: str = setting_of(TrainConfig, "dataset", "synthetic")
    data_dir: str = setting_of(TrainConfig, "data_dir")
    microbatches: int = setting_of(TrainConfig, "microbatches")
    intra_op_threads: int = setting_of(TrainConfig, "intra_op_threads")
    inter_op_threads: int = setting_of(TrainConfig, "inter_op_threads")
    device_type: str = setting_of(TrainConfig, "device_type")


def check(settings: BenchmarkConfig) -> None:
    """Raises InputError at the first setting that is wrong on any machine."""
    check_fields(settings)
    for name in ("gpus", "global_batch_size", "per_replica_batch_size", "predict"):
        for value in errors.split_names(getattr(settings, name)):
            most = MOST_REPLICAS if name == "gpus" else LARGEST_INT
            is_met = re.fullmatch(r"\d{1,10}", value) and 1 <= int(value) <= most
            expected = f"comma-separated whole numbers from 1 to {most}"
            errors.require(is_met, name, value, expected)
    for name in ("model", "gpus", "precision"):
        errors.require(getattr(settings, name), name, "", "a list of at least one")
    has_batch = settings.global_batch_size or settings.per_replica_batch_size
    errors.require(has_batch, "global_batch_size", "", "a list of at least one")
    for name in ("seconds", "link_gigabits", "link_microseconds"):
        value = getattr(settings, name)
        is_met = math.isfinite(value) and value > 0
        errors.require(is_met, name, value, "a finite number above 0")
    if "torch_ddp" in errors.split_names(settings.peer) and not settings.torch_python:
        raise errors.InputError(
            "peer=torch_ddp needs torch_python: got none; give the Python interpreter "
            "of an environment with PyTorch"
        )
    own = [m for m in errors.split_names(settings.model) if model_source.is_own(m)]
    if own and "torch_ddp" in errors.split_names(settings.peer):
        raise errors.InputError(
            f"peer=torch_ddp trains the models {', '.join(sorted(RECIPES))} alone: got "
            f"model {own[0]}; remove either"
        )


if typing.TYPE_CHECKING:
    from tfmirror.benchmarking.rounds import Measurement
    from tfmirror.benchmarking.scaling import Prediction
    from tfmirror.benchmarking.workload import Workload


def main(settings: BenchmarkConfig) -> None:
    """Measures, and prints tables and a line of JSON.

    Raises:
      InputError: this machine can't do what is asked for, or a contender has failed.
    """
    from tfmirror.benchmarking import rounds, tables

    check_machine(settings)
    workloads = make_workloads(settings)
    log = command.print_line
    log(tables.comparison_line(settings.cores, hardware_grows(settings)))
    measurements, not_measured = rounds.measure(
        workloads,
        num_rounds=settings.repetitions,
        seconds=settings.seconds,
        torch_python=settings.torch_python,
        log=log,
    )
    ratios = rounds.ratios(measurements, hardware_grows(settings))
    predictions = predict(settings, measurements)
    for text in (
        tables.speed_table(measurements),
        tables.step_parts_table(measurements),
        tables.ratio_table(ratios),
        tables.prediction_table(predictions),
        *(f"not measured: {line}" for line in not_measured),
    ):
        if text:
            log(f"\n{text}")
    report = {
        "settings": dataclasses.asdict(settings),
        "measurements": [tables.to_json(m) for m in measurements],
        "ratios": [dataclasses.asdict(r) for r in ratios],
        "predictions": [dataclasses.asdict(p) for p in predictions],
        "not_measured": not_measured,
    }
    log(json.dumps(report))
    if settings.plot_file:
        draw(settings, measurements)


def check_machine(settings: BenchmarkConfig) -> None:
    """Raises InputError if this machine can't do what is asked for."""
    process_environment.check_keras()
    process_environment.check_tf_config()
    most = max(map(int, errors.split_names(settings.gpus)))
    if settings.cores == "one_each" and most > hardware.num_cores():
        raise errors.InputError(
            f"cores=one_each needs a core for each replica: got {most} replicas on "
            f"{hardware.num_cores()} cores"
        )
    if "torch_ddp" in errors.split_names(settings.peer) and uses_gpus(settings):
        raise errors.InputError(
            "peer=torch_ddp runs on CPUs only, but tfmirror would run on GPUs: remove "
            "the peer, or use device_type=cpu"
        )
    if settings.plot_file:
        errors.check_new_file("plot_file", settings.plot_file)
    if settings.predict and most == 1:
        raise errors.InputError(
            "predict needs a measurement of two or more replicas: got gpus="
            f"{settings.gpus}; use for example --gpus=1,2"
        )


def make_workloads(settings: BenchmarkConfig) -> "list[Workload]":
    """Returns every combination of settings for tfmirror, each followed by its peers'.

    The combinations are those of models, numbers of replicas, batch sizes and
    precisions.
    """
    from tfmirror.benchmarking.workload import Workload

    peers = errors.split_names(settings.peer)
    workloads = []
    for model in errors.split_names(settings.model):
        for n in map(int, errors.split_names(settings.gpus)):
            for batch_size in global_batch_sizes(settings, n):
                for precision in errors.split_names(settings.precision):
                    ours = Workload(
                        contender="tfmirror",
                        model=model,
                        dataset=settings.dataset,
                        data_dir=settings.data_dir,
                        num_replicas=n,
                        global_batch_size=batch_size,
                        precision=precision,
                        microbatches=settings.microbatches,
                        intra_op_threads=settings.intra_op_threads,
                        inter_op_threads=settings.inter_op_threads,
                        device_type=settings.device_type,
                        num_cores=n if settings.cores == "one_each" else 0,
                    )
                    workloads.append(ours)
                    workloads.extend(ours.for_contender(peer) for peer in peers)
    return workloads


def global_batch_sizes(settings: BenchmarkConfig, num_replicas: int) -> list[int]:
    """Returns the global batch sizes to measure on `num_replicas`."""
    if settings.per_replica_batch_size:
        sizes = errors.split_names(settings.per_replica_batch_size)
        return [int(size) * num_replicas for size in sizes]
    return [int(size) for size in errors.split_names(settings.global_batch_size)]


def uses_gpus(settings: BenchmarkConfig) -> bool:
    """Returns whether tfmirror's contenders run on GPUs."""
    return settings.device_type != "cpu" and hardware.has_nvidia_driver()


def hardware_grows(settings: BenchmarkConfig) -> bool:
    """Returns whether N replicas have N times the cores or devices of one."""
    return settings.cores == "one_each" or uses_gpus(settings)


def predict(
    settings: BenchmarkConfig, measurements: "Iterable[Measurement]"
) -> "list[Prediction]":
    """Returns the predictions that are asked for; none if `predict` is empty."""
    from tfmirror.benchmarking import scaling

    if not settings.predict:
        return []
    return scaling.predict(
        measurements,
        numbers_of_replicas=map(int, errors.split_names(settings.predict)),
        share_cores=not hardware_grows(settings),
        between_hosts=scaling.make_link(
            gigabits_per_second=settings.link_gigabits,
            microseconds=settings.link_microseconds,
        ),
        replicas_per_host=settings.replicas_per_host,
    )


def draw(settings: BenchmarkConfig, measurements: "Sequence[Measurement]") -> None:
    """Draws speed and efficiency against the number of replicas into `plot_file`.

    Raises:
      InputError: the file can't be written.
    """
    from tfmirror.reporting import plots

    series: dict[str, dict[int, float]] = {}
    for m in measurements:
        workload = m.workload
        batch = f"batch {workload.global_batch_size}"
        if settings.per_replica_batch_size:
            per_replica = workload.global_batch_size // workload.num_replicas
            batch = f"{per_replica} per replica"
        names = (workload.contender, workload.model, workload.precision, batch)
        speeds = series.setdefault(", ".join(names), {})
        speeds[workload.num_replicas] = m.images_per_second
    drawn = plots.draw_scaling(series, hardware_grows(settings))
    try:
        plots.save(drawn, errors.expand_path("plot_file", settings.plot_file))
    except OSError as error:
        raise errors.InputError(
            f"plot_file can't be written: {error.strerror}"
        ) from error


if __name__ == "__main__":
    command.run(main, BenchmarkConfig, __doc__, check=check, needs_tensorflow=False)
