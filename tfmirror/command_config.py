"""Settings of the commands that train nothing, and the only home of their defaults.

settings = InspectConfig(gpus=2, model="resnet18")
check_inspect(settings)                             # InputError if out of range
"""

import dataclasses
import math
import typing

from tfmirror import config, errors
from tfmirror.recipes import RECIPES

FORMATS = ("csv", "json")
PEERS = {
    "keras_fit": "model.fit",
    "torch_ddp": "PyTorch DDP on CPUs",
    "one_batch": "our steps on one batch again and again",
    "drift_check": "our steps, replicas compared every 100",
}

# verify cuts its batches into eight microbatches, so that no more replicas have any.
MOST_REPLICAS_TO_VERIFY = 8


@dataclasses.dataclass(frozen=True)
class ReportConfig:
    """All settings of a report."""

    run_dirs: tuple[str, ...] = dataclasses.field(
        default=(), metadata={"arguments": "RUN_DIR..."}
    )
    html_file: str = "report.html"


def check_report(settings):
    """Raises InputError unless there are run directories and a page to write."""
    got = settings.run_dirs
    errors.require(got, "arguments", got, "one run directory or more")
    name = settings.html_file
    errors.require(name.endswith(".html"), "html_file", name, "a name ending in .html")


@dataclasses.dataclass(frozen=True)
class InspectConfig:
    """All settings of one look into every replica."""

    model: str = "cnn"
    dataset: str | None = None
    data_dir: str = ""  # empty: not given
    gpus: int = 0  # 0: all there are, or NUM_STAND_INS
    device_type: str = "auto"
    num_examples: int = 2  # on each replica
    layer: str = ""  # empty: the first convolution
    channel: int = 0
    seed: int = 0
    json: bool = False


def check_inspect(settings):
    """Raises InputError at the first setting that is wrong whatever the model."""
    errors.require_one_of(sorted(RECIPES), "model", settings.model)
    config.check_device_settings(settings.gpus, settings.device_type)
    config.check_seed(settings.seed)
    errors.require(
        settings.num_examples >= 1, "num_examples", settings.num_examples, "at least 1"
    )
    errors.require(settings.channel >= 0, "channel", settings.channel, "at least 0")


@dataclasses.dataclass(frozen=True)
class VerifyConfig:
    """All settings of a verification."""

    model: str = "probe"
    gpus: int = 0  # 0: all there are, at most 8; logical CPUs: 8
    device_type: str = "auto"
    json_file: str = ""  # empty: none


def check_verify(settings):
    """Raises InputError at the first setting that is wrong on any machine."""
    errors.require_one_of(["probe", *sorted(RECIPES)], "model", settings.model)
    config.check_device_settings(settings.gpus, settings.device_type)
    errors.require(settings.gpus != 1, "gpus", 1, "at least 2, to be compared with one")
    most = MOST_REPLICAS_TO_VERIFY
    errors.require(settings.gpus <= most, "gpus", settings.gpus, f"at most {most}")
    if settings.json_file:
        errors.check_new_file("json_file", settings.json_file)


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """All settings of an evaluation. None: those of the run."""

    NONE_MEANS: typing.ClassVar = "from the run"

    arguments: tuple[str, ...] = dataclasses.field(
        default=(), metadata={"arguments": "RUN_DIR|CHECKPOINT"}
    )
    dataset: str | None = None
    data_dir: str | None = None
    limit_eval_examples: int | None = None  # 0: all
    gpus: int = 0  # 0: all there are, or NUM_STAND_INS
    device_type: str = "auto"
    global_batch_size: int | None = None
    json: bool = False

    @property
    def model_path(self):
        """The run directory or checkpoint."""
        return self.arguments[0]


def check_evaluate(settings):
    """Raises InputError at the first setting that is wrong on any machine."""
    _check_one_argument(settings)
    config.check_device_settings(settings.gpus, settings.device_type)
    for name, least in (("limit_eval_examples", 0), ("global_batch_size", 1)):
        value = getattr(settings, name)
        errors.require(value is None or value >= least, name, value, f"{least} or more")


def resolve_evaluate(settings, of_run):
    """Returns `settings` with every None filled in from those of a run, a dict.

    Another dataset is looked for where `data_dir` says, and taken whole.
    """
    own = {n: of_run[n] for n in ("dataset", "data_dir", "limit_eval_examples")}
    if settings.dataset not in (None, own["dataset"]):
        own |= {"data_dir": "", "limit_eval_examples": 0}
    own["global_batch_size"] = of_run["global_batch_size"]
    missing = {n: v for n, v in own.items() if getattr(settings, n) is None}
    return dataclasses.replace(settings, **missing)


@dataclasses.dataclass(frozen=True)
class PredictConfig:
    """All settings of predictions."""

    arguments: tuple[str, ...] = dataclasses.field(
        default=(), metadata={"arguments": "RUN_DIR|CHECKPOINT FILE..."}
    )
    gpus: int = 0  # 0: all there are, or NUM_STAND_INS
    device_type: str = "auto"
    format: str = "csv"
    output_file: str = ""  # empty: printed


