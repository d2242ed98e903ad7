"""What an image file of any kind becomes: one rule, for training and for prediction.

    pixels = read("shoe.jpg", (64, 64, 3))              # [64, 64, 3] uint8

1. Of several frames the first one is taken.
2. The image is turned as its EXIF orientation says.
3. Of 16 bits a channel the upper 8 are kept.
4. What is transparent is laid on white.
5. Palettes, CMYK, black and white, and other colours become grey or RGB.
6. It is resized, without regard to its proportions: bilinear, with antialiasing. An
   image of the right size keeps its pixels.

Pillow does each of these. Change `VERSION` together with the rule.
"""

import contextlib
import io
import os
import stat
import struct
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import PIL.Image
import PIL.ImageOps

from tfmirror import errors

VERSION = 1
# Pillow knows many more formats. Some of them are rarely used and so rarely tested;
# one, EPS, is a program, which Pillow hands to Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
MODES = {1: "L", 3: "RGB"}  # number of channels -> Pillow's mode of 8-bit images
MODES_OF_16_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
TRANSPARENT_MODES = ("LA", "PA", "RGBA", "RGBa")
OPAQUE_MODES = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr")
# The start of a PNG file up to the values of its first chunk, these values (then comes
# their checksum), and all of its last chunk.
PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
PNG_HEAD = struct.Struct(">IIBBBBB")
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
PNG_COLOURS = {1: 0, 3: 2}  # number of channels -> the code of the colours
# An image takes some ten bytes a pixel while it is read.
MAX_PIXELS = 2**26
MAX_FILE_BYTES = 64 * 2**20


class UnreadableError(errors.InputError):
    """An image file can't be read; the message says why, without the file's name."""


class OtherSizeError(UnreadableError):
    """An image has another size than it must have; the message is its size."""


def read(
    path: str | os.PathLike[str], shape: Sequence[int], *, is_resized: bool = True
) -> np.ndarray:
    """Returns the image in a file, converted to `shape`.

    For many threads at a time; `quiet_pillow` silences Pillow's warnings for all.

    Args:
      path: an image file in one of `FORMATS`, as its first bytes, not its name, tell.
      shape: (H, W, C) with C 1 for grey and 3 for RGB. H and W of 0: as the image is.
      is_resized: whether an image of another size is resized, or else refused.

    Returns:
      [H, W, C] uint8.

    Raises:
      OtherSizeError: the image has another size and must not be resized.
      UnreadableError: the file can't be read, is damaged, larger than `MAX_FILE_BYTES`
        or `MAX_PIXELS`, or of another kind.
    """
    return convert(read_bytes(path), shape, is_resized=is_resized)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Returns the content of a regular file of at most `MAX_FILE_BYTES`.

    Raises:
      UnreadableError: it can't be read, or is something else.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise UnreadableError("not a regular file")
            if found.st_size > MAX_FILE_BYTES:
                raise UnreadableError(
                    f"{found.st_size:,} bytes, at most {MAX_FILE_BYTES:,} are read"
                )
            return _read_whole(descriptor, found.st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error


def _read_whole(descriptor: int, size: int) -> bytes:
    """Returns what a descriptor of a file of `size` bytes gives up to its end."""
    content = os.read(descriptor, size)
    while len(content) < size and (more := os.read(descriptor, size - len(content))):
        content += more  # a signal, or a file system over a network
    return content


def convert(
    content: bytes, shape: Sequence[int], *, is_resized: bool = True
) -> np.ndarray:
    """Returns the image in the content of a file; see `read`."""
    height, width, channels = shape
    try:
        image = PIL.Image.open(io.BytesIO(content), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise UnreadableError(
                f"{image.width:,}x{image.height:,} pixels, at most {MAX_PIXELS:,} are "
                "read"
            )
        image.load()
        plain = to_mode(turn_upright(image), MODES[channels])
        if height and plain.size != (width, height):
            if not is_resized:
                raise OtherSizeError(f"{plain.height}x{plain.width}")
            plain = plain.resize((width, height), PIL.Image.Resampling.BILINEAR)
        # The same as np.asarray(plain), in half of the time.
        pixels = np.frombuffer(plain.tobytes(), np.uint8)
        return pixels.reshape(plain.height, plain.width, channels)
    except UnreadableError:
        raise
    except PIL.UnidentifiedImageError as error:
        raise UnreadableError(f"not an image in {', '.join(FORMATS)}") from error
    # Each format of Pillow raises its own errors for damaged files.
    except Exception as error:
        raise UnreadableError(str(error) or type(error).__name__) from error


def turn_upright(image: PIL.Image.Image) -> PIL.Image.Image:
    """Returns a loaded image, turned as its EXIF orientation says."""
    # To look for an orientation takes as long as to read a small image, and only in
    # TIFF can there be one without anything in `info`.
    if not image.info and image.format != "TIFF":
        return image
    return PIL.ImageOps.exif_transpose(image)


def to_mode(image: PIL.Image.Image, mode: str) -> PIL.Image.Image:
    """Returns an image in Pillow's mode "L" or "RGB".

    Raises:
      UnreadableError: its own mode is none of those that the rule knows.
    """
    if image.mode in MODES_OF_16_BITS or (image.mode, image.format) == ("I", "PNG"):
        image = _upper_8_bits(image)
    if image.mode in TRANSPARENT_MODES or "transparency" in image.info:
        image = image.convert("RGBA")
        white = PIL.Image.new("RGBA", image.size, "white")
        image = PIL.Image.alpha_composite(white, image).convert("RGB")
    elif image.mode not in OPAQUE_MODES:
        raise UnreadableError(f"images of Pillow's mode {image.mode} are not read")
    return image if image.mode == mode else image.convert(mode)


def _upper_8_bits(image: PIL.Image.Image) -> PIL.Image.Image:
    """Returns a grey image of 16 bits as one of 8, with its transparent grey white."""
    values = np.asarray(image)
    upper = (values >> 8).astype(np.uint8)
    if (transparent := image.info.get("transparency")) is not None:
        upper = np.where(values == transparent, np.uint8(255), upper)
    return PIL.Image.fromarray(upper)


def is_plain_png(content: bytes, shape: Sequence[int]) -> bool:
    """Returns whether a file is a PNG with the pixels of an image of `shape` alone.

    It is 8-bit grey or RGB as the shape has it, and has one chunk of pixels and no
    other: no palette, no transparency, no orientation. So every decoder gives the
    pixels that the rule gives.
    """
    height, width, channels = shape
    head = PNG_HEAD.pack(width, height, 8, PNG_COLOURS[channels], 0, 0, 0)
    if not content.startswith(PNG_START + head) or content[37:41] != b"IDAT":
        return False
    return content[33 + 12 + int.from_bytes(content[33:37]) :] == PNG_END


@contextlib.contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silences Pillow's warnings, such as of odd EXIF data, in all threads."""
    with warnings.catch_warnings():
        ignore_pillow_warnings()
        yield


def ignore_pillow_warnings() -> None:
    """Silences Pillow's warnings in all threads for the rest of the process.

    For threads that are not Python's, which no context manager encloses.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
