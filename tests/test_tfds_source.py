"""Prepared tensorflow-datasets are read, and unusable ones are refused in one line."""

import multiprocessing
import pathlib

import numpy as np
import pytest
import requests
import tensorflow as tf
import tensorflow_datasets as tfds
from helpers import faults, make_examples

from tfmirror import errors
from tfmirror.data import datasets, idx_folder, tfds_source

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def prepare(folder, name, splits, image=None, label=None):
    """Prepares a dataset like a user's own; returns the folder as text."""
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
        errors.InputError, match="a test or validation split: got train"
    ):
        datasets.load("own_set", folder)


def test_images_of_several_sizes_are_refused(tmp_path):
    image = tfds.features.Image(shape=(None, None, 1))
    splits = {"train": make_examples(3), "test": make_examples(3)}
    folder = prepare(tmp_path, "own_set", splits, image=image)
    with pytest.raises(errors.InputError, match="images of one size: got"):
        datasets.load("own_set", folder)


def test_data_without_class_labels_are_refused(tmp_path):
    label = tfds.features.Scalar(np.int64)
    splits = {"train": make_examples(3), "test": make_examples(3)}
    folder = prepare(tmp_path, "own_set", splits, label=label)
    with pytest.raises(errors.InputError, match="8-bit images 'image' and classes"):
        datasets.load("own_set", folder)


def test_the_error_for_an_unknown_name_suggests_similar_ones(tmp_path):
    with pytest.raises(
        errors.InputError, match="got 'mnits'; did you mean mnist"
    ) as error:
        datasets.load("mnits", str(tmp_path))
    assert len(str(error.value)) < 400


def test_without_data_and_network_the_error_names_all_ways_to_get_the_data(
    tmp_path, monkeypatch
):
    asked = []

    def no_network(url, timeout, **_):
        asked.append(url)
        assert timeout <= 5
        raise requests.ConnectionError("no route")

    monkeypatch.setattr(tfds_source.requests, "head", no_network)
    monkeypatch.setattr(idx_folder, "DEBIAN_FOLDER", tmp_path / "debian")
    with pytest.raises(errors.InputError) as error:
        datasets.load("mnist", str(tmp_path))
    message = str(error.value)
    for way in ("--data_dir=FOLDER", "debian/mnist", "tensorflow-datasets", "digits"):
        assert way in message
    assert len(asked) == 1
    assert list(tmp_path.iterdir()) == []  # nothing half finished is left


def test_text_data_are_refused_before_anything_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_source, "_download", lambda *_: pytest.fail("downloads"))
    with pytest.raises(errors.InputError, match="got text, label|got label, text"):
        datasets.load("imdb_reviews", str(tmp_path))


@pytest.mark.slow
def test_every_fault_of_prepared_data_names_the_file_or_is_harmless(
    tmp_path, record_property
):
    train, evaluation = make_examples(9, seed=1), make_examples(4, seed=2)
    prepare(tmp_path, "own_set", {"train": train, "test": evaluation})
    whole = datasets.sha256(datasets.load("own_set", str(tmp_path)))
    folder = tmp_path / "own_set" / "1.0.0"
    (shard,) = folder.glob("*-test.tfrecord*")
    (other,) = folder.glob("*-train.tfrecord*")
    content, count, harmless = shard.read_bytes(), 0, []
    for what, damaged in faults(content, other.read_bytes()):
        shard.write_bytes(damaged)
        count += 1
        try:
            assert datasets.sha256(datasets.load("own_set", str(tmp_path))) == whole
            harmless.append(what)
        except errors.InputError as error:
            assert str(folder) in str(error) and "prepare it again" in str(error), what
    assert count == 76 and harmless == ["bytes added"]
    shard.unlink()
    with pytest.raises(errors.InputError, match="No such file"):
        datasets.load("own_set", str(tmp_path))
    shard.write_bytes(content)
    assert datasets.sha256(datasets.load("own_set", str(tmp_path))) == whole
    record_property(
        "shown", f"{count} faults of prepared data, {len(harmless)} harmless"
    )


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_a_damaged_description_of_prepared_data_is_named(name, tmp_path):
    splits = {"train": make_examples(9, seed=1), "test": make_examples(4, seed=2)}
    prepare(tmp_path, "own_set", splits)
    file = tmp_path / "own_set" / "1.0.0" / name
    content = file.read_bytes()
    for k in range(20):
        file.write_bytes(content[: len(content) * k // 20])
        with pytest.raises(errors.InputError, match=f"{name}: damaged"):
            datasets.load("own_set", str(tmp_path))


def test_a_shard_cut_between_two_records_is_missed_examples(tmp_path):
    """Every record is undamaged; only their number is wrong."""
    splits = {"train": make_examples(9, seed=1), "test": make_examples(4, seed=2)}
    prepare(tmp_path, "own_set", splits)
    (shard,) = (tmp_path / "own_set" / "1.0.0").glob("*-test.tfrecord*")
    shard.write_bytes(shard.read_bytes() * 2)  # twice the records
    with pytest.raises(errors.InputError, match="4"):
        datasets.load("own_set", str(tmp_path))


class Downloadable(tfds.core.GeneratorBasedBuilder):
    """A dataset whose download adds a line to a file."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(28, 28, 1)),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        features = tfds.features.FeaturesDict(features)
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, manager):
        with open(pathlib.Path(self.data_path.parents[1], "downloads.txt"), "a") as log:
            log.write("downloaded\n")
        return {split: self._generate_examples() for split in ("train", "test")}

    def _generate_examples(self):
        examples = make_examples(6)
        for k in range(6):
            yield k, {"image": examples.images[k], "label": int(examples.labels[k])}


def load_downloadable(folder, barrier, results):
    """Loads the data when all processes are ready; puts their digest into `results`."""
    barrier.wait()
    loaded = datasets.load("downloadable", str(folder))
    results.put(datasets.sha256(loaded))


@pytest.mark.training
@pytest.mark.slow
def test_processes_that_start_together_download_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=load_downloadable, args=(tmp_path, barrier, results))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    digests = {results.get() for _ in processes}
    assert len(digests) == 1
    assert (tmp_path / "downloads.txt").read_text() == "downloaded\n"
