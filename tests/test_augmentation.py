"""Crops and mirror images depend on the seed and the microbatch only."""

import numpy as np
import pytest
from helpers import make_examples

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


def test_it_depends_on_seed_and_microbatch_index_and_on_nothing_else(images):
    def run(seed, microbatch_index):
        augment = augmentation.make_augment(True, seed)
        return augment(images, microbatch_index).numpy()

    np.testing.assert_array_equal(run(0, 5), run(0, 5))
    assert not np.array_equal(run(0, 5), run(0, 6))
    assert not np.array_equal(run(0, 5), run(1, 5))
    assert not np.array_equal(run(0, 1), run(1, 0))
