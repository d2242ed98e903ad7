"""Files that are complete or absent, and JSON files that may be damaged.

    write_json(folder / "summary.json", {"accuracy": 0.98})
    with replaced(folder / "model.npz") as unfinished:
        numpy.savez(unfinished.open("wb"), ...)
    read_json_object(folder / "summary.json")           # {"accuracy": 0.98}

A file is written under another name, put on the disk with fsync, and then renamed. A
process that is killed, a full disk or a power cut leaves either the old file or the new
one under the real name, never a part of one.
"""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from tfmirror import errors

UNFINISHED = ".unfinished"  # added to the name of a file or folder until it is complete


@contextlib.contextmanager
def replaced(path: pathlib.Path, ending: str = "") -> Iterator[pathlib.Path]:
    """Yields a path to write, which replaces `path` once the block has ended.

    If the block or the replacement fails, what was written is removed and whatever was
    at `path` before is still there.

    Args:
      path: a file in a folder that exists, or a folder that does not exist yet.
      ending: added to the yielded name, for writers that insist on one (".keras").

    Raises:
      OSError: the system can't write the file; its `filename` is then `path`.
    """
    unfinished = path.with_name(f"{path.name}{UNFINISHED}{ending}")
    try:
        _remove(unfinished)  # left by a process that was killed
        yield unfinished
        _sync_tree(unfinished)
        unfinished.replace(path)
        _sync(path.parent)  # the new name
    except BaseException as error:
        with contextlib.suppress(OSError):
            _remove(unfinished)
        if isinstance(error, OSError) and error.filename == str(unfinished):
            error.filename = str(path)  # the name that the user knows
        raise


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Writes the file `path`, complete and on the disk, or not at all.

    Raises:
      OSError: see `replaced`.
    """
    with replaced(path) as unfinished:
        unfinished.write_bytes(content)


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text file in UTF-8, complete and on the disk, or not at all.

    Raises:
      OSError: see `replaced`.
    """
    write_bytes(path, text.encode("utf-8"))


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes a value as a JSON file, complete and on the disk, or not at all.

    Raises:
      OSError: see `replaced`.
    """
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_text(path: pathlib.Path) -> str:
    """Returns the text of a UTF-8 file.

    Raises:
      InputError: the file can't be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error


def read_json_object(path: pathlib.Path) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Raises:
      InputError: the file can't be read or holds no JSON object; the message names it.
    """
    return parse_json_object(path, read_text(path))


def parse_json_object(path: pathlib.Path, text: str) -> dict[str, Any]:
    """Returns the JSON object in a text.

    Args:
      path: the file that holds the text, for the error message.

    Raises:
      InputError: the text is no JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise damaged(path, error) from error
    if not isinstance(value, dict):
        raise damaged(path, f"a JSON object is expected, got {text[:40]!r}")
    return value


def damaged(path: pathlib.Path, why: object) -> errors.InputError:
    """Returns the error to raise for a file that does not hold what it should."""
    return errors.InputError(
        f"{path} is damaged ({why}); restore it or leave its run directory out"
    )


def _remove(path: pathlib.Path) -> None:
    """Removes a file or a folder with all that is in it, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_tree(path: pathlib.Path) -> None:
    """Puts a file, or a folder and all that is in it, on the disk."""
    if path.is_dir():
        for inner in path.iterdir():
            _sync_tree(inner)
    _sync(path)


def _sync(path: pathlib.Path) -> None:
    """Puts the bytes of a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
