"""Crops and mirror images depend on the seed and the microbatch only."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import make_examples

from tfmirror import errors
from tfmirror.data import augmentation

SHAPE = (16, 8, 3)  # padded by 2 and by 1


def shifted(image, dy, dx):
    """Returns `image` shifted, with zeros moved in, in plain NumPy."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((2, 2), (1, 1), (0, 0)))
    return padded[dy : dy + height, dx : dx + width]


def describe(original, augmented):
    """Returns (dy, dx, is mirrored) that turn `original` into `augmented`."""
    for mirrored in (False, True):
        candidate = augmented[:, ::-1] if mirrored else augmented
        for dy in range(5):
            for dx in range(3):
                if np.array_equal(candidate, shifted(original, dy, dx)):
                    return dy, dx, mirrored
    raise AssertionError("no crop of the image")


@pytest.fixture(scope="module")
def images():
    return make_examples(300, SHAPE).images


def test_every_image_is_a_crop_of_its_own_and_all_crops_occur(images):
    augment = augmentation.make_augment(flips=True, seed=0)
    augmented = augment(images, 5).numpy()
    assert augmented.shape == images.shape and augmented.dtype == np.uint8
    found = {describe(a, b) for a, b in zip(images, augmented, strict=True)}
    assert len(found) == 5 * 3 * 2


def test_about_half_are_mirrored_and_none_unless_asked(images):
    for flips, least, most in ((True, 120, 180), (False, 0, 0)):
        augmented = augmentation.make_augment(flips, seed=0)(images, 5).numpy()
        pairs = zip(images, augmented, strict=True)
        assert least <= sum(describe(*pair)[2] for pair in pairs) <= most


@pytest.mark.parametrize("kind", ["crop", "resized_crop"])
def test_it_depends_on_seed_and_microbatch_index_and_on_nothing_else(images, kind):
    def run(seed, microbatch_index):
        augment = augmentation.make_augment(True, seed, kind)
        return augment(images, microbatch_index).numpy()

    np.testing.assert_array_equal(run(0, 5), run(0, 5))
    assert not np.array_equal(run(0, 5), run(0, 6))
    assert not np.array_equal(run(0, 5), run(1, 5))
    assert not np.array_equal(run(0, 1), run(1, 0))


def test_an_unknown_kind_is_refused():
    with pytest.raises(errors.InputError, match="augment must be one of crop, resized"):
        augmentation.make_augment(True, 0, "none")


def enlarged(image, box):
    """Returns a part of an image enlarged to its size, pixel by pixel, in float64.

    Weights are rounded to multiples of 1/256, the result is not rounded.
    """
    top, left, height, width = map(int, box)
    part = image[top : top + height, left : left + width].astype(np.float64)
    out = np.empty(image.shape)
    for y, x in np.ndindex(image.shape[:2]):
        v = np.clip((y + 0.5) * height / image.shape[0] - 0.5, 0, height - 1)
        u = np.clip((x + 0.5) * width / image.shape[1] - 0.5, 0, width - 1)
        i, j = int(v), int(u)
        i2, j2 = min(i + 1, height - 1), min(j + 1, width - 1)
        a, b = (np.floor(256 * share + 0.5) / 256 for share in (v - i, u - j))
        above = (1 - b) * part[i, j] + b * part[i, j2]
        out[y, x] = (1 - a) * above + a * ((1 - b) * part[i2, j] + b * part[i2, j2])
    return out


def test_a_part_is_enlarged_as_numpy_and_tensorflow_enlarge_it(images):
    boxes = np.array(
        [(0, 0, 16, 8), (3, 2, 7, 5), (15, 7, 1, 1), (0, 0, 1, 8), (9, 1, 7, 7)]
    )
    found = augmentation.enlarge(images[:5], tf.constant(boxes, tf.int32)).numpy()
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found[0], images[0])  # the whole image
    assert (found[2] == images[2, 15, 7]).all()  # a single pixel
    for image, box, ours in zip(images, boxes, found, strict=False):
        np.testing.assert_array_equal(ours, np.round(enlarged(image, box)))
        top, left, height, width = box
        part = image[top : top + height, left : left + width]
        theirs = tf.image.resize(part, SHAPE[:2], "bilinear").numpy()
        assert np.abs(ours - theirs).max() < 1.5  # theirs is not rounded
        assert np.abs(ours - theirs).mean() < 0.4


def test_compiled_it_gives_the_same_bits(images):
    augment = augmentation.make_augment(True, 0, "resized_crop")
    plain = augment(images, 5).numpy()
    np.testing.assert_array_equal(tf.function(augment)(images, 5), plain)


def test_resized_crops_are_the_drawn_parts(images):
    seed = tf.constant([3, 4])
    boxes = augmentation.draw_boxes(300, *SHAPE[:2], seed).numpy()
    found = augmentation.random_resized_crop(images, seed).numpy()
    for k in range(0, 300, 30):
        expected = np.round(enlarged(images[k], boxes[k]))
        np.testing.assert_array_equal(found[k], expected)


def test_boxes_have_the_areas_ratios_and_places_that_they_should():
    """Of 20,000 boxes in a square of 224: a box may be too high or too wide to fit."""
    boxes = augmentation.draw_boxes(20_000, 224, 224, tf.constant([0, 7])).numpy()
    top, left, height, width = boxes.T.astype(float)
    assert (boxes >= [0, 0, 1, 1]).all()
    assert (top + height <= 224).all() and (left + width <= 224).all()
    area, logs = height * width / 224**2, np.log(width / height)
    assert area.min() > 0.075 and area.max() <= 1 and area.max() > 0.98
    assert np.abs(logs).max() < np.log(4 / 3) + 0.02  # sides are whole pixels
    # NumPy draws one box after another, in float64, until one fits.
    rng, expected = np.random.default_rng(0), []
    while len(expected) < 20_000:
        a, r = rng.uniform(0.08, 1), np.exp(rng.uniform(-np.log(4 / 3), np.log(4 / 3)))
        if a * r <= 1 and a / r <= 1:
            expected.append((a, np.log(r)))
    quantiles = np.linspace(0.05, 0.95, 10)
    for ours, numpys in zip((area, logs), np.transpose(expected), strict=True):
        differences = np.quantile(ours, quantiles) - np.quantile(numpys, quantiles)
        assert np.abs(differences).max() < 0.02
    for place, size in ((top, height), (left, width)):
        spread = place / np.maximum(224 - size, 1)
        roomy = size < 200
        assert abs(spread[roomy].mean() - 0.5) < 0.01
        assert spread.min() == 0 and spread[roomy].max() == 1
    assert abs(np.corrcoef(area, logs)[0, 1]) < 0.02
    assert len({tuple(box) for box in boxes[:100]}) == 100  # each has its own


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [(4, 100, (0, 47, 4, 5)), (100, 4, (47, 0, 5, 4)), (1, 1, (0, 0, 1, 1))],
)
def test_where_no_box_fits_it_is_the_largest_of_an_allowed_ratio(height, width, box):
    """5 of 100 columns are less than 8 % of the area, so no draw ever fits."""
    boxes = augmentation.draw_boxes(50, height, width, tf.constant([0, 0])).numpy()
    assert {tuple(map(int, row)) for row in boxes} == {box}
