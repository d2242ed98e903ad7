"""Known data are not accepted under another name, or with one bit changed."""

import pathlib
import shutil

import numpy as np
import pytest
from helpers import make_examples, write_idx_folder

from tfmirror import errors
from tfmirror.data import checksums, datasets, idx

STEMS = {
    ("train", "images"): "train-images-idx3-ubyte.gz",
    ("train", "labels"): "train-labels-idx1-ubyte.gz",
    ("eval", "images"): "t10k-images-idx3-ubyte.gz",
    ("eval", "labels"): "t10k-labels-idx1-ubyte.gz",
}


def read(folder):
    """Returns the path and the values of each file in a folder, by key."""
    return {
        key: (pathlib.Path(name), idx.read_idx(pathlib.Path(folder, name), ndim))
        for (key, name), ndim in zip(STEMS.items(), (3, 1, 3, 1), strict=True)
    }


def changed(arrays, change):
    """Returns `arrays`, each of them as `change` gives it."""
    return {key: (path, change(array)) for key, (path, array) in arrays.items()}


def test_the_real_data_are_accepted_and_named(mnist_folder, fashion_mnist_folder):
    assert len(datasets.load("fashion_mnist", fashion_mnist_folder).train) == 60_000
    mnist = datasets.load("mnist", mnist_folder)
    assert len(mnist.train) == 60_000
    assert mnist.source == f"IDX files in {mnist_folder}"
    other = datasets.load("anything", mnist_folder)
    assert other.source == f"IDX files in {mnist_folder}, which are mnist"


@pytest.mark.parametrize("name", ["fashion_mnist", "kmnist", "emnist/digits"])
@pytest.mark.parametrize(
    "change",
    [
        lambda array: array,
        lambda array: array[:-1],
        lambda array: array[1:],
        lambda array: array[:500],
        lambda array: np.random.default_rng(0).permutation(array)[:-1],
    ],
    ids=["whole", "without the last", "without the first", "first 500", "shuffled"],
)
def test_mnist_is_not_accepted_under_another_name(mnist_folder, name, change):
    """Neither whole nor a part of it."""
    arrays = changed(read(mnist_folder), change)
    with pytest.raises(errors.InputError) as error:
        checksums.check(name, arrays)
    assert "the training images of mnist; use --dataset=mnist, or" in str(error.value)


def test_fashion_mnist_is_not_accepted_as_mnist(fashion_mnist_folder):
    with pytest.raises(errors.InputError, match="use --dataset=fashion_mnist, or the"):
        datasets.load("mnist", fashion_mnist_folder)


@pytest.mark.parametrize("name", ["MNIST", "Fashion-MNIST", "fashion-mnist", "EMNIST"])
def test_another_spelling_of_a_published_name_is_refused(mnist_folder, name):
    right = name.lower().replace("-", "_")
    with pytest.raises(errors.InputError, match=f"must be spelled {right}: got"):
        datasets.load(name, mnist_folder)


def test_a_part_of_mnist_and_other_data_under_its_name_are_named(mnist_folder):
    part = changed(read(mnist_folder), lambda a: a[:-1])
    assert checksums.check("mnist", part) == "which are a part of mnist"
    assert checksums.check("own", part) == "which are a part of mnist"
    arrays = {
        key: (tmp, make_examples(30).images[..., 0] if key[1] == "images" else labels)
        for key, (tmp, labels) in read(mnist_folder).items()
    }
    arrays = changed(arrays, lambda array: array[::-1][:30])
    assert checksums.check("mnist", arrays) == "which are not the published mnist"
    assert checksums.check("own", arrays) == ""


@pytest.mark.parametrize("key", STEMS)
def test_one_file_among_those_of_another_dataset_is_found(
    key, mnist_folder, fashion_mnist_folder, tmp_path
):
    folder = shutil.copytree(mnist_folder, tmp_path / "mixed")
    (folder / STEMS[key]).chmod(0o600)
    shutil.copy(pathlib.Path(fashion_mnist_folder, STEMS[key]), folder)
    described = checksums.describe("fashion_mnist", *key)
    with pytest.raises(errors.InputError) as error:
        datasets.load("mnist", folder)
    assert f"{STEMS[key]}: expected the" in str(error.value)
    assert f"got the {described}; replace this file" in str(error.value)
    named = datasets.load("mixture", folder).source
    assert named.endswith(", which are fashion_mnist and mnist")


def test_exchanged_training_and_test_files_are_told_how_to_be_put_right(mnist_folder):
    arrays = read(mnist_folder)
    exchanged = {
        (split, kind): arrays["eval" if split == "train" else "train", kind]
        for split, kind in arrays
    }
    with pytest.raises(errors.InputError) as error:
        checksums.check("mnist", exchanged)
    assert "got the test images of mnist; training and test files are" in str(
        error.value
    )
    assert "--dataset" not in str(error.value)
    known_as = checksums.check("own", exchanged)
    assert "training images are the test images of mnist" in known_as


def test_50_bits_flipped_in_an_uncompressed_file_are_all_found(mnist_folder):
    """An uncompressed file contains no checksum."""
    path = pathlib.Path(STEMS["eval", "images"])
    images = idx.read_idx(pathlib.Path(mnist_folder, path), 3)

    def check(array):
        return checksums.check("mnist", {("eval", "images"): (path, array)})

    assert check(images) == ""
    rng, flipped = np.random.default_rng(0), images.copy()
    for _ in range(50):
        place = tuple(rng.integers(0, size) for size in images.shape)
        flipped[place] ^= np.uint8(1 << rng.integers(8))
        with pytest.raises(errors.InputError, match="damaged or changed; replace it"):
            check(flipped)
        flipped[place] = images[place]
    assert check(flipped) == ""


def test_few_examples_of_any_name_are_accepted(tmp_path):
    examples = make_examples(30)
    folder = write_idx_folder(tmp_path / "few", examples, examples)
    assert len(datasets.load("mnist", folder).train) == 30
    assert len(datasets.load("own", folder).train) == 30
