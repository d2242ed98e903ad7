"""Checkpoints: the state of a run in one file, checked before it is used.

    write(directory / "checkpoints", state, keep=3)
    state, path = latest(directory / "checkpoints", warn=print)

A checkpoint is a `.npz` archive that NumPy opens: one array for each variable, and
everything else as JSON. Its archive comment is the SHA-256 of all bytes before it. A
file whose bytes do not agree with that digest is damaged and is not parsed.
"""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tfmirror import archives, errors, files, metrics
from tfmirror.rundir.state import ModelDescription, PassProgress, RunProgress, RunState

FOLDER = "checkpoints"  # name in the run directory
BEST = "best.npz"
STATE_JSON = "state.json"  # name in the archive of all that is not a variable
DIGEST_LENGTH = 64  # hexadecimal digits of SHA-256
NAME = re.compile(r"step-(\d{9})\.npz")


class DamagedError(Exception):
    """A file is not a complete checkpoint."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What there is in a folder of checkpoints."""

    state: RunState | None = None  # of the newest complete one
    path: pathlib.Path | None = None  # of it
    damaged: tuple[pathlib.Path, ...] = ()  # newer files, which are not complete


def write(folder: pathlib.Path, state: RunState, keep: int = 0) -> pathlib.Path:
    """Writes `state` as folder/step-<steps>.npz; returns the path.

    The file gets that name only once it is complete and on the disk.

    Args:
      folder: made if it does not exist; its parent must exist.
      keep: how many checkpoints to keep, this one and those of the steps before it,
        not counting best.npz; 0: all. Those of later steps stay.

    Raises:
      OSError: no space, no permission, or no parent folder.
    """
    files.make_folder(folder)
    for stale in folder.glob(f"*{files.UNFINISHED}"):  # of a process that was killed
        stale.unlink(missing_ok=True)
    path = folder / f"step-{state.num_steps:09}.npz"
    files.write_bytes(path, to_bytes(state))
    # By name is by step. What is not older than the file just written is not touched.
    older = [p for p in _sorted_paths(folder) if p.name < path.name]
    for outdated in older[: max(0, len(older) - keep + 1)] if keep else []:
        outdated.unlink(missing_ok=True)
    return path


def mark_best(path: pathlib.Path) -> None:
    """Makes the checkpoint `path` the folder's best.npz as well.

    Raises:
      OSError: best.npz can't be written.
    """
    with files.replaced(path.with_name(BEST)) as unfinished:
        try:
            os.link(path, unfinished)  # no copy: the two names share their bytes
        except OSError:  # a file system without links
            shutil.copyfile(path, unfinished)


def best_accuracy(
    folder: pathlib.Path, warn: Callable[[str], object] = lambda line: None
) -> float:
    """Returns the evaluation accuracy of best.npz, in [0, 1].

    -1 if there is no usable best.npz, so that any checkpoint may replace it.

    Args:
      warn: called with one line if best.npz is there and can't be used.
    """
    path = folder / BEST
    try:
        return read(path).position.records[-1]["eval_accuracy"]
    except (DamagedError, IndexError, KeyError) as error:
        if path.exists():
            warn(
                f"warning: {path} is damaged ({error}): the best of the epochs from "
                "here on takes its place"
            )
        return -1.0


def latest(
    folder: pathlib.Path, warn: Callable[[str], object]
) -> tuple[RunState | None, pathlib.Path | None]:
    """Returns the newest complete checkpoint in `folder`, and its path.

    (None, None) if the folder has none or does not exist.

    Args:
      warn: called with one line for each damaged checkpoint that is skipped.
    """
    found = find(folder, warn)
    return found.state, found.path


def find(folder: pathlib.Path, warn: Callable[[str], object]) -> Found:
    """Returns the newest complete checkpoint in `folder`, and what is damaged.

    Changes nothing. The folder need not exist.

    Args:
      warn: called with one line for each damaged checkpoint that is skipped.
    """
    damaged: list[pathlib.Path] = []
    for path in reversed(_sorted_paths(folder)):
        try:
            return Found(read(path), path, tuple(damaged))
        except DamagedError as error:
            if path.exists():  # a run that goes on may have removed it meanwhile
                warn(f"warning: skipped the damaged checkpoint {path}: {error}")
                damaged.append(path)
    return Found(damaged=tuple(damaged))


