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


def test_the_real_data_are_accepted(mnist_folder, fashion_mnist_folder):
    assert len(datasets.load("mnist", mnist_folder).train) == 60_000
    assert len(datasets.load("fashion_mnist", fashion_mnist_folder).train) == 60_000
    assert len(datasets.load("anything", mnist_folder).train) == 60_000


def test_mnist_is_not_accepted_as_fashion_mnist(mnist_folder, fashion_mnist_folder):
    with pytest.raises(errors.InputError) as error:
        datasets.load("fashion_mnist", mnist_folder)
    assert "got the training images of mnist; replace" in str(error.value)
    assert "--dataset=mnist" in str(error.value)
    with pytest.raises(errors.InputError, match="--dataset=fashion_mnist"):
        datasets.load("mnist", fashion_mnist_folder)


@pytest.mark.parametrize("key", STEMS)
def test_one_file_among_those_of_another_dataset_is_found(
    key, mnist_folder, fashion_mnist_folder, tmp_path
):
    folder = shutil.copytree(mnist_folder, tmp_path / "mixed")
    shutil.copy(pathlib.Path(fashion_mnist_folder, STEMS[key]), folder)
    described = checksums.describe("fashion_mnist", *key)
    with pytest.raises(
        errors.InputError, match=f"{STEMS[key]}: .* got the {described}"
    ):
        datasets.load("mnist", folder)


def test_50_bits_flipped_in_an_uncompressed_file_are_all_found(mnist_folder, tmp_path):
    """An uncompressed file contains no checksum."""
    images = idx.read_idx(pathlib.Path(mnist_folder, STEMS["eval", "images"]), 3)
    checksums.check("mnist", "eval", {tmp_path: images})
    rng, changed = np.random.default_rng(0), images.copy()
    for _ in range(50):
        place = tuple(rng.integers(0, size) for size in images.shape)
        changed[place] ^= np.uint8(1 << rng.integers(8))
        with pytest.raises(errors.InputError, match="damaged or changed; replace it"):
            checksums.check("mnist", "eval", {tmp_path: changed})
        changed[place] = images[place]
    checksums.check("mnist", "eval", {tmp_path: changed})


def test_fewer_examples_and_unknown_names_are_not_checked(tmp_path):
    examples = make_examples(30)
    folder = write_idx_folder(tmp_path / "few", examples, examples)
    assert len(datasets.load("mnist", folder).train) == 30
    assert len(datasets.load("own", folder).train) == 30
