"""Checks files of prepared tensorflow-datasets before tensorflow-datasets reads them.

    check_folder("tensorflow_datasets/own_set")

Its readers trust them. They import the module that a description names as that of a
feature, and take as much memory as the head of a record announces.
"""

import json
import os
import pathlib
import struct
from typing import Any

import tensorflow as tf

from tfmirror import errors, files

# A feature's class has one of these keys. Both kinds of names are modules and a class.
CLASS_KEYS = ("pythonClassName", "type")
PACKAGE = "tensorflow_datasets."

# A record: its length, a checksum of the length, as many bytes, and their checksum.
# https://www.tensorflow.org/tutorials/load_data/tfrecord
RECORD_HEAD = struct.Struct("<QI")
RECORD_TAIL_BYTES = 4

PNG_START = b"\x89PNG\r\n\x1a\n"
JPEG_START = b"\xff\xd8\xff"


def check_folder(folder: pathlib.Path) -> None:
    """Checks all files below `folder`, which need not exist.

    Raises:
      InputError: a file is no regular file or is larger than the memory, a description
        is too large or names a class that is not tensorflow-datasets' own, or a record
        is longer than its file.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        if path.suffix == ".json":
            files.check_size(path, files.MAX_JSON_BYTES)
        else:
            files.check_size(path, files.memory_bytes())
        if path.name == "features.json":
            _check_classes(path)
        elif ".tfrecord" in path.name:
            _check_lengths(path)


def _check_classes(path: pathlib.Path) -> None:
    """Raises InputError if a description names another package's class.

    A file that is no JSON is passed over: tensorflow-datasets says what is wrong.
    """
    try:
        todo = [json.loads(path.read_bytes())]
    except ValueError:
        return
    except RecursionError as error:
        raise errors.InputError(f"{path}: damaged (too deeply nested)") from error
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            for key in CLASS_KEYS:
                _check_class(path, value.get(key))
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)


def _check_class(path: pathlib.Path, name: Any) -> None:
    """Raises InputError if `name` is that of another package's class."""
    if isinstance(name, str) and "." in name and not name.startswith(PACKAGE):
        raise errors.InputError(
            f"{path} must name classes of tensorflow-datasets alone, since their "
            f"modules are imported: got {name[:80]!r}; prepare the data with those"
        )


def _check_lengths(path: pathlib.Path) -> None:
    """Raises InputError if a record of a file is longer than what is left of it."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        while len(head := file.read(RECORD_HEAD.size)) == RECORD_HEAD.size:
            (length, _) = RECORD_HEAD.unpack(head)
            if file.tell() + length + RECORD_TAIL_BYTES > size:
                raise errors.InputError(
                    f"{path}: damaged (a record of {length:,} bytes, more than the "
                    f"file has left); remove {path.parent} and let tensorflow-datasets "
                    "prepare it again"
                )
            file.seek(length + RECORD_TAIL_BYTES, os.SEEK_CUR)


def check_encoded(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Returns an encoded image, after checking its head: it has not been decoded.

    Args:
      image: scalar string, the bytes of a PNG or JPEG file.
      height: in pixels, as the image must have.
      width: in pixels.

    Raises:
      tf.errors.InvalidArgumentError: it is of another size or format. In a tf.data
        pipeline the error comes when the image is read.
    """

    def png_size() -> tf.Tensor:
        # Bytes 16 to 23: width and height, big-endian.
        head = tf.io.decode_raw(
            tf.strings.substr(image, 16, 8), tf.int32, little_endian=False
        )
        return head[::-1]

    def jpeg_size() -> tf.Tensor:
        return tf.io.extract_jpeg_shape(image)[:2]

    is_png = tf.strings.substr(image, 0, len(PNG_START)) == PNG_START
    is_jpeg = tf.strings.substr(image, 0, len(JPEG_START)) == JPEG_START
    known = tf.debugging.Assert(is_png | is_jpeg, ["an image is neither PNG nor JPEG"])
    with tf.control_dependencies([known]):
        size = tf.cond(is_png, png_size, jpeg_size)
    message = f"an image is not of {height}x{width} pixels"
    right = tf.debugging.assert_equal(size, [height, width], message=message)
    with tf.control_dependencies([right]):
        return tf.identity(image)
