"""Finds, makes and locks the folder of a run.

folder = create(workdir="runs/first", default_name="cnn-digits")
with lock_new(folder):
    ...
"""

import contextlib
import datetime
import os
import pathlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import filelock

from tfmirror import config, errors, files
from tfmirror.rundir import checkpoints

DEFAULT_PARENT = pathlib.Path("runs")
LOCK = ".lock"


def check_is_free(workdir: str) -> None:
    """Checks that a run directory can be made, without making anything.

    Args:
      workdir: its path; empty: a new folder in runs/.

    Raises:
      InputError: the folder holds files, another process trains in it, or it can't be
        made or written.
    """
    path = errors.expand_path("workdir", workdir) if workdir else DEFAULT_PARENT
    if workdir and (holds := _what_it_holds(path)):
        _check_is_not_in_use(path)
        raise _not_free(path, holds)
    nearest = path  # the nearest that exists
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise errors.InputError(
            f"workdir must be a folder that can be written: got {str(path)!r}, but "
            f"{str(nearest)!r} is {'read-only' if nearest.is_dir() else 'not a folder'}"
        )


def holds_run(path: pathlib.Path) -> bool:
    """Returns whether the folder `path` holds a run: its settings, or a checkpoint."""
    return (path / "config.json").exists() or checkpoints.has_any(
        path / checkpoints.FOLDER
    )


def _what_it_holds(path: pathlib.Path) -> str:
    """Returns "a run", "files", or "" for a folder that is empty or does not exist."""
    if not path.is_dir():
        return ""
    if holds_run(path):
        return "a run"
    return "" if _only_leftovers(path) else "files"


def _only_leftovers(path: pathlib.Path) -> bool:
    """Returns whether a folder holds nothing but what a run leaves before it begins.

    A process that was killed before it wrote config.json leaves the lock and unfinished
    files. Runs of earlier versions opened their logs first, beside the lock.
    """
    is_locked_once = (path / LOCK).exists()
    return all(
        inner.name == LOCK
        or inner.name == f"config.json{files.UNFINISHED}"
        or (is_locked_once and _is_empty_log(inner))
        for inner in path.iterdir()
    )


def _is_empty_log(path: pathlib.Path) -> bool:
    """Returns whether a file or folder is a log of a run without a finished epoch."""
    if path.name == "tensorboard":
        return path.is_dir()
    return path.name == "metrics.jsonl" and path.stat().st_size == 0


def _not_free(path: pathlib.Path, holds: str) -> errors.InputError:
    """Returns the error of a folder that should be empty."""
    return errors.InputError(
        f"workdir must be a new or empty folder: {str(path)!r} holds {holds} already"
    )


def create(
    workdir: str, default_name: str, now: datetime.datetime | None = None
) -> pathlib.Path:
    """Makes the run directory and returns its path; see `lock_new` for what follows.

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
            files.make_parents(path)
            files.make_folder(path)
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
    files.make_parents(parent / stem)
    number = 1
    while True:
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            files.make_folder(path, exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return path


@contextlib.contextmanager
def lock(directory: pathlib.Path) -> Iterator[None]:
    """Keeps other processes from training in `directory`.

    The system releases the lock when the process ends, even if it is killed.

    Raises:
      InputError: another process holds the lock, or it can't be made.
    """
    held = filelock.FileLock(directory / LOCK)
    try:
        held.acquire(timeout=0)
    except filelock.Timeout as error:
        raise errors.InputError(
            f"workdir is in use: another process trains in {str(directory)!r}; wait "
            "for it to end or choose another workdir"
        ) from error
    except OSError as error:
        raise errors.InputError(
            f"workdir can't be locked at {str(directory / LOCK)!r}: {error.strerror}"
        ) from error
    try:
        yield
    finally:
        held.release()


@contextlib.contextmanager
def lock_new(directory: pathlib.Path) -> Iterator[None]:
    """Locks a run directory that `create` has made, and checks that it is still empty.

    Two processes may have found it empty. One of them gets the lock; the other is told
    that the folder is in use, or that it holds a run by now.

    Raises:
      InputError: another process trains in it, or has written to it.
    """
    with lock(directory):
        if holds := _what_it_holds(directory):
            raise _not_free(directory, holds)
        yield


def _check_is_not_in_use(directory: pathlib.Path) -> None:
    """Raises InputError if another process holds the lock of `directory`."""
    if (directory / LOCK).exists() and os.access(directory, os.W_OK):
        with lock(directory):
            pass


def lock_to_continue(settings: config.TrainConfig) -> AbstractContextManager[None]:
    """Returns the lock of the run that `settings` may continue in its own folder.

    Nothing is locked if there is no such run, or if its folder is read-only, where
    only a finished run is of use.
    """
    if settings.resume == "auto":
        path = errors.expand_path("workdir", settings.workdir)
        if holds_run(path) and os.access(path, os.W_OK):
            return lock(path)
    return contextlib.nullcontext()
