"""Images from files, as a model takes them: image files, and IDX files of many.

    examples = read("shoe.png", shape=(28, 28, 1))              # [1, 28, 28, 1] uint8
    examples = read("t10k-images-idx3-ubyte.gz", (28, 28, 1))   # [10000, 28, 28, 1]

Nothing is resized and no colour converted: what a model sees is what the file holds.
"""

import warnings

import numpy as np
import PIL.Image

from tfmirror import errors
from tfmirror.data import idx

MODES = {1: "L", 3: "RGB"}  # Pillow's name of 8-bit images, by channels


def read(path, shape):
    """Returns the images in the file `path`, [E, H, W, C] uint8.

    Args:
      shape: (H, W, C) that they must have.

    Raises:
      InputError: the file can't be read, is damaged, or holds other images.
    """
    path = errors.expand_path("the image", path)
    if not path.is_file():
        raise errors.InputError(f"{path} is not a file; give image or IDX files")
    if path.suffix == ".gz" or _starts_like_idx(path):
        images = _read_idx(path, shape)
    else:
        images = _read_image(path, shape)
    if images.shape[1:] != tuple(shape):
        raise _other_shape(path, images.shape[1:], shape)
    return images


def _starts_like_idx(path):
    """Returns whether the file begins as IDX files do, and image files don't."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise errors.InputError(f"{path}: can't be read: {error.strerror}") from error
    return start[:2] == b"\0\0" and start[2:] in (b"\x08\x03", b"\x08\x04")


def _read_idx(path, shape):
    """Returns the images in an IDX file: [E, H, W], or [E, H, W, C] if C is not 1."""
    if shape[-1] == 1:
        return idx.read_idx(path, num_dimensions=3)[..., np.newaxis]
    return idx.read_idx(path, num_dimensions=4)


def _read_image(path, shape):
    """Returns the one image in an image file, [1, H, W, C]."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as on sizes that fill the memory
            with PIL.Image.open(path) as image:
                _check_header(path, image, shape)
                pixels = np.asarray(image, np.uint8)
    except errors.InputError:
        raise
    except PIL.UnidentifiedImageError as error:
        raise errors.InputError(
            f"{path} is neither an image that Pillow reads nor an IDX file of images"
        ) from error
    # Each of Pillow's formats has errors of its own for damaged files.
    except Exception as error:
        raise idx.damaged(path, f"damaged ({error})") from error
    return pixels.reshape(1, *pixels.shape[:2], -1)


def _check_header(path, image, shape):
    """Raises InputError unless an image that is not decoded yet has the right form."""
    height, width, channels = shape
    if image.size != (width, height):
        raise _other_shape(path, (image.height, image.width), shape)
    wanted = MODES.get(channels)
    if image.mode != wanted:
        raise errors.InputError(
            f"{path}: the model takes 8-bit images of {channels} channels (Pillow's "
            f"mode {wanted}): got mode {image.mode}; convert it first"
        )
    if getattr(image, "n_frames", 1) != 1:
        raise errors.InputError(
            f"{path}: one image is expected, got {image.n_frames} frames"
        )


def _other_shape(path, got, shape):
    """Returns the InputError of images of another shape."""
    return errors.InputError(
        f"{path}: the model takes images of {shape[0]}x{shape[1]} pixels and "
        f"{shape[2]} channels: got shape {list(got)}; resize it first"
    )
