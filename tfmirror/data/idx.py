"""Reads IDX files, the format of MNIST, and checks everything that their header claims.

    images = read_idx("train-images-idx3-ubyte.gz", num_dimensions=3)   # uint8
    files = find_idx_files("folder")         # None: the folder has no IDX file

Format (https://yann.lecun.com/exdb/mnist): two zero bytes, a type code, the number of
dimensions, the size of each dimension as big-endian uint32, then the values in
row-major order.
"""

import gzip
import itertools
import math
import os
import pathlib
import struct
import typing
import zlib

import numpy as np

from tfmirror import errors

# Debian's package dataset-fashion-mnist installs into a subfolder of this one.
DEBIAN_FOLDER = pathlib.Path("/usr/share/datasets")

UNSIGNED_BYTE = 0x08
TYPE_NAMES = {
    0x08: "unsigned byte",
    0x09: "signed byte",
    0x0B: "int16",
    0x0C: "int32",
    0x0D: "float32",
    0x0E: "float64",
}
# Deflate packs at most 1032 bytes into one (zlib's technical details). A header that
# claims more is wrong, and is refused before any memory is allocated for it.
MAX_DEFLATE_RATIO = 1032

# (split, kind) -> the file's name before "-idx3-ubyte" or "-idx1-ubyte".
STEMS = {
    ("train", "images"): "train-images",
    ("train", "labels"): "train-labels",
    ("eval", "images"): "t10k-images",
    ("eval", "labels"): "t10k-labels",
}
NUM_DIMENSIONS = {"images": 3, "labels": 1}


def read_idx(path: str | os.PathLike, num_dimensions: int) -> np.ndarray:
    """Returns the values of an IDX file as a read-only uint8 array.

    Args:
      path: the file; it is decompressed with gzip if its name ends in ".gz".
      num_dimensions: how many dimensions the array must have (3 for [E, H, W]).

    Raises:
      InputError: the file can't be read, is named .gz but isn't gzip, is damaged, or
        has another value type, number of dimensions or number of bytes than expected.
    """
    path = pathlib.Path(path)
    try:
        with _open(path) as file:
            shape = _read_header(file, path, num_dimensions)
            num_bytes = math.prod(shape)
            _check_is_possible(path, num_bytes)
            # One byte more than the header announces: this reveals a file that is too
            # long, and makes gzip read on to the checksum at its end.
            content = file.read(num_bytes + 1)
    except gzip.BadGzipFile as error:
        raise damaged_file(path, f"not a valid gzip file ({error})") from error
    except (EOFError, zlib.error) as error:
        raise damaged_file(path, f"damaged or cut short ({error})") from error
    except OSError as error:
        raise errors.InputError(f"{path}: can't be read: {error.strerror}") from error
    if len(content) != num_bytes:
        got = "more" if len(content) > num_bytes else f"{len(content):,}"
        raise damaged_file(
            path, f"expected {num_bytes:,} bytes of values as in its header, got {got}"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def damaged_file(path: str | os.PathLike, problem: str) -> errors.InputError:
    """Returns the InputError for a file with damaged or unexpected content.

    Args:
      path: the file.
      problem: what is wrong, as one line without a full stop.
    """
    return errors.InputError(f"{path}: {problem}; replace the file with a good copy")


def _open(path: pathlib.Path) -> typing.IO[bytes]:
    """Opens a file for reading, through gzip if its name ends in ".gz"."""
    if path.suffix == ".gz":
        return typing.cast(typing.IO[bytes], gzip.open(path, "rb"))
    return open(path, "rb")


def _read_header(
    file: typing.IO[bytes], path: pathlib.Path, num_dimensions: int
) -> tuple[int, ...]:
    """Returns the shape in the header; raises InputError if it isn't as expected."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPE_NAMES:
        raise damaged_file(path, f"not an IDX file: it starts with {magic!r}")
    if magic[2] != UNSIGNED_BYTE:
        got = TYPE_NAMES[magic[2]]
        raise damaged_file(path, f"expected values of type unsigned byte, got {got}")
    if magic[3] != num_dimensions:
        raise damaged_file(
            path, f"expected {num_dimensions} dimensions, got {magic[3]}"
        )
    sizes = file.read(4 * num_dimensions)
    if len(sizes) < 4 * num_dimensions:
        raise damaged_file(path, "cut short in its header")
    shape = struct.unpack(f">{num_dimensions}I", sizes)
    if 0 in shape:
        raise damaged_file(
            path, f"expected at least one example, got shape {list(shape)}"
        )
    return shape


def _check_is_possible(path: pathlib.Path, num_bytes: int) -> None:
    """Raises InputError if a file of this size can't hold `num_bytes` of values."""
    largest = path.stat().st_size * (MAX_DEFLATE_RATIO if path.suffix == ".gz" else 1)
    if num_bytes > largest:
        raise damaged_file(
            path, f"cut short: its header announces {num_bytes:,} bytes of values"
        )


def find_idx_files(
    folder: str | os.PathLike,
) -> dict[tuple[str, str], pathlib.Path] | None:
    """Returns the paths of the four IDX files in `folder`, or None if it has none.

    Names end in -idx3-ubyte or .idx3-ubyte (idx1 for labels), with or without .gz.

    Returns:
      {(split, kind): path} with the keys of `STEMS`: split is "train" or "eval", kind
      is "images" or "labels".

    Raises:
      InputError: the folder has some of the four files but not all.
    """
    found = {}
    for key, stem in STEMS.items():
        ending = f"idx{NUM_DIMENSIONS[key[1]]}-ubyte"
        names = [
            f"{stem}{joint}{ending}{compression}"
            for joint, compression in itertools.product("-.", ("", ".gz"))
        ]
        paths = [
            path for name in names if (path := pathlib.Path(folder, name)).is_file()
        ]
        if paths:
            found[key] = paths[0]
        else:
            missing = names[1]
    if not found:
        return None
    if len(found) < len(STEMS):
        present = ", ".join(sorted(path.name for path in found.values()))
        raise errors.InputError(
            f"{folder}: expected all four IDX files, but {missing} is missing (found "
            f"{present}); add it"
        )
    return found
