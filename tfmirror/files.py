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
import stat
from collections.abc import Iterator
from typing import Any

from tfmirror import errors

# The record of an epoch has a few hundred bytes, so this is far beyond any real run. A
# parsed JSON file takes up to some 30 times its size.
MAX_JSON_BYTES = 32 * 2**20

UNFINISHED = ".unfinished"  # added to the name of a file or folder until it is complete
DAMAGED = ".damaged"  # added to the name of a file that is moved aside


class DamagedFileError(errors.InputError):
    """A file does not hold what it should."""

    def __init__(self, path: pathlib.Path, why: object) -> None:
        """`why` says what is wrong with the file `path`."""
        super().__init__(
            f"{path} is damaged ({why}); restore it or leave its run directory out"
        )
        self.path, self.why = path, why


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
        sync_tree(unfinished)
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

    Bytes of file names that are not UTF-8 are written as they are.

    Raises:
      OSError: see `replaced`.
    """
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes a value as a JSON file, complete and on the disk, or not at all.

    Raises:
      OSError: see `replaced`.
    """
    write_text(path, json.dumps(value, indent=2) + "\n")


def check_size(path: pathlib.Path, max_bytes: int) -> int:
    """Returns the size of a file that is to be read into memory, in bytes.

    Raises:
      InputError: it is larger than `max_bytes`, or is no regular file (reading a named
        pipe would wait, and reading a device would never end).
      OSError: it can't be looked at.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise errors.InputError(f"{path} must be a regular file: got another kind")
    if found.st_size > max_bytes:
        raise errors.InputError(
            f"{path} must have at most {max_bytes:,} bytes: got {found.st_size:,}; "
            "give another file"
        )
    return found.st_size


def memory_bytes() -> int:
    """Returns the memory of this machine in bytes: no file may take more of it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_text(path: pathlib.Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Returns the text of a UTF-8 file.

    Raises:
      InputError: the file can't be read, is larger than `max_bytes` or is not UTF-8.
    """
    try:
        check_size(path, max_bytes)
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
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    if not isinstance(value, dict):
        raise damaged(path, f"a JSON object is expected, got {text[:40]!r}")
    return value


def damaged(path: pathlib.Path, why: object) -> DamagedFileError:
    """Returns the error to raise for a file that does not hold what it should."""
    return DamagedFileError(path, why)


def make_folder(path: pathlib.Path, *, exist_ok: bool = True) -> None:
    """Makes a folder whose parent exists, and puts its name on the disk.

    Without that, a power cut may take the folder away with all that was synced in it.

    Args:
      exist_ok: whether nothing is done if the folder is there already.

    Raises:
      FileExistsError: the folder is there and must not be, or a file has its name.
      OSError: it can't be made.
    """
    try:
        path.mkdir()
    except FileExistsError:
        if not exist_ok or not path.is_dir():
            raise
    else:
        _sync(path.parent)


def make_parents(path: pathlib.Path) -> None:
    """Makes the folders above `path` that do not exist, and puts them on the disk.

    Raises:
      OSError: one can't be made.
    """
    for parent in reversed(path.parents):
        if not parent.is_dir():
            make_folder(parent)


def remove(path: pathlib.Path) -> None:
    """Removes the file `path`, if it exists, also from the disk.

    Raises:
      OSError: it can't be removed.
    """
    if path.exists():
        path.unlink(missing_ok=True)
        _sync(path.parent)


def move_aside(path: pathlib.Path) -> pathlib.Path:
    """Renames a damaged file so that nothing takes it for a whole one.

    Returns the new path: the old one with ".damaged" added, and a number if it is
    taken.

    Raises:
      OSError: it can't be renamed.
    """
    aside = path.with_name(path.name + DAMAGED)
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}{DAMAGED}-{number}")
    path.rename(aside)
    _sync(path.parent)
    return aside


def _remove(path: pathlib.Path) -> None:
    """Removes a file or a folder with all that is in it, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_tree(path: pathlib.Path) -> None:
    """Puts a file, or a folder and all that is in it, on the disk."""
    if path.is_dir():
        for inner in path.iterdir():
            sync_tree(inner)
    _sync(path)


def _sync(path: pathlib.Path) -> None:
    """Puts the bytes of a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
