"""tensorflow-datasets: prepared data are read, and what can't be had is one line."""

import numpy as np
import pytest
import requests
import tensorflow as tf
import tensorflow_datasets as tfds
from helpers import make_examples

from tfmirror import config
from tfmirror.data import datasets, idx, tfds_source

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def prepare(folder, name, splits, image=None, label=None):
    """Prepares a dataset as a user would have one; returns the folder as text."""
    image = image or tfds.features.Image(shape=(28, 28, 1))
    features = tfds.features.FeaturesDict(
        {"image": image, "label": label or tfds.features.ClassLabel(num_classes=10)}
    )
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=features,
        split_datasets={
            split: tf.data.Dataset.from_tensor_slices(
                {"image": examples.images, "label": examples.labels.astype(np.int64)}
            )
            for split, examples in splits.items()
        },
        data_dir=str(folder),
        disable_shuffling=True,
    )
    return str(folder)


@pytest.mark.parametrize("eval_split", ["test", "validation"])
def test_prepared_data_are_read_whole_and_in_order(tmp_path, eval_split):
    train, evaluation = make_examples(9, seed=1), make_examples(4, seed=2)
    folder = prepare(tmp_path, "own_set", {"train": train, eval_split: evaluation})
    loaded = datasets.load("own_set", folder)
    np.testing.assert_array_equal(loaded.train.images, train.images)
    np.testing.assert_array_equal(loaded.train.labels, train.labels)
    np.testing.assert_array_equal(loaded.eval.images, evaluation.images)
    assert loaded.num_classes == 10 and folder in loaded.source


def test_a_dataset_without_an_evaluation_split_is_refused(tmp_path):
    folder = prepare(tmp_path, "own_set", {"train": make_examples(3)})
    with pytest.raises(
        config.InputError, match="a test or validation split: got train"
    ):
        datasets.load("own_set", folder)


def test_images_of_several_sizes_are_refused(tmp_path):
    image = tfds.features.Image(shape=(None, None, 1))
    splits = {"train": make_examples(3), "test": make_examples(3)}
    folder = prepare(tmp_path, "own_set", splits, image=image)
    with pytest.raises(config.InputError, match="images of one size: got"):
        datasets.load("own_set", folder)


def test_what_is_not_classification_is_refused(tmp_path):
    label = tfds.features.Scalar(np.int64)
    splits = {"train": make_examples(3), "test": make_examples(3)}
    folder = prepare(tmp_path, "own_set", splits, label=label)
    with pytest.raises(config.InputError, match="8-bit images 'image' and classes"):
        datasets.load("own_set", folder)


def test_an_unknown_name_is_answered_with_the_near_ones(tmp_path):
    with pytest.raises(
        config.InputError, match="got 'mnits'; did you mean mnist"
    ) as error:
        datasets.load("mnits", str(tmp_path))
    assert len(str(error.value)) < 300


def test_without_data_and_network_all_ways_are_named_at_once(tmp_path, monkeypatch):
    asked = []

    def no_network(url, timeout, **_):
        asked.append(url)
        assert timeout <= 5
        raise requests.ConnectionError("no route")

    monkeypatch.setattr(tfds_source.requests, "head", no_network)
    monkeypatch.setattr(idx, "DEBIAN_FOLDER", tmp_path / "debian")
    with pytest.raises(config.InputError) as error:
        datasets.load("mnist", str(tmp_path))
    message = str(error.value)
    for way in ("--data_dir=FOLDER", "debian/mnist", "tensorflow-datasets", "digits"):
        assert way in message
    assert len(asked) == 1
    assert list(tmp_path.iterdir()) == []  # nothing half made


def test_text_data_are_refused_before_anything_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_source, "_download", lambda *_: pytest.fail("downloads"))
    with pytest.raises(config.InputError, match="it has text, label|has label, text"):
        datasets.load("imdb_reviews", str(tmp_path))
