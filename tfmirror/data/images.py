"""Reads images for prediction from image files and from IDX files.

    examples = read("shoe.png", shape=(28, 28, 1))              # [1, 28, 28, 1] uint8
    examples = read("t10k-images-idx3-ubyte.gz", (28, 28, 1))   # [10000, 28, 28, 1]

Images are neither resized nor converted to another colour mode: the model gets exactly
the values in the file. One thing is applied, for every format alike: the orientation
that the file states in its EXIF data. The model sees what other programs show.

With `is_converted`, image files become what they were in the training on an image
folder; see `conversion`.
"""

import contextlib
import io
import os
import pathlib
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import PIL.Image
import PIL.ImageOps

from tfmirror import errors, files
from tfmirror.data import conversion, idx
from tfmirror.data.conversion import MAX_FILE_BYTES, MODES

# Pillow knows many more. Some of them are rarely used and so rarely tested; one, EPS,
# is a program, which Pillow hands to Ghostscript.
FORMATS = ("BMP", "JPEG", "PNG", "TIFF", "WEBP")
# Some formats need memory for all pixels as soon as they are opened, before their size
# can be compared with the model's. Up to this many pixels the error names the size.
MAX_PIXELS = 2**24


def read(
    path: str | os.PathLike, shape: Sequence[int], *, is_converted: bool = False
) -> np.ndarray:
    """Returns the images in a file, [E, H, W, C] uint8.

    Args:
      path: an IDX file, or an image file in one of `FORMATS`; it may begin with ~. A
        name that ends in ".gz" is read as an IDX file. An image's first bytes, not its
        name, tell its format.
      shape: (H, W, C) that the images must have.
      is_converted: whether image files (in one of `conversion.FORMATS`) of another
        size or colour mode are converted; IDX files never are.

    Raises:
      InputError: the file can't be read, is damaged, or holds images of another shape
        or type.
    """
    file = errors.expand_path("the image", os.fspath(path))
    if not file.is_file():
        raise errors.InputError(f"{file} is not a file; give image or IDX files")
    if file.suffix.lower() == ".gz" or _starts_like_idx(file):
        images = _read_idx(file, shape)
    elif is_converted:
        images = _read_converted(file, shape)
    else:
        images = _read_image(file, shape)
    if images.shape[1:] != tuple(shape):
        raise _other_shape(file, images.shape[1:], shape)
    return images


def _starts_like_idx(path: pathlib.Path) -> bool:
    """Returns whether the file begins like an IDX file, which no image format does."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise errors.InputError(f"{path}: can't be read: {error.strerror}") from error
    return start[:2] == b"\0\0" and start[2:] in (b"\x08\x03", b"\x08\x04")


def _read_idx(path: pathlib.Path, shape: Sequence[int]) -> np.ndarray:
    """Returns the images in an IDX file, [E, H, W, C] uint8.

    The file must hold [E, H, W] if C is 1, and [E, H, W, C] otherwise.
    """
    if shape[-1] == 1:
        return idx.read_idx(path, num_dimensions=3)[..., np.newaxis]
    return idx.read_idx(path, num_dimensions=4)


def _read_image(path: pathlib.Path, shape: Sequence[int]) -> np.ndarray:
    """Returns the image in an image file, turned upright, [1, H, W, C] uint8."""
    try:
        files.check_size(path, MAX_FILE_BYTES)
        # Not by its name: Pillow 13 maps a file that it opened itself into memory, and
        # then scrambles an uncompressed grey TIFF that lies on its side.
        content = io.BytesIO(path.read_bytes())
        with (
            _limited_pixels(max(MAX_PIXELS, shape[0] * shape[1])),
            PIL.Image.open(content, formats=FORMATS) as image,
        ):
            _check_header(path, image, shape)
            pixels = np.asarray(PIL.ImageOps.exif_transpose(image), np.uint8)
    except errors.InputError:
        raise
    except PIL.UnidentifiedImageError as error:
        raise errors.InputError(
            f"{path} is neither an IDX file of images nor an image in one of the "
            f"formats {', '.join(FORMATS)}; convert it to one of them"
        ) from error
    # Each format of Pillow raises its own errors for damaged files.
    except Exception as error:
        raise idx.damaged_file(path, f"damaged ({error})") from error
    return pixels.reshape(1, *pixels.shape[:2], -1)


def _read_converted(path: pathlib.Path, shape: Sequence[int]) -> np.ndarray:
    """Returns the image in an image file, converted to `shape`, [1, H, W, C] uint8."""
    try:
        with conversion.quiet_pillow():
            return conversion.read(path, shape)[np.newaxis]
    except conversion.UnreadableError as error:
        raise errors.InputError(
            f"{path}: can't be read as an image ({error}); give another file"
        ) from error


@contextlib.contextmanager
def _limited_pixels(number: int) -> Iterator[None]:
    """Lets Pillow raise an error for images of more pixels, before it decodes them."""
    before = PIL.Image.MAX_IMAGE_PIXELS
    PIL.Image.MAX_IMAGE_PIXELS = number
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns from the limit to its double
            yield
    finally:
        PIL.Image.MAX_IMAGE_PIXELS = before


def _check_header(
    path: pathlib.Path, image: PIL.Image.Image, shape: Sequence[int]
) -> None:
    """Raises InputError unless the image, not yet decoded, has the right form.

    A side may have the other side's length: the orientation of a PNG file can stand
    behind the pixels, so it is known only once they are decoded.
    """
    height, width, channels = shape
    if image.size not in ((width, height), (height, width)):
        raise _other_shape(path, (image.height, image.width), shape)
    mode = MODES.get(channels)
    if image.mode != mode:
        raise errors.InputError(
            f"{path}: the model takes 8-bit images with {channels} channels (Pillow's "
            f"mode {mode}): got mode {image.mode}; convert the image first"
        )
    num_frames = getattr(image, "n_frames", 1)
    if num_frames != 1:
        raise errors.InputError(
            f"{path}: expected one image, got {num_frames} frames; save one of them as "
            "a file"
        )


def _other_shape(
    path: pathlib.Path, got: Sequence[int], shape: Sequence[int]
) -> errors.InputError:
    """Returns the InputError for images of shape `got`, where `shape` is expected."""
    return errors.InputError(
        f"{path}: the model takes images of {shape[0]}x{shape[1]} pixels and "
        f"{shape[2]} channels: got shape {list(got)}; resize the images first"
    )
