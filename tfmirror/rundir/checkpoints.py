"""Checkpoints: a run's state in one file, whole or not there, never trusted blindly.

    write(directory / "checkpoints", state, keep=3)
    state, path = latest(directory / "checkpoints", warn=print)

A file is a `.npz` archive that NumPy opens: one array for each variable, and the rest
as JSON. Its archive comment is the SHA-256 of all bytes before it; a file that does not
agree with its own is damaged, and is not looked into.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
import zipfile

import numpy as np

from tfmirror import metrics
from tfmirror.rundir.state import PassProgress, RunProgress, RunState

BEST = "best.npz"
STATE_JSON = "state.json"  # name of what is no variable
DIGEST_LENGTH = 64
NAME = re.compile(r"step-(\d{9})\.npz")


class DamagedError(Exception):
    """A file is not a whole checkpoint."""


def write(folder, state, keep=0):
    """Writes `state` as folder/step-<steps>.npz; returns the path.

    The file has that name only when it is whole and on the disk.

    Args:
      keep: remove all but so many of the last checkpoints, `best` apart; 0: none.

    Raises:
      OSError: no space, no permission, no folder to make it in.
    """
    folder.mkdir(exist_ok=True)
    for stale in folder.glob("*.unfinished"):  # of a process that was killed
        stale.unlink(missing_ok=True)
    path = folder / f"step-{state.num_steps:09}.npz"
    write_file(path, to_bytes(state))
    older = sorted(p for p in folder.iterdir() if NAME.fullmatch(p.name))
    for outdated in older[:-keep] if keep else []:
        outdated.unlink(missing_ok=True)
    return path


def mark_best(path):
    """Makes `path`, which was just written, the folder's best.npz as well."""
    unfinished = path.with_name(f"{BEST}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        os.link(path, unfinished)  # no copy: the two names share their bytes
    except OSError:  # a file system without links
        write_file(path.with_name(BEST), path.read_bytes())
        return
    unfinished.replace(path.with_name(BEST))


def best_accuracy(folder):
    """Returns the evaluation accuracy of the folder's best.npz; -1: there is none."""
    try:
        return read(folder / BEST).position.records[-1]["eval_accuracy"]
    except (DamagedError, IndexError, KeyError):  # another is to take its place
        return -1.0


def latest(folder, warn):
    """Returns (RunState, path) of the last checkpoint in `folder` that is whole.

    (None, None) if there is none.

    Args:
      warn: called with a line for each damaged one that is passed over.
    """
    paths = folder.iterdir() if folder.is_dir() else ()
    for path in sorted((p for p in paths if NAME.fullmatch(p.name)), reverse=True):
        try:
            return read(path), path
        except DamagedError as error:
            warn(f"warning: {path} is passed over: {error}")
    return None, None


def read(path):
    """Returns the RunState in the file `path`.

    Raises:
      DamagedError: it is not a whole checkpoint.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedError(error.strerror) from error
    state = from_bytes(content)
    named = NAME.fullmatch(path.name)
    if named and int(named[1]) != state.num_steps:
        raise DamagedError(f"it is that of step {state.num_steps}")
    return state


def to_bytes(state):
    """Returns the file of a RunState."""
    position = state.position
    rest = {
        "settings": state.settings,
        "data_sha256": state.data_sha256,
        "num_steps": state.num_steps,
        "records": position.records,
        "point": dataclasses.asdict(position.point),
        "model": state.model,
        "variables": list(state.variables),
    }
    buffer = io.BytesIO()
    # Numbered, since a variable's name may be no name of a file.
    arrays = {f"variable{k}": array for k, array in enumerate(state.variables.values())}
    np.savez(buffer, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(STATE_JSON, json.dumps(rest))
        archive.comment = b"0" * DIGEST_LENGTH
    content = buffer.getvalue()[:-DIGEST_LENGTH]
    return content + _digest(content)


def from_bytes(content):
    """Returns the RunState of a file's bytes.

    Raises:
      DamagedError: they are not those of a whole checkpoint.
    """
    if len(content) < DIGEST_LENGTH:
        raise DamagedError(f"it has {len(content)} bytes")
    if content[-DIGEST_LENGTH:] != _digest(content[:-DIGEST_LENGTH]):
        raise DamagedError("its bytes do not agree with the digest at its end")
    try:
        return _parse(content)
    except (KeyError, TypeError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise DamagedError(f"it was not written by tfmirror ({error})") from error


def _parse(content):
    """Returns the RunState of a file's bytes, which are as they were written."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        rest = json.loads(archive.zip.read(STATE_JSON))
        arrays = [archive[f"variable{k}"] for k in range(len(rest["variables"]))]
    point = rest["point"]
    totals = metrics.Totals(**point.pop("totals"))
    return RunState(
        rest["settings"],
        rest["data_sha256"],
        RunProgress(tuple(rest["records"]), PassProgress(totals=totals, **point)),
        rest["num_steps"],
        rest["model"],
        dict(zip(rest["variables"], arrays, strict=True)),
    )


def _digest(content):
    """Returns the SHA-256 of bytes, in 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest().encode("ascii")


def write_file(path, content):
    """Writes bytes as the file `path`: whole and on the disk, or not at all.

    Raises:
      OSError: it can't be written; nothing is left behind.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(pathlib.Path(path).parent)


def _sync_folder(folder):
    """Puts the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
