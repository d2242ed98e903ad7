"""Reads IDX files, the format of MNIST, and checks everything that their header claims.

    images = read_idx("train-images-idx3-ubyte.gz", num_dimensions=3)   # uint8

Format (https://yann.lecun.com/exdb/mnist): two zero bytes, a type code, the number of
dimensions, the size of each dimension as big-endian uint32, then the values in
row-major order.
"""

import gzip
import math
import os
import pathlib
import struct
import typing
import zlib

import numpy as np

from tfmirror import errors, files

UNSIGNED_BYTE = 0x08
TYPE_NAMES = {
    0x08: "unsigned byte",
    0x09: "signed byte",
    0x0B: "int16",
    0x0C: "int32",
    0x0D: "float32",
    0x0E: "float64",
}
# A packed file may hold this many bytes of values, or this many times its own size,
# whichever is more. MNIST and Fashion-MNIST have a ratio below 5, black images one of
# up to 1,032: a small file of those could fill the memory.
MAX_UNPACKED_BYTES = 64 * 2**20
MAX_RATIO = 100
PIECE_BYTES = 2**20  # read at a time


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
            values = np.empty(num_bytes, np.uint8)
            num_read = _read_into(file, values)
            # One byte more than the header announces: this reveals a file that is too
            # long, and makes gzip read on to the checksum at its end.
            is_longer = num_read == num_bytes and file.read(1) != b""
    except gzip.BadGzipFile as error:
        raise damaged_file(path, f"not a valid gzip file ({error})") from error
    except (EOFError, zlib.error) as error:
        raise damaged_file(path, f"damaged or cut short ({error})") from error
    except OSError as error:
        raise errors.InputError(f"{path}: can't be read: {error.strerror}") from error
    if is_longer or num_read < num_bytes:
        got = "more" if is_longer else f"{num_read:,}"
        raise damaged_file(
            path, f"expected {num_bytes:,} bytes of values as in its header, got {got}"
        )
    return values.reshape(shape)


def _read_into(file: typing.IO[bytes], values: np.ndarray) -> int:
    """Fills `values`, [E] uint8, from a file; returns how many bytes it had of them.

    It reads in pieces, and the system gives memory only for what has been filled: a
    file takes as much as it has, not as much as its header announces.
    """
    start = 0
    while piece := file.read(min(PIECE_BYTES, len(values) - start)):
        values[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
        start += len(piece)
    return start


def damaged_file(path: str | os.PathLike, problem: str) -> errors.InputError:
    """Returns the InputError for a file with damaged or unexpected content.

    Args:
      path: the file.
      problem: what is wrong, as one line without a full stop.
    """
    return errors.InputError(f"{path}: {problem}; replace the file with a good copy")


def _open(path: pathlib.Path) -> typing.IO[bytes]:
    """Opens a regular file for reading, through gzip if its name ends in ".gz"."""
    if path.exists() and not path.is_dir():
        files.check_size(path, files.memory_bytes())
    if _is_packed(path):
        return typing.cast(typing.IO[bytes], gzip.open(path, "rb"))
    return open(path, "rb")


def _is_packed(path: pathlib.Path) -> bool:
    """Returns whether a file is compressed with gzip, judged by its name."""
    return path.suffix.lower() == ".gz"


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
    """Raises InputError if the file can't hold `num_bytes` of values, or shouldn't."""
    size = files.check_size(path, files.memory_bytes())
    if not _is_packed(path):
        if num_bytes > size:
            raise damaged_file(
                path, f"cut short: its header announces {num_bytes:,} bytes of values"
            )
        return
    largest = max(MAX_UNPACKED_BYTES, MAX_RATIO * size)
    if num_bytes > largest:
        raise errors.InputError(
            f"{path}: its header announces {num_bytes:,} bytes of values, more than "
            f"the {largest:,} that a packed file of this size may have; if it is "
            "what you expect, unpack it with gunzip and give the unpacked file"
        )