def has_any(folder: pathlib.Path) -> bool:
    """Returns whether `folder` exists and holds checkpoints, complete or not."""
    return bool(_sorted_paths(folder))


def _sorted_paths(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files with a checkpoint's name, from the first step to the last."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if NAME.fullmatch(p.name))


def read(path: pathlib.Path) -> RunState:
    """Returns the RunState in the checkpoint `path`.

    Raises:
      DamagedError: the file can't be read or is not a complete checkpoint.
    """
    try:
        files.check_size(path, files.memory_bytes())
        content = path.read_bytes()
    except OSError as error:
        raise DamagedError(error.strerror) from error
    except errors.InputError as error:
        raise DamagedError(str(error)) from error
    state = from_bytes(content)
    match = NAME.fullmatch(path.name)
    if match and int(match[1]) != state.num_steps:
        raise DamagedError(f"it holds step {state.num_steps}, its name says {match[1]}")
    return state


def to_bytes(state: RunState) -> bytes:
    """Returns a RunState as the bytes of a checkpoint, equal for equal states."""
    position = state.position
    point = dataclasses.asdict(position.point)
    del point["totals"]["num_top5"]  # training does not count it
    everything_else = {
        "settings": state.settings,
        "data_sha256": state.data_sha256,
        "num_steps": state.num_steps,
        "records": position.records,
        "point": point,
        "model": state.model.to_json(),
        "variables": list(state.variables),
    }
    buffer = io.BytesIO()
    # Numbered, since not every variable's name is a valid file name.
    arrays: dict[str, Any] = {
        f"variable{k}": array for k, array in enumerate(state.variables.values())
    }
    np.savez(buffer, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        # A ZipInfo has a fixed time. So equal states are equal files, and a clock that
        # stands before 1980, where zip's times begin, does no harm.
        archive.writestr(zipfile.ZipInfo(STATE_JSON), json.dumps(everything_else))
        archive.comment = b"0" * DIGEST_LENGTH
    content = buffer.getvalue()[:-DIGEST_LENGTH]
    return content + _digest(content)


def from_bytes(content: bytes) -> RunState:
    """Returns the RunState in the bytes of a checkpoint.

    Raises:
      DamagedError: they are not the bytes of a complete checkpoint.
    """
    if len(content) < DIGEST_LENGTH:
        raise DamagedError(f"it has only {len(content)} bytes")
    if content[-DIGEST_LENGTH:] != _digest(content[:-DIGEST_LENGTH]):
        raise DamagedError("its bytes do not agree with the digest at its end")
    try:
        return _parse(content)
    # The digest is no signature: a file that somebody made can raise almost any error.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DamagedError(f"it was not written by tfmirror ({reason})") from error


def _parse(content: bytes) -> RunState:
    """Returns the RunState in bytes whose digest is right.

    Raises:
      Exception: something other than `to_bytes` wrote them.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archives.check_stored(archive, len(content))
        if archive.getinfo(STATE_JSON).file_size > files.MAX_JSON_BYTES:
            raise ValueError(f"{STATE_JSON} in it is too large")
        values = json.loads(archive.read(STATE_JSON))
        arrays = [
            archives.read_array(archive, f"variable{k}.npy")
            for k in range(len(values["variables"]))
        ]
    point = values["point"]
    totals = metrics.Totals(**point.pop("totals"))
    return RunState(
        settings=values["settings"],
        data_sha256=values["data_sha256"],
        position=RunProgress(
            tuple(values["records"]), PassProgress(totals=totals, **point)
        ),
        num_steps=values["num_steps"],
        model=ModelDescription.from_json(values["model"]),
        variables=dict(zip(values["variables"], arrays, strict=True)),
    )


def _digest(content: bytes) -> bytes:
    """Returns the SHA-256 of bytes, in 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest().encode("ascii")
