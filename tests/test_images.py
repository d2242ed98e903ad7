"""Images are read without changes, and unusable files are refused in one line."""

import gzip
import os

import numpy as np
import PIL.EpsImagePlugin
import PIL.ExifTags
import PIL.Image
import pytest
from helpers import faults, idx_bytes, make_examples

from tfmirror import errors
from tfmirror.data import images

SHAPE = (28, 20, 1)
PIXELS = make_examples(3, shape=SHAPE).images


def save(path, pixels, **options):
    """Writes [H, W] or [H, W, 3] as an image file; returns its path."""
    PIL.Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "no_ending"])
def test_a_grey_image_is_read_unchanged(tmp_path, name):
    path = save(tmp_path / name, PIXELS[0, ..., 0], format="PNG")
    np.testing.assert_array_equal(images.read(path, SHAPE), PIXELS[:1])


def test_a_colour_image_is_read_unchanged(tmp_path):
    pixels = make_examples(1, shape=(8, 9, 3)).images
    path = save(tmp_path / "a.png", pixels[0])
    np.testing.assert_array_equal(images.read(path, (8, 9, 3)), pixels)


def oriented(pixels, orientation):
    """Returns the pixels to store, so that EXIF's `orientation` shows `pixels`.

    EXIF 2.3, tag 274: the first row and the first column that are stored are, of the
    shown image, 1: top, left; 2: top, right; 3: bottom, right; 4: bottom, left;
    5: left, top; 6: right, top; 7: right, bottom; 8: left, bottom.
    """
    stored = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    flip_rows = orientation in (3, 4, 6, 7)  # bottom or right first
    flip_columns = orientation in (2, 3, 7, 8)
    return stored[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("image_format", "channels", "options"),
    [
        ("PNG", 1, {}),
        ("PNG", 3, {}),
        ("TIFF", 1, {}),
        ("TIFF", 3, {}),
        ("TIFF", 1, {"compression": "tiff_lzw"}),
        ("WEBP", 3, {"lossless": True}),  # it has no grey images
        ("JPEG", 1, {"quality": 100}),
        ("JPEG", 3, {"quality": 100, "subsampling": 0}),
    ],
)
def test_an_image_is_turned_upright(
    tmp_path, image_format, options, channels, orientation
):
    """The image has blocks of 8x8 pixels of one value, which JPEG hardly changes."""
    shape = (48, 32, channels)
    pixels = make_examples(1, shape=(6, 4, channels)).images[0] // 2 + 64
    pixels = pixels.repeat(8, 0).repeat(8, 1)
    stored = np.ascontiguousarray(oriented(pixels, orientation))
    exif = PIL.Image.Exif()
    exif[PIL.ExifTags.Base.Orientation] = orientation
    save(tmp_path / "a", stored.squeeze(), format=image_format, exif=exif, **options)
    (found,) = images.read(tmp_path / "a", shape)
    tolerance = 4 if image_format == "JPEG" else 0
    np.testing.assert_allclose(found.astype(int), pixels, rtol=0, atol=tolerance)
    if orientation >= 5:
        with pytest.raises(errors.InputError, match=r"got shape \[48, 32"):
            images.read(tmp_path / "a", (32, 48, channels))


def test_a_bitmap_which_has_no_orientation_is_read_as_stored(tmp_path):
    save(tmp_path / "a", PIXELS[0, ..., 0], format="BMP")
    np.testing.assert_array_equal(images.read(tmp_path / "a", SHAPE), PIXELS[:1])


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 20 28
%%EndComments
newpath
%%EOF
"""


def test_a_program_in_postscript_is_not_run(tmp_path, monkeypatch):
    """Pillow alone would hand it to Ghostscript."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho run >> {tmp_path}/ran\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(PIL.EpsImagePlugin, "gs_binary", None)
    (tmp_path / "a.png").write_bytes(EPS)
    with pytest.raises(errors.InputError, match="nor an image in one of the formats"):
        images.read(tmp_path / "a.png", (28, 20, 3))
    assert not (tmp_path / "ran").exists()
    with pytest.raises(OSError), PIL.Image.open(tmp_path / "a.png") as image:
        image.load()
    assert (tmp_path / "ran").exists()  # so the stub would have been noticed


