"""Every kind of image becomes what the rule says, and what is no image is refused."""

import io
import os

import image_files
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf

from tfmirror.data import conversion


def read(path, channels=3, size=(0, 0)):
    return conversion.read(path, (*size, channels))


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Odd images by kind, 30 x 45 pixels."""
    return image_files.write_odd(
        tmp_path_factory.mktemp("odd"), np.random.default_rng(0)
    )


def on_white(colour, alpha):
    """Returns colours [..., C] on white, float64, for alpha [...] in [0, 255]."""
    share = alpha[..., np.newaxis] / 255
    return colour * share + 255 * (1 - share)


def reference(kind, path):
    """Returns what the rule makes of an odd image, [H, W, 3] float64."""
    with PIL.Image.open(path) as image:
        image.load()
    pixels = np.asarray(image).astype(np.float64)
    if kind == "lying":  # EXIF 6: the first row is the right side
        return np.rot90(pixels, -1)
    if kind == "cmyk":
        key = 255 - pixels[..., 3:]
        return (255 - pixels[..., :3]) * key / 255
    if kind in ("palette", "transparent palette"):
        colours = np.array(image.getpalette(), np.float64).reshape(-1, 3)
        alpha = np.full(len(colours), 255.0)
        if kind != "palette":
            alpha[3] = 0
        return on_white(colours, alpha)[pixels.astype(int)]
    if kind in ("alpha", "grey with alpha"):
        return np.broadcast_to(
            on_white(pixels[..., :-1], pixels[..., -1]), (*pixels.shape[:2], 3)
        )
    if kind == "16 bits":
        pixels = pixels // 256
    if kind == "two colours":
        pixels = pixels * 255
    if kind == "frames":
        pixels = np.asarray(image.convert("RGB")).astype(np.float64)
    return np.broadcast_to(pixels.reshape(*pixels.shape[:2], -1), (30, 45, 3))


KINDS = ["lying", "cmyk", "palette", "transparent palette", "alpha", "grey with alpha"]
KINDS += ["16 bits", "two colours", "frames", "bitmap"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_image_is_what_its_parts_say(odd, kind):
    found, expected = read(odd[kind]), reference(kind, odd[kind])
    assert found.dtype == np.uint8
    assert found.shape == ((45, 30, 3) if kind == "lying" else (30, 45, 3))
    # Pillow rounds the product of two bytes to one more or less.
    exact = ("lying", "palette", "transparent palette", "16 bits", "two colours")
    tolerance = 0 if kind in exact else 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_grey_is_pillows_luminance_of_the_colours(odd, kind):
    colour, grey = read(odd[kind]), read(odd[kind], channels=1)
    luminance = colour @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(grey[..., 0], luminance, rtol=0, atol=1)


def test_there_is_a_test_for_each_odd_image(odd):
    assert sorted(odd) == sorted(KINDS)


def test_a_large_image_is_shrunk_with_antialiasing(tmp_path):
    """Stripes of one pixel, 100 of them, become an even grey; sampling keeps some."""
    stripes = np.zeros((100, 200), np.uint8)
    stripes[:, ::2] = 255
    PIL.Image.fromarray(stripes).save(tmp_path / "a.png")
    found = read(tmp_path / "a.png", 1, (10, 20))
    assert found.shape == (10, 20, 1)
    assert np.abs(found[:, 1:-1].astype(int) - 127).max() <= 3


def test_resizing_is_pillows_bilinear_and_of_the_right_size_nothing(tmp_path):
    pixels = image_files.make_picture(np.random.default_rng(1), 40, 30)
    image = PIL.Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    expected = np.asarray(image.resize((9, 16), PIL.Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(read(tmp_path / "a.png", 3, (16, 9)), expected)
    np.testing.assert_array_equal(read(tmp_path / "a.png", 3, (40, 30)), pixels)
    with pytest.raises(conversion.OtherSizeError, match="^40x30$"):
        conversion.read(tmp_path / "a.png", (40, 31, 3), is_resized=False)


def test_a_single_transparent_grey_of_16_bits_becomes_white(tmp_path):
    values = np.array([[100, 60_000], [513, 100]], np.uint16)
    PIL.Image.fromarray(values).save(tmp_path / "a.png", transparency=100)
    found = read(tmp_path / "a.png", 1)[..., 0]
    np.testing.assert_array_equal(found, [[255, 60_000 // 256], [2, 255]])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_any_format_is_that_of_pillow(tmp_path, orientation):
    image = PIL.Image.fromarray(
        image_files.make_picture(np.random.default_rng(1), 24, 16)
    )
    for ending in (".png", ".tif", ".webp", ".jpg"):
        path = tmp_path / f"a{ending}"
        image.save(path, exif=image_files.oriented(orientation))
        with PIL.Image.open(path) as saved:
            expected = np.asarray(PIL.ImageOps.exif_transpose(saved))
        np.testing.assert_array_equal(read(path), expected)


def png(pixels, **options):
    file = io.BytesIO()
    image = (
        pixels if isinstance(pixels, PIL.Image.Image) else PIL.Image.fromarray(pixels)
    )
    image.save(file, "PNG", **options)
    return file.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_plain_png_is_the_same_for_tensorflow(channels):
    rng = np.random.default_rng(0)
    pixels = image_files.make_picture(rng, 30, 45)
    pixels = pixels[..., 0] if channels == 1 else pixels
    content, shape = png(pixels), (30, 45, channels)
    assert conversion.is_plain_png(content, shape)
    np.testing.assert_array_equal(
        tf.io.decode_png(content, channels), conversion.convert(content, shape)
    )
    assert not conversion.is_plain_png(content, (45, 30, channels))
    assert not conversion.is_plain_png(content, (30, 45, 4 - channels))
    assert not conversion.is_plain_png(content[:-1], shape)
    assert not conversion.is_plain_png(content + b"\0", shape)
    assert not conversion.is_plain_png(b"", shape)


COLOUR = image_files.make_picture(np.random.default_rng(0), 30, 45)


@pytest.mark.parametrize(
    "content",
    [
        png(COLOUR, exif=image_files.oriented(1)),
        png(COLOUR, transparency=(0, 0, 0)),
        png(COLOUR, dpi=(72, 72)),
        png(np.dstack([COLOUR, COLOUR[..., 0]])),
        png(COLOUR[..., 0].astype(np.uint16)),
        png(PIL.Image.fromarray(COLOUR).quantize(16)),
        png(PIL.Image.fromarray(COLOUR).convert("1")),
    ],
)
def test_a_png_of_another_kind_is_left_to_pillow(content):
    for channels in (1, 3):
        assert not conversion.is_plain_png(content, (30, 45, channels))


def tiff(values):
    file = io.BytesIO()
    PIL.Image.fromarray(values).save(file, "TIFF")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an image in BMP, GIF, JPEG, PNG, TIFF, WEBP"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "not an image in"),
        (tiff(np.zeros((3, 4), np.float32)), "mode F are not read"),
        (tiff(np.zeros((3, 4), np.int32)), "mode I are not read"),
    ],
)
def test_what_is_no_image_that_the_rule_knows_is_refused(tmp_path, content, says):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(conversion.UnreadableError, match=says):
        read(tmp_path / "a")


def test_files_that_are_gone_pipes_or_too_large_are_refused_unread(tmp_path):
    for name, says in (("gone", "No such file"), ("pipe", "not a regular file")):
        if name == "pipe":
            os.mkfifo(tmp_path / name)
        with pytest.raises(conversion.UnreadableError, match=says):
            read(tmp_path / name)
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", conversion.MAX_FILE_BYTES + 1)
    with pytest.raises(conversion.UnreadableError, match="at most 67,108,864 are read"):
        read(tmp_path / "large")
    PIL.Image.new("1", (9000, 9000)).save(tmp_path / "bomb.png")
    with pytest.raises(conversion.UnreadableError, match="9,000x9,000 pixels, at most"):
        read(tmp_path / "bomb.png")


def test_a_damaged_image_is_refused(tmp_path, odd):
    for path in image_files.write_damaged(tmp_path, odd["lying"]):
        with pytest.raises(conversion.UnreadableError):
            read(path)
