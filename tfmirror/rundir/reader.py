"""Run directories, read: finished ones and those that were interrupted.

run = read("runs/first")
run.name, run.records[-1]["eval_accuracy"], run.is_finished
"""

import dataclasses
import json
import statistics

from tfmirror import errors, metrics

# What a run directory's config.json must hold to be drawn and compared.
NEEDED_SETTINGS = ("model", "dataset", "gpus", "global_batch_size", "precision")


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run directory holds."""

    name: str  # of the directory
    settings: dict  # config.json
    records: list[dict]  # of the finished epochs, as in summary.json's "epochs"
    summary: dict | None  # None: the run was interrupted, or goes on

    @property
    def is_finished(self):
        """Whether the run came to its end."""
        return self.summary is not None

    @property
    def num_replicas(self):
        """Replicas (N)."""
        return self.settings["gpus"]

    @property
    def images_per_second(self):
        """Training speed, the median of the epochs; None before the first."""
        speeds = [record["images_per_second"] for record in self.records]
        return statistics.median(speeds) if speeds else None

    @property
    def seconds(self):
        """Seconds of training and evaluation after the start and after each epoch."""
        ends = [0.0]
        for record in self.records:
            ends.append(ends[-1] + record["train_seconds"] + record["eval_seconds"])
        return ends

    def values(self, key):
        """Returns `key` of every finished epoch's record."""
        return [record[key] for record in self.records]


def read(path):
    """Returns the Run in the folder `path`.

    Raises:
      InputError: no folder, no run in it, or a file of the run that is damaged.
    """
    folder = errors.expand_path("the run", path)
    if not (folder / "config.json").is_file():
        what = "holds no config.json" if folder.is_dir() else "is not a folder"
        raise errors.InputError(
            f"a run directory is expected, as --workdir of tfmirror.train: got "
            f"{str(path)!r}, which {what}"
        )
    settings = _read_object(folder / "config.json")
    for name in NEEDED_SETTINGS:
        if name not in settings:
            raise _damaged(folder / "config.json", f"no setting {name!r}")
    has_summary = (folder / "summary.json").exists()
    return Run(
        name=folder.resolve().name,
        settings=settings,
        records=_read_records(folder / "metrics.jsonl"),
        summary=_read_object(folder / "summary.json") if has_summary else None,
    )


def _read_records(path):
    """Returns the records of the epochs in metrics.jsonl; none if it isn't there."""
    if not path.exists():
        return []
    lines = _read_text(path).split("\n")
    records = []
    for line in lines[:-1]:  # what follows the last newline is a line half written
        values = _parse(path, line)
        try:
            record = {key: values[name] for key, name in metrics.NAMES.items()}
            records.append({"epoch": values["epoch"]} | record)
        except KeyError as error:
            raise _damaged(path, f"no {error} in a line") from error
    return records


def _read_object(path):
    """Returns the JSON object in the file `path`."""
    return _parse(path, _read_text(path))


def _read_text(path):
    """Returns the text of a file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error


def _parse(path, text):
    """Returns the JSON object that is `text`, of the file `path`."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise _damaged(path, error) from error
    if not isinstance(values, dict):
        raise _damaged(path, f"a JSON object is expected, got {text[:40]!r}")
    return values


def _damaged(path, why):
    """Returns the InputError of a file that can't be used."""
    return errors.InputError(f"{path} is damaged ({why}); leave its run out")
