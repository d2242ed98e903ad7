"""Makes, locks and writes the run directory.

directory = create(workdir="runs/first", default_name="cnn-digits")
with RunWriter(directory) as writer:
    writer.write_json("config.json", {...})
    writer.write_epoch(step=12, record={...})
"""

import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import filelock
import keras
import tensorflow as tf

from tfmirror import errors, files, metrics

DEFAULT_PARENT = pathlib.Path("runs")
MODEL = "model.keras"


def check_is_free(workdir: str) -> None:
    """Checks that a run directory can be made, without making anything.

    Args:
      workdir: its path; empty: a new folder in runs/.

    Raises:
      InputError: the folder holds files, or it can't be made or written.
    """
    path = errors.expand_path("workdir", workdir) if workdir else DEFAULT_PARENT
    if workdir and path.is_dir() and any(path.iterdir()):
        holds = "a run" if (path / "config.json").exists() else "files"
        raise errors.InputError(
            f"workdir must be a new or empty folder: {workdir!r} holds {holds} already"
        )
    nearest = path  # the nearest that exists
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise errors.InputError(
            f"workdir must be a folder that can be written: got {str(path)!r}, but "
            f"{str(nearest)!r} is {'read-only' if nearest.is_dir() else 'not a folder'}"
        )


def create(
    workdir: str, default_name: str, now: datetime.datetime | None = None
) -> pathlib.Path:
    """Makes the run directory and returns its path.

    Args:
      workdir: its path; empty: runs/<default_name>-<UTC time>, with a number at its end
        if that folder exists.
      now: None: the current time.

    Raises:
      InputError: the folder holds files, or it can't be made or written.
    """
    check_is_free(workdir)
    try:
        if workdir:
            path = errors.expand_path("workdir", workdir)
            path.mkdir(parents=True, exist_ok=True)
            return path
        now = now or datetime.datetime.now(datetime.UTC)
        stem = f"{default_name}-{now:%Y%m%dT%H%M%SZ}"
        return _make_new_folder(DEFAULT_PARENT, stem)
    except OSError as error:
        raise errors.InputError(
            f"workdir can't be made at {error.filename!r}: {error.strerror}"
        ) from error


def _make_new_folder(parent: pathlib.Path, stem: str) -> pathlib.Path:
    """Makes parent/stem, or parent/stem-2 and so on; returns the path."""
    number = 1
    while True:
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return path


def save_model(model: keras.Model, path: pathlib.Path) -> None:
    """Writes a Keras model as a .keras file, complete and on the disk, or not at all.

    Raises:
      OSError: it can't be written.
    """
    with files.replaced(path, ending=".keras") as unfinished:  # Keras insists on it
        model.save(unfinished)


@contextlib.contextmanager
def lock(directory: pathlib.Path) -> Iterator[None]:
    """Keeps other processes from training in `directory`.

    The system releases the lock when the process ends, even if it is killed.

    Raises:
      InputError: another process holds the lock.
    """
    held = filelock.FileLock(directory / ".lock")
    try:
        held.acquire(timeout=0)
    except filelock.Timeout as error:
        raise errors.InputError(
            f"workdir is in use: another process trains in {str(directory)!r}; wait "
            "for it to end or choose another workdir"
        ) from error
    try:
        yield
    finally:
        held.release()


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
            f"{directory} can't be written: {error.strerror or error}; its checkpoints "
            f"are complete: resume with --workdir='{directory}' --resume=auto"
        ) from error


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
        self._lines = open(self.directory / "metrics.jsonl", "w", encoding="utf-8")
        for record in records:
            self.write_epoch(record["epoch"] * steps_per_epoch, record)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self._lines.close()
        with _os_errors_of_tensorflow():
            self._events.close()

    def write_json(self, name: str, content: Any) -> None:
        """Writes `content` as the JSON file `name` of the run directory."""
        files.write_json(self.directory / name, content)

    def write_epoch(self, step: int, record: dict[str, Any]) -> None:
        """Appends one epoch to metrics.jsonl and to the TensorBoard events.

        Args:
          step: training steps taken so far.
          record: "epoch", from 1, and a number for each key of metrics.NAMES.
        """
        line = {"step": step, "epoch": record["epoch"]}
        line |= {name: record[key] for key, name in metrics.NAMES.items()}
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        with _os_errors_of_tensorflow():
            with self._events.as_default(step=step):
                for key, name in metrics.NAMES.items():
                    _write_scalar(name, record[key])
            self._events.flush()


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
