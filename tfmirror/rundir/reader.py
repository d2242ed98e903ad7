"""Reads run directories, of finished runs and of interrupted ones.

run = read("runs/first")
run.name, run.records[-1]["eval_accuracy"], run.is_finished
"""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from tfmirror import errors, files, metrics
from tfmirror.confusion import Confusion
from tfmirror.settings import of_recorded
from tfmirror.train_config import TrainConfig

PER_CLASS = "per_class.json"  # written by evaluate, into a finished run

# Settings that a run must have to be drawn and compared.
NEEDED_TO_COMPARE = ("model", "dataset", "gpus", "global_batch_size", "precision")
# Settings that a run must have for its model to be built and evaluated as it was.
NEEDED_TO_EVALUATE = (
    *NEEDED_TO_COMPARE, "microbatches", "data_dir", "limit_eval_examples",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """What a run directory holds."""

    name: str  # of the directory
    settings: dict[str, Any]  # config.json
    records: list[dict[str, Any]]  # summary.json's "epochs", of the finished ones
    summary: dict[str, Any] | None  # summary.json; None: the run has not finished
    starts: tuple[dict[str, Any], ...] = ()  # environment.json, see `read_starts`
    confusion: Confusion | None = None  # per_class.json, see `read_confusion`

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary is not None

    @property
    def num_replicas(self) -> int:
        """Replicas (N)."""
        return self.settings["gpus"]

    @property
    def images_per_second(self) -> float | None:
        """Training speed, the median of the epochs; None before the first."""
        speeds = [record["images_per_second"] for record in self.records]
        return statistics.median(speeds) if speeds else None

    @property
    def seconds(self) -> list[float]:
        """Seconds of training and evaluation up to the start and each epoch's end."""
        ends = [0.0]
        for record in self.records:
            ends.append(ends[-1] + record["train_seconds"] + record["eval_seconds"])
        return ends

    def values(self, key: str) -> list[Any]:
        """Returns `key` of every finished epoch's record; NaN where it is absent."""
        return [record.get(key, math.nan) for record in self.records]


def _say_nothing(line: str) -> None:
    """Takes a line for people and passes over it."""


def read(
    path: str | pathlib.Path, warn: Callable[[str], object] = _say_nothing
) -> RunRecord:
    """Returns the run in the folder `path`.

    Args:
      warn: called with one line for each file that is damaged and can be done without.

    Raises:
      InputError: no such folder, no run in it, or a damaged file of the run.
    """
    folder = errors.expand_path("the run", path)
    if not (folder / "config.json").is_file():
        what = "holds no config.json" if folder.is_dir() else "is not a folder"
        raise errors.InputError(
            f"a run directory is expected, as --workdir of tfmirror.train: got "
            f"{str(path)!r}, which {what}"
        )
    settings = files.read_json_object(folder / "config.json")
    check_settings(folder / "config.json", settings, NEEDED_TO_COMPARE)
    summary = read_summary(folder, warn)
    return RunRecord(
        name=folder.resolve().name,
        settings=of_recorded(TrainConfig, settings),
        records=_read_records(folder / "metrics.jsonl"),
        summary=summary,
        starts=read_starts(folder, warn),
        confusion=read_confusion(folder, summary, warn),
    )


def read_summary(
    folder: pathlib.Path, warn: Callable[[str], object]
) -> dict[str, Any] | None:
    """Returns the summary.json of a run directory; None: the run has not finished.

    Args:
      warn: called with one line if the file is damaged; the run then counts as not
        finished.
    """
    path = folder / "summary.json"
    if not path.exists():
        return None
    try:
        return files.read_json_object(path)
    except files.DamagedFileError as error:
        warn(
            f"warning: {path} is damaged ({error.why}): the run counts as not finished"
        )
        return None


def read_confusion(
    folder: pathlib.Path,
    summary: dict[str, Any] | None,
    warn: Callable[[str], object],
) -> Confusion | None:
    """Returns the confusion matrix that evaluate has left in a run directory.

    None if there is none, if it is damaged, or if the run has gone on since then.

    Args:
      summary: of the run, as of `read_summary`.
      warn: called with one line if there is one and it can't be used.
    """
    path = folder / PER_CLASS
    if not path.exists():
        return None
    try:
        content = files.read_json_object(path)
        found = Confusion.from_json(content)
    except (errors.InputError, ValueError) as error:
        why = error.why if isinstance(error, files.DamagedFileError) else error
        warn(f"warning: {path} is damaged ({why}): its classes are not shown")
        return None
    digest = content.get("weights_sha256")
    if not digest or digest != (summary or {}).get("weights_sha256"):
        warn(
            f"warning: {path} is of other weights than the run's last ones: its "
            "classes are not shown; evaluate the finished run with --per_class again"
        )
        return None
    return found


def read_starts(
    folder: pathlib.Path, warn: Callable[[str], object]
) -> tuple[dict[str, Any], ...]:
    """Returns what each start of a run ran on, from the first to the last.

    An entry is what environment.describe_start returned then; that of a run from before
    there was one for each start holds what environment.describe returns.

    Args:
      folder: the run directory; without an environment.json there are none.
      warn: called with one line if environment.json is damaged; there are then none.
    """
    path = folder / "environment.json"
    if not path.exists():
        return ()
    try:
        content = files.read_json_object(path)
        starts = content.get("starts", [content])
        if not (isinstance(starts, list) and all(isinstance(s, dict) for s in starts)):
            raise files.damaged(path, '"starts" is not a list of objects')
    except files.DamagedFileError as error:
        warn(
            f"warning: {path} is damaged ({error.why}): what the run ran on before is "
            "not known"
        )
        return ()
    return tuple(starts)


def check_settings(
    path: pathlib.Path, settings: dict[str, Any], needed: Iterable[str]
) -> None:
    """Checks that a run's settings are complete enough.

    Args:
      path: where they were read.
      needed: names of settings.

    Raises:
      InputError: a needed setting is missing.
    """
    missing = [name for name in needed if name not in settings]
    if missing:
        raise files.damaged(path, f"no setting {', '.join(map(repr, missing))}")


def _read_records(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the records of the epochs in metrics.jsonl, if it exists."""
    if not path.exists():
        return []
    *lines, _ = files.read_text(path).split("\n")  # the last one may be incomplete
    return [_parse_record(path, line) for line in lines]


def _parse_record(path: pathlib.Path, line: str) -> dict[str, Any]:
    """Returns the record of an epoch in one line of metrics.jsonl."""
    values = files.parse_json_object(path, line)
    try:
        record = {
            key: values[name]
            for key, name in metrics.NAMES.items()
            if name in values or key not in metrics.ADDED
        }
        return {"epoch": values["epoch"]} | record
    except KeyError as error:
        raise files.damaged(path, f"no {error} in a line") from error