def check_predict(settings):
    """Raises InputError at the first setting that is wrong on any machine."""
    got, expected = settings.arguments, "a run directory or checkpoint, and files"
    errors.require(len(got) >= 2, "arguments", got, expected)
    config.check_device_settings(settings.gpus, settings.device_type)
    errors.require_one_of(FORMATS, "format", settings.format)


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """All settings of an export."""

    arguments: tuple[str, ...] = dataclasses.field(
        default=(), metadata={"arguments": "RUN_DIR|CHECKPOINT"}
    )
    keras_file: str = ""  # empty: none
    saved_model: str = ""  # empty: none

    @property
    def model_path(self):
        """The run directory or checkpoint."""
        return self.arguments[0]


def check_export(settings):
    """Raises InputError unless there is something to export, and to where."""
    _check_one_argument(settings)
    name = settings.keras_file
    is_met = not name or name.endswith(".keras")
    errors.require(is_met, "keras_file", name, "a name ending in .keras")
    if not (name or settings.saved_model):
        raise errors.InputError("give --keras_file, --saved_model or both")


def _check_one_argument(settings):
    """Raises InputError unless one model is given."""
    got = settings.arguments
    errors.require(len(got) == 1, "arguments", got, "one run directory or checkpoint")


def _option(default, what):
    """Returns the field of a setting of the benchmark."""
    return dataclasses.field(default=default, metadata={"help": what})


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """All settings of a benchmark."""

    OWN_GROUP: typing.ClassVar = "Benchmark"

    model: str = _option("cnn", "models to train, with commas between: cnn, resnet18")
    gpus: str = _option("1,2", "numbers of replicas, with commas between")
    global_batch_size: str = _option(
        "128", "examples a step over all replicas; several with commas between"
    )
    per_replica_batch_size: str = _option(
        "", "examples a step on each replica, in its place; empty: not given"
    )
    precision: str = _option("float32", "float32, bfloat16, or both with a comma")
    cores: str = _option(
        "shared",
        "shared: logical CPU devices share all cores, however many there are; "
        "one_each: each has a core, and N replicas have N of them",
    )
    peer: str = _option(
        "",
        "what to measure in turn with it: "
        + "".join(f"{name} ({what}), " for name, what in PEERS.items())
        + "or several with commas between; empty: nothing",
    )
    torch_python: str = _option(
        "", "interpreter of an environment with PyTorch, for the peer torch_ddp"
    )
    repetitions: int = _option(5, "turns of each, of which the median is taken")
    seconds: float = _option(2.0, "length of a turn")
    predict: str = _option(
        "", "numbers of replicas to predict the speed of; empty: none"
    )
    replicas_per_host: int = _option(8, "of what is predicted")
    link_gigabits: float = _option(
        100.0, "bandwidth between hosts of what is predicted, gigabits a second"
    )
    link_microseconds: float = _option(10.0, "latency between them")
    plot_file: str = _option(
        "", "picture of speed and efficiency to write; empty: none"
    )
    dataset: str = "synthetic"
    data_dir: str = ""
    microbatches: int = 0
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    device_type: str = "auto"


def check_benchmark(settings):
    """Raises InputError at the first setting that is wrong on any machine."""
    for name, allowed in (
        ("model", RECIPES),
        ("precision", ("float32", "bfloat16")),
        ("peer", PEERS),
    ):
        for value in errors.split_names(getattr(settings, name)):
            errors.require_one_of(sorted(allowed), name, value)
    for name in ("gpus", "global_batch_size", "per_replica_batch_size", "predict"):
        for value in errors.split_names(getattr(settings, name)):
            is_met = value.isdecimal() and int(value) >= 1
            errors.require(is_met, name, value, "whole numbers of at least 1")
    for name in ("model", "gpus", "precision"):
        errors.require(getattr(settings, name), name, "", "at least one")
    has_batch = settings.global_batch_size or settings.per_replica_batch_size
    errors.require(has_batch, "global_batch_size", "", "at least one")
    for name in ("microbatches", "intra_op_threads", "inter_op_threads"):
        value = getattr(settings, name)
        errors.require(value >= 0, name, value, "at least 0")
    errors.require_one_of(("shared", "one_each"), "cores", settings.cores)
    errors.require_one_of(config.DEVICE_TYPES, "device_type", settings.device_type)
    for name in ("repetitions", "replicas_per_host"):
        value = getattr(settings, name)
        errors.require(value >= 1, name, value, "at least 1")
    for name in ("seconds", "link_gigabits", "link_microseconds"):
        value = getattr(settings, name)
        is_met = math.isfinite(value) and value > 0
        errors.require(is_met, name, value, "a finite number above 0")
    if "torch_ddp" in errors.split_names(settings.peer) and not settings.torch_python:
        raise errors.InputError("peer torch_ddp needs --torch_python=PATH")
