"""Remembers which image files were read without fault, and the digests of their pixels.

    known = load(files, key)                            # some may not be known
    known.is_known, known.digests                       # [E] bool, [E, 32] uint8
    save(files, key, known)

An entry holds as long as its file's size and time of change (ctime, which every write
and every replacement moves) stay the same. The folder is `tfmirror` in $XDG_CACHE_HOME
or ~/.cache. A cache that can't be read or written is done without.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import zipfile

import numpy as np
import PIL

from tfmirror import archives, files
from tfmirror.data import conversion
from tfmirror.data.image_folder import ImageFiles

DIGEST_BYTES = 32
NAMES = ("hashes", "sizes", "times", "digests")


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known of E image files; the arrays may be filled."""

    sizes: np.ndarray  # [E] int64, in bytes; -1: the file can't be looked at
    times: np.ndarray  # [E] int64, of the last change, in nanoseconds
    is_known: np.ndarray  # [E] bool: the file is readable and has the digest
    digests: np.ndarray  # [E, 32] uint8, SHA-256 of the pixels as they are trained on


def load(image_files: ImageFiles, key: str) -> Known:
    """Returns what an earlier `save` knew of files that have not changed since.

    Args:
      key: says what the images are converted to.
    """
    number = len(image_files)
    sizes, times = np.full(number, -1), np.zeros(number, np.int64)
    for k in range(number):
        with contextlib.suppress(OSError):
            found = os.stat(image_files.path(k))
            sizes[k], times[k] = found.st_size, found.st_ctime_ns
    digests = np.zeros((number, DIGEST_BYTES), np.uint8)
    is_known = np.zeros(number, bool)
    if saved := _read(_path(image_files, key)):
        rows = np.searchsorted(saved["hashes"], image_files.hashes)
        rows = np.minimum(rows, len(saved["hashes"]) - 1)
        is_known[:] = (
            (saved["hashes"][rows] == image_files.hashes)
            & (saved["sizes"][rows] == sizes)
            & (saved["times"][rows] == times)
        )
        digests[is_known] = saved["digests"][rows[is_known]]
    return Known(sizes, times, is_known, digests)


def save(image_files: ImageFiles, key: str, known: Known) -> None:
    """Writes what is known of the files, if the folder of the cache can be written.

    What is known of other files of the folder, which a limit left out, is kept.
    """
    rows = known.is_known
    arrays = (image_files.hashes, known.sizes, known.times, known.digests)
    values = {name: array[rows] for name, array in zip(NAMES, arrays, strict=True)}
    path = _path(image_files, key)
    if saved := _read(path):
        is_other = ~np.isin(saved["hashes"], image_files.hashes)
        values = {n: np.concatenate([values[n], saved[n][is_other]]) for n in NAMES}
        order = np.argsort(values["hashes"])
        values = {name: array[order] for name, array in values.items()}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replaced(path) as unfinished, open(unfinished, "wb") as file:
            np.savez(file, **values)


def _path(image_files: ImageFiles, key: str) -> pathlib.Path:
    """Returns the path of the cache of a folder's files."""
    folder = os.path.realpath(image_files.folder)
    rule = f"{conversion.VERSION} {PIL.__version__} {key} ".encode()
    name = hashlib.sha256(rule + os.fsencode(folder)).hexdigest()[:32]
    return _cache_folder() / f"images-{name}.npz"


def _cache_folder() -> pathlib.Path:
    """Returns the folder of the cache; it may not exist."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    place = pathlib.Path(given if os.path.isabs(given) else "~/.cache", "tfmirror")
    with contextlib.suppress(RuntimeError):  # there is no home
        return place.expanduser()
    return place


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays in a cache; {}: there is none, or it can't be used."""
    try:
        size = files.check_size(path, files.memory_bytes())
        with zipfile.ZipFile(path) as archive:
            archives.check_stored(archive, size)
            saved = {n: archives.read_array(archive, f"{n}.npy") for n in NAMES}
    # A damaged file can raise many kinds of errors.
    except Exception:
        return {}
    number = len(saved["hashes"]) if saved["hashes"].ndim else 0
    shapes = {array.shape for name, array in saved.items() if name != "digests"}
    is_whole = number and shapes == {(number,)}
    return (
        saved if is_whole and saved["digests"].shape == (number, DIGEST_BYTES) else {}
    )
