"""Reads run directories, of finished runs and of interrupted ones.

run = read("runs/first")
run.name, run.records[-1]["eval_accuracy"], run.is_finished
"""

import dataclasses
import pathlib
import statistics
from collections.abc import Iterable
from typing import Any

from tfmirror import errors, files, metrics

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
        """Returns `key` of every finished epoch's record."""
        return [record[key] for record in self.records]


def read(path: str | pathlib.Path) -> RunRecord:
    """Returns the run in the folder `path`.

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
    summary_file = folder / "summary.json"
    return RunRecord(
        name=folder.resolve().name,
        settings=settings,
        records=_read_records(folder / "metrics.jsonl"),
        summary=(
            files.read_json_object(summary_file) if summary_file.exists() else None
        ),
    )


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
        record = {key: values[name] for key, name in metrics.NAMES.items()}
        return {"epoch": values["epoch"]} | record
    except KeyError as error:
        raise files.damaged(path, f"no {error} in a line") from error
