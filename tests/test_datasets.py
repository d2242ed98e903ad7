"""Datasets are found in the documented order, and inconsistent ones are refused."""

import dataclasses
import hashlib
import pathlib

import numpy as np
import pytest
from helpers import make_examples, write_idx_folder

from tfmirror import errors
from tfmirror.data import datasets, idx_folder


def test_digits_are_split_without_overlap_or_loss():
    digits = datasets.load("digits")
    assert (len(digits.train), len(digits.eval)) == (1438, 359)  # 80 and 20 % of 1,797
    both = np.concatenate([digits.train.images, digits.eval.images])
    assert both.shape == (1797, 28, 28, 1) and both.dtype == np.uint8
    # scikit-learn's description gives 174 to 183 examples per class.
    labels = np.concatenate([digits.train.labels, digits.eval.labels])
    assert np.bincount(labels).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]
    assert np.bincount(digits.eval.labels).min() >= 25


def test_digits_pixels_are_squares_of_the_8x8_ones():
    """Every third pixel inside the border gives the file's images, in another order."""
    digits = datasets.load("digits")
    both = np.concatenate([digits.train.images, digits.eval.images])[..., 0]
    inside = both[:, 2:26, 2:26]
    small = inside[:, 1::3, 1::3]
    assert (np.repeat(np.repeat(small, 3, axis=1), 3, axis=2) == inside).all()
    assert both.sum() == inside.sum()  # nothing in the border
    # 561,718: the sum of all pixels of load_digits(); x 255 // 16 rounds down by < 1.
    assert 0 <= 561718 * 255 / 16 - small.sum() < small.size


def test_digits_are_those_of_scikit_learn():
    sklearn_datasets = pytest.importorskip(
        "sklearn.datasets", reason="compares with scikit-learn where it is installed"
    )
    original = sklearn_datasets.load_digits()
    with np.load(pathlib.Path(datasets.__file__).with_name("digits.npz")) as arrays:
        np.testing.assert_array_equal(arrays["images"], original.images)
        np.testing.assert_array_equal(arrays["labels"], original.target)


def test_digits_stay_the_same_for_ever():
    digits = datasets.load("digits")
    arrays = [digits.train.images, digits.train.labels, digits.eval.images]
    digest = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
    assert digest.startswith("8ff4975007fbe4c3")


def test_random_is_the_same_each_time_and_in_the_unit_range():
    first, second = datasets.load("random"), datasets.load("random")
    np.testing.assert_array_equal(first.train.images, second.train.images)
    assert first.train.images.shape == (1024, 28, 28, 1)
    assert first.train.images.min() == 0 and first.train.images.max() == 254


def test_synthetic_is_the_same_each_time_and_can_be_learned():
    first, second = datasets.load("synthetic"), datasets.load("synthetic")
    np.testing.assert_array_equal(first.train.images, second.train.images)
    # Choosing the nearest class mean is already enough to tell the classes apart.
    x = first.train.images.reshape(len(first.train), -1).astype(float)
    means = np.stack([x[first.train.labels == k].mean(axis=0) for k in range(10)])
    z = first.eval.images.reshape(len(first.eval), -1).astype(float)
    nearest = ((z[:, np.newaxis] - means) ** 2).sum(axis=-1).argmin(axis=1)
    assert (nearest == first.eval.labels).mean() > 0.99


def test_idx_files_in_data_dir_come_first_then_debians(tmp_path, monkeypatch):
    one, two, three = (make_examples(4, seed=seed) for seed in range(3))
    monkeypatch.setattr(idx_folder, "DEBIAN_FOLDER", tmp_path / "debian")
    write_idx_folder(tmp_path / "debian" / "fashion-mnist", one, three)
    own = write_idx_folder(tmp_path / "own", two, three)
    np.testing.assert_array_equal(
        datasets.load("fashion_mnist").train.images, one.images
    )
    loaded = datasets.load("fashion_mnist", own)
    np.testing.assert_array_equal(loaded.train.images, two.images)
    np.testing.assert_array_equal(loaded.eval.labels, three.labels)
    assert loaded.train.labels.dtype == np.int32 and loaded.num_classes == 10


@pytest.mark.parametrize("name", ["digits", "synthetic", "random"])
def test_a_folder_for_data_that_need_none_is_refused(tmp_path, name):
    with pytest.raises(errors.InputError, match=f"must not be given with .* {name}"):
        datasets.load(name, str(tmp_path))


def test_idx_data_of_a_new_name_have_the_classes_of_their_labels(tmp_path):
    examples = make_examples(6)
    examples = datasets.Examples(examples.images, np.arange(6, dtype=np.int32) % 3)
    folder = write_idx_folder(tmp_path, examples, examples)
    assert datasets.load("my_letters", folder).num_classes == 3


def test_limits_take_the_first_examples_and_refuse_more_than_there_are():
    whole = datasets.load("digits")
    cut = datasets.load("digits", limit_train_examples=7, limit_eval_examples=3)
    np.testing.assert_array_equal(cut.train.images, whole.train.images[:7])
    np.testing.assert_array_equal(cut.eval.labels, whole.eval.labels[:3])
    with pytest.raises(
        errors.InputError, match="limit_train_examples .* 1,438,.* got 1439"
    ):
        datasets.load("digits", limit_train_examples=1439)


def one_label_short(examples):
    return dataclasses.replace(examples, labels=examples.labels[:-1])


def label_outside(examples):
    labels = examples.labels.copy()
    labels[2] = 10
    return dataclasses.replace(examples, labels=labels)


def wider(examples):
    return dataclasses.replace(examples, images=np.pad(examples.images, 2)[2:-2])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (one_label_short, "got 3 in t10k-labels-idx1-ubyte.gz for 4 in t10k-images"),
        (label_outside, r"labels in \[0, 10\), got 10 at example 2 of the eval set"),
        (wider, r"one shape, got \[28, 28, 1\] for training and \[32, 32, 1\]"),
    ],
)
def test_inconsistent_data_are_refused(tmp_path, spoil, says):
    good = make_examples(4)
    folder = write_idx_folder(tmp_path, good, spoil(good))
    with pytest.raises(errors.InputError, match=says):
        datasets.load("mnist", folder)


@pytest.mark.parametrize("name", ["", "../mnist", "a/../b", "mnist;rm", "-x", "a b"])
def test_a_name_that_is_a_path_or_worse_is_refused(name):
    with pytest.raises(errors.InputError, match="dataset must be a name"):
        datasets.load(name)


def test_a_missing_data_dir_is_refused(tmp_path):
    with pytest.raises(errors.InputError, match="data_dir must be an existing folder"):
        datasets.load("mnist", str(tmp_path / "nowhere"))


def test_real_mnist_and_fashion_mnist(mnist_folder, fashion_mnist_folder):
    """Compares with published digests of the uncompressed files, headers included."""
    for name, folder, md5 in (
        ("mnist", mnist_folder, "6bbc9ace898e44ae57da46a324031adb"),
        ("fashion_mnist", fashion_mnist_folder, "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    ):
        images = datasets.load(name, folder).train.images
        header = bytes([0, 0, 8, 3]) + np.array(images.shape[:3], ">u4").tobytes()
        digest = hashlib.md5(header + images.tobytes(), usedforsecurity=False)
        assert digest.hexdigest() == md5
