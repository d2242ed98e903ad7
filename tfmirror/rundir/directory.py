"""What a run leaves behind: the run directory and its files.

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

import filelock
import tensorflow as tf

from tfmirror import errors, metrics

DEFAULT_PARENT = pathlib.Path("runs")
MODEL = "model.keras"


def check_is_free(workdir):
    """Raises InputError unless a run directory can be made at `workdir`.

    Empty means a new one under runs/. Creates nothing: it is asked before
    data are read and devices are started.
    """
    path = errors.expand_path("workdir", workdir) if workdir else DEFAULT_PARENT
    if workdir and path.is_dir() and any(path.iterdir()):
        holds = "a run" if (path / "config.json").exists() else "files"
        raise errors.InputError(
            f"workdir must be a new or empty folder: {workdir!r} holds {holds} already"
        )
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise errors.InputError(
            f"workdir must be a folder that can be written: got {str(path)!r}, and "
            f"{str(there)!r} is {'read-only' if there.is_dir() else 'not a folder'}"
        )


def create(workdir, default_name, now=None):
    """Makes the run directory and returns its path.

    Without `workdir` it is runs/<default_name>-<UTC time>, with a number after it if
    that is taken.

    Raises:
      InputError: see `check_is_free`.
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


def _make_new_folder(parent, stem):
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


def write_json(path, content):
    """Writes `content` as the JSON file `path`: whole, or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)


def save_model(model, path):
    """Writes a Keras model as the file `path`: whole, or not at all."""
    unfinished = path.with_name(f"unfinished-{path.name}")
    try:
        model.save(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def lock(directory):
    """Keeps other processes from training in `directory`.

    The lock ends with the process, however that ends.

    Raises:
      InputError: another one does so.
    """
    held = filelock.FileLock(pathlib.Path(directory) / ".lock")
    try:
        held.acquire(timeout=0)
    except filelock.Timeout as error:
        raise errors.InputError(
            f"workdir is in use: another process trains in {str(directory)!r}"
        ) from error
    try:
        yield
    finally:
        held.release()


@contextlib.contextmanager
def stops_on_os_errors(directory):
    """Makes what the system refuses, such as a file on a full disk, stop the training.

    Raises:
      TrainingStoppedError: in place of an OSError.
    """
    try:
        yield
    except BrokenPipeError:  # of what is printed, whose reader has left: command.run's
        raise
    except OSError as error:
        raise errors.TrainingStoppedError(
            f"{directory} can't be written: {error.strerror or error}; the checkpoints "
            f"in it are whole: call again with --workdir='{directory}' --resume=auto"
        ) from error


class RunWriter:
    """Writes the files of one run directory; a context manager, closed once."""

    def __init__(self, directory, records=(), steps_per_epoch=0):
        """`records` are of epochs that a run before had finished; they are kept.

        What it wrote of later ones, which are trained again, is not.
        """
        self.directory = pathlib.Path(directory)
        events = self.directory / "tensorboard"
        shutil.rmtree(events, ignore_errors=True)
        with _os_errors_of_tensorflow():
            self._events = tf.summary.create_file_writer(str(events))
        self._lines = open(self.directory / "metrics.jsonl", "w", encoding="utf-8")
        for record in records:
            self.write_epoch(record["epoch"] * steps_per_epoch, record)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._lines.close()
        with _os_errors_of_tensorflow():
            self._events.close()

    def write_json(self, name, content):
        """Writes `content` as the file `name` of the run directory."""
        write_json(self.directory / name, content)

    def write_epoch(self, step, record):
        """Appends an epoch's `record` to metrics.jsonl and to TensorBoard's events.

        Args:
          step: training steps taken so far.
          record: one entry of summary.json's "epochs".
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
def _os_errors_of_tensorflow():
    """Raises what TensorFlow can't write as Python has it: as an OSError."""
    try:
        yield
    except tf.errors.OpError as error:
        # Without the name of the operation.
        why = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", error.message).strip()
        raise OSError(f"tensorboard: {why}") from error


def _write_scalar(name, value):
    """Writes what tf.summary.scalar would, which needs TensorBoard installed.

    The plugin's name is what TensorBoard tells scalars by.
    """
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
