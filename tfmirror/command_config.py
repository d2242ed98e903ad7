"""Settings of the commands that train nothing, and the only home of their defaults.

settings = InspectConfig(gpus=2, model="resnet18")
check_inspect(settings)                             # InputError if out of range
"""

import dataclasses

from tfmirror import config
from tfmirror.recipes import RECIPES

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
    config.require(got, "arguments", got, "one run directory or more")
    name = settings.html_file
    config.require(name.endswith(".html"), "html_file", name, "a name ending in .html")


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
    config.require_one_of(sorted(RECIPES), "model", settings.model)
    config.check_device_settings(settings.gpus, settings.device_type)
    config.check_seed(settings.seed)
    config.require(
        settings.num_examples >= 1, "num_examples", settings.num_examples, "at least 1"
    )
    config.require(settings.channel >= 0, "channel", settings.channel, "at least 0")


@dataclasses.dataclass(frozen=True)
class VerifyConfig:
    """All settings of a verification."""

    model: str = "probe"
    gpus: int = 0  # 0: all there are, at most 8; logical CPUs: 8
    device_type: str = "auto"
    json_file: str = ""  # empty: none


def check_verify(settings):
    """Raises InputError at the first setting that is wrong on any machine."""
    config.require_one_of(["probe", *sorted(RECIPES)], "model", settings.model)
    config.check_device_settings(settings.gpus, settings.device_type)
    config.require(settings.gpus != 1, "gpus", 1, "at least 2, to be compared with one")
    most = MOST_REPLICAS_TO_VERIFY
    config.require(settings.gpus <= most, "gpus", settings.gpus, f"at most {most}")