@pytest.mark.parametrize(
    "image_format", ["GIF", "PPM", "TGA", "PCX", "ICO", "SGI", "PDF"]
)
def test_formats_that_are_not_promised_are_refused(tmp_path, image_format):
    PIL.Image.fromarray(PIXELS[0, ..., 0]).save(tmp_path / "a.png", format=image_format)
    with pytest.raises(errors.InputError, match="BMP, JPEG, PNG, TIFF, WEBP"):
        images.read(tmp_path / "a.png", SHAPE)


@pytest.mark.parametrize("name", ["a.png", "a.GZ"])
def test_a_file_far_larger_than_an_image_is_refused_unread(tmp_path, name):
    save(tmp_path / name, PIXELS[0, ..., 0], format="PNG")
    os.truncate(tmp_path / name, 2**43)
    with pytest.raises(errors.InputError, match="must have at most"):
        images.read(tmp_path / name, SHAPE)


@pytest.mark.parametrize(("name", "pack"), [("a.gz", gzip.compress), ("a", bytes)])
def test_idx_files_give_all_their_images_in_order(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(idx_bytes(PIXELS[..., 0])))
    np.testing.assert_array_equal(images.read(tmp_path / name, SHAPE), PIXELS)
    colour = make_examples(2, shape=(8, 9, 3)).images
    (tmp_path / name).write_bytes(pack(idx_bytes(colour)))
    np.testing.assert_array_equal(images.read(tmp_path / name, (8, 9, 3)), colour)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: None, "is not a file"),
        (lambda p: p.write_bytes(b""), "neither an IDX file of images nor an image in"),
        (lambda p: p.write_text("<html>"), "neither an IDX file of images nor"),
        (lambda p: save(p, PIXELS[0, :9, :9, 0], format="PNG"), "28x20 pixels and 1"),
        (lambda p: save(p, PIXELS[0].repeat(3, 2), format="PNG"), "got mode RGB"),
        (lambda p: save(p, PIXELS[0, ..., 0] > 9, format="PNG"), "got mode 1"),
        (lambda p: p.write_bytes(idx_bytes(PIXELS)), "expected 3 dimensions, got 4"),
        (lambda p: p.write_bytes(idx_bytes(PIXELS[:, :9, :, 0])), "got shape [9, 20,"),
    ],
)
def test_unusable_files_are_refused(tmp_path, make, says):
    make(tmp_path / "a")
    with pytest.raises(errors.InputError) as error:
        images.read(tmp_path / "a", SHAPE)
    assert says in str(error.value) and "\n" not in str(error.value)
    assert str(tmp_path / "a") in str(error.value)


def test_several_frames_are_refused(tmp_path):
    frames = [PIL.Image.fromarray(pixels[..., 0]) for pixels in PIXELS]
    frames[0].save(
        tmp_path / "a.tif", format="TIFF", save_all=True, append_images=frames[1:]
    )
    with pytest.raises(errors.InputError, match="expected one image, got 3 frames"):
        images.read(tmp_path / "a.tif", SHAPE)


def test_an_image_that_would_fill_the_memory_is_refused_undecoded(tmp_path):
    """Its header announces 30,000 x 30,000 pixels."""
    PIL.Image.new("1", (30_000, 30_000)).save(tmp_path / "a.png")
    with pytest.raises(errors.InputError, match="a.png"):
        images.read(tmp_path / "a.png", SHAPE)


def test_every_fault_of_a_png_is_recognised_or_harmless(tmp_path):
    path = save(tmp_path / "a.png", PIXELS[0, ..., 0])
    other = save(tmp_path / "b.png", PIXELS[1, :9, :, 0]).read_bytes()
    count = recognised = 0
    for what, damaged in faults(path.read_bytes(), other):
        path.write_bytes(damaged)
        count += 1
        try:
            found = images.read(path, SHAPE)
            assert (found == PIXELS[:1]).all(), what
        except errors.InputError:
            recognised += 1
    assert count == 76 and recognised > 60
