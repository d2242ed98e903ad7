"""Images are read without changes, and unusable files are refused in one line."""

import gzip

import numpy as np
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
        (lambda p: p.write_bytes(b""), "neither an image that Pillow reads nor an IDX"),
        (lambda p: p.write_text("<html>"), "neither an image that Pillow reads nor"),
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
