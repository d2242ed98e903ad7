"""Reads IDX files, the format of MNIST, and trusts nothing in them.

    images = read_idx("train-images-idx3-ubyte.gz", num_dimensions=3)   # uint8
    files = find_idx_files("folder")                   # None: no IDX file in there

Format (https://yann.lecun.com/exdb/mnist): two zero bytes, a type code, the number of
dimensions, each dimension as big-endian uint32, then the values, the last dimension
fastest.
"""

import gzip
import itertools
import math
import pathlib
import struct
import zlib

import numpy as np

from tfmirror import errors

DEBIAN_FOLDER = pathlib.Path("/usr/share/datasets")  # as dataset-fashion-mnist does

UNSIGNED_BYTE = 0x08
TYPE_NAMES = {
    0x08: "unsigned byte",
    0x09: "signed byte",
    0x0B: "int16",
    0x0C: "int32",
    0x0D: "float32",
    0x0E: "float64",
}
# Deflate can't pack more than 1032 bytes into one (zlib's technical details), so a
# header that claims more is damaged, and is refused before memory is asked for.
MAX_DEFLATE_RATIO = 1032

# Stem of each of the four files: (split, kind) -> name up to "-idx3-ubyte".
STEMS = {
    ("train", "images"): "train-images",
    ("train", "labels"): "train-labels",
    ("eval", "images"): "t10k-images",
    ("eval", "labels"): "t10k-labels",
}
NUM_DIMENSIONS = {"images": 3, "labels": 1}


def read_idx(path, num_dimensions):
    """Returns the uint8 array in the IDX file at `path`, gzip if the name ends in .gz.

    Raises:
      InputError: it can't be read, isn't gzip though named so, is damaged, or holds
        another type, number of dimensions or number of bytes than it should.
    """
    path = pathlib.Path(path)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            shape = _read_header(file, path, num_dimensions)
            num_bytes = math.prod(shape)
            _check_is_possible(path, num_bytes)
            # One byte more than announced: shows what is too long, and makes gzip
            # read on to the checksum at its end.
            content = file.read(num_bytes + 1)
    except gzip.BadGzipFile as error:
        raise damaged(path, f"not a whole gzip file ({error})") from error
    except (EOFError, zlib.error) as error:
        raise damaged(path, f"damaged or cut short ({error})") from error
    except OSError as error:
        raise errors.InputError(f"{path}: can't be read: {error.strerror}") from error
    if len(content) != num_bytes:
        got = "more" if len(content) > num_bytes else f"{len(content):,}"
        expected = f"{num_bytes:,} bytes of values as its header says"
        raise damaged(path, f"expected {expected}, got {got}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def damaged(path, what):
    """Returns the InputError for a file that isn't what it should be."""
    return errors.InputError(f"{path}: {what}; get the file again")


def _read_header(file, path, num_dimensions):
    """Returns the shape that the header announces, checked against what is expected."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPE_NAMES:
        raise damaged(path, f"not an IDX file: it starts with {magic!r}")
    if magic[2] != UNSIGNED_BYTE:
        got = TYPE_NAMES[magic[2]]
        raise damaged(path, f"expected values of type unsigned byte, got {got}")
    if magic[3] != num_dimensions:
        raise damaged(path, f"expected {num_dimensions} dimensions, got {magic[3]}")
    sizes = file.read(4 * num_dimensions)
    if len(sizes) < 4 * num_dimensions:
        raise damaged(path, "cut short in its header")
    shape = struct.unpack(f">{num_dimensions}I", sizes)
    if 0 in shape:
        raise damaged(path, f"expected at least one example, got shape {list(shape)}")
    return shape


def _check_is_possible(path, num_bytes):
    """Raises InputError if no file of this size on disk can hold `num_bytes`."""
    most = path.stat().st_size * (MAX_DEFLATE_RATIO if path.suffix == ".gz" else 1)
    if num_bytes > most:
        raise damaged(
            path, f"cut short: its header announces {num_bytes:,} bytes of values"
        )


def find_idx_files(folder):
    """Returns {(split, kind): path} of the four IDX files in `folder`, or None.

    Names end in -idx3-ubyte or .idx3-ubyte (idx1 for labels), with or without .gz.

    Raises:
      InputError: some of the four are there and others aren't.
    """
    found = {}
    for key, stem in STEMS.items():
        ending = f"idx{NUM_DIMENSIONS[key[1]]}-ubyte"
        names = [
            f"{stem}{joint}{ending}{packed}"
            for joint, packed in itertools.product("-.", ("", ".gz"))
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
            f"{folder}: {missing} is missing (there: {present}); all four IDX files "
            "are needed"
        )
    return found
