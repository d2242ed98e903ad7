"""Writes the files of a run directory.

with RunWriter(directory) as writer:
    writer.write_json("summary.json", {...})
    writer.write_epoch(step=12, record={...})
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import types
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfmirror import errors, files, metrics
from tfmirror.rundir import checkpoints

MODEL = "model.keras"


def save_model(model: keras.Model, path: pathlib.Path) -> None:
    """Writes a Keras model as a .keras file, complete and on the disk, or not at all.

    Raises:
      OSError: it can't be written.
    """
    with files.replaced(path, ending=".keras") as unfinished:  # Keras insists on it
        with _fixed_time_of_zip_entries():
            model.save(unfinished)


@contextlib.contextmanager
def _fixed_time_of_zip_entries() -> Iterator[None]:
    """Lets zipfile write 1980-01-01 as the time of every entry.

    Keras 3.15 gives entries the current time, and zipfile refuses a time before 1980,
    which a clock without a battery may show. Neither has an option for it. zipfile
    (Python 3.11 to 3.13) asks the module that it knows as `time`.
    """
    moment = (*zipfile.ZipInfo().date_time, 0, 0, 0)
    known: Any = zipfile  # whose type does not declare the module that it imports
    real = known.time
    known.time = types.SimpleNamespace(time=real.time, localtime=lambda _: moment)
    try:
        yield
    finally:
        known.time = real


@contextlib.contextmanager
def stops_on_os_errors(directory: pathlib.Path) -> Iterator[None]:
    """Turns errors of the system, such as a full disk, into a stop of the training.

    Raises:
      TrainingStoppedError: the block raised an OSError.
    """
    try:
        yield
    except BrokenPipeError:  # the reader of standard output has left; see command.run
        raise
    except OSError as error:
        raise errors.TrainingStoppedError(
            f"{directory} can't be written: {error.strerror or error}; "
            f"{_how_to_go_on(directory)}"
        ) from error


def _how_to_go_on(directory: pathlib.Path) -> str:
    """Returns what is left of a run that has stopped, and what to do."""
    if not directory.is_dir():
        return "the folder is gone: choose another --workdir"
    try:
        _, path = checkpoints.latest(directory / checkpoints.FOLDER, lambda line: None)
    except OSError as error:
        return f"its checkpoints can't be listed ({error.strerror})"
    again = f"with --workdir='{directory}' --resume=auto"
    if path:
        return f"{path.name} is complete: resume {again}"
    return f"it has no complete checkpoint: call again {again} to start from step 0"


class RunWriter:
    """Writes the files of one run directory; a context manager, used once."""

    def __init__(
        self,
        directory: pathlib.Path,
        records: Iterable[dict[str, Any]] = (),
        steps_per_epoch: int = 0,
    ) -> None:
        """Opens metrics.jsonl and the TensorBoard events, and writes `records` to them.

        Args:
          directory: the run directory, which exists.
          records: of the epochs finished before the run was resumed. Whatever the
            files say of later epochs, which are trained again, is removed.
          steps_per_epoch: training steps.

        Raises:
          OSError: a file can't be written.
        """
        self.directory = directory
        events = self.directory / "tensorboard"
        shutil.rmtree(events, ignore_errors=True)
        with _os_errors_of_tensorflow():
            self._events = tf.summary.create_file_writer(str(events))
        path = self.directory / "metrics.jsonl"
        lines = [_line(r["epoch"] * steps_per_epoch, r) for r in records]
        files.write_text(path, "".join(lines))
        self._lines = open(path, "a", encoding="utf-8")
        for record in records:
            self._write_events(record["epoch"] * steps_per_epoch, record)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._lines.close()
        finally:
            with _os_errors_of_tensorflow():
                self._events.close()

    def sync(self) -> None:
        """Puts the TensorBoard events on the disk, as metrics.jsonl always is."""
        files.sync_tree(self.directory / "tensorboard")

    def write_json(self, name: str, content: Any) -> None:
        """Writes `content` as the JSON file `name` of the run directory."""
        files.write_json(self.directory / name, content)

    def write_epoch(self, step: int, record: dict[str, Any]) -> None:
        """Appends one epoch to metrics.jsonl, on the disk, and to TensorBoard's events.

        Args:
          step: training steps taken so far.
          record: "epoch", from 1, and a number for each key of metrics.NAMES. Keys
            that it lacks, as those of earlier versions do, are left out.
        """
        self._lines.write(_line(step, record))
        self._lines.flush()
        os.fsync(self._lines.fileno())
        self._write_events(step, record)

    def _write_events(self, step: int, record: dict[str, Any]) -> None:
        """Appends one epoch to the TensorBoard events."""
        with _os_errors_of_tensorflow():
            with self._events.as_default(step=step):
                for name, value in _named(record).items():
                    _write_scalar(name, value)
            self._events.flush()


def _line(step: int, record: dict[str, Any]) -> str:
    """Returns the line of metrics.jsonl for the record of an epoch."""
    line = {"step": step, "epoch": record["epoch"]} | _named(record)
    return json.dumps(line) + "\n"


def _named(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics of the record of an epoch, by their names in files."""
    return {name: record[key] for key, name in metrics.NAMES.items() if key in record}


@contextlib.contextmanager
def _os_errors_of_tensorflow() -> Iterator[None]:
    """Raises an OSError, as Python does, where TensorFlow can't write a file."""
    try:
        yield
    except tf.errors.OpError as error:
        # Leave out the name of the operation.
        why = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", error.message).strip()
        raise OSError(f"tensorboard: {why}") from error


def _write_scalar(name: str, value: float) -> None:
    """Writes the same event as tf.summary.scalar, which needs TensorBoard installed."""
    metadata = tf.compat.v1.SummaryMetadata()
    # TensorBoard recognises scalars by this name.
    metadata.plugin_data.plugin_name = "scalars"
    tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
