"""The four files are found under all their names, and never under another dataset's."""

import pathlib

import numpy as np
import pytest
from helpers import make_examples, write_idx_folder

from tfmirror import errors
from tfmirror.data import datasets, idx_folder, tfds_source

EXAMPLES = make_examples(3)


def renamed(folder, change):
    """Writes the four files under the names that `change` gives; returns the folder."""
    write_idx_folder(folder, EXAMPLES, EXAMPLES)
    for path in list(folder.iterdir()):
        path.rename(folder / change(path.name))
    return folder


@pytest.mark.parametrize("joint", ["-", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_finds_the_four_files_with_each_ending(tmp_path, joint, packed):
    write_idx_folder(tmp_path, EXAMPLES, EXAMPLES, joint, packed)
    found = idx_folder.find(tmp_path, "own")
    assert set(found) == set(idx_folder.STEMS)
    assert all(path.is_file() for path in found.values())


def emnist_digits(name):
    return "emnist-digits-" + name.replace("t10k", "test")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("own", str.upper),
        ("own", str.title),
        ("own", lambda name: name.replace("t10k", "test")),
        ("emnist/digits", emnist_digits),
        ("emnist/digits", lambda name: emnist_digits(name).upper()),
        ("emnist/digits", str),
        ("my_set", lambda name: f"my-set-{name}"),
    ],
)
def test_finds_and_reads_other_spellings_of_the_names(tmp_path, name, change):
    folder = renamed(tmp_path, change)
    files = idx_folder.find(folder, name)
    expected = {change(f"{n}.gz") for n in idx_folder.NAMES}
    assert {path.name for path in files.values()} == expected
    loaded = datasets.load(name, str(folder))
    np.testing.assert_array_equal(loaded.train.images, EXAMPLES.images)
    np.testing.assert_array_equal(loaded.eval.labels, EXAMPLES.labels)


def test_one_dataset_of_several_in_a_folder_is_chosen_by_name(tmp_path):
    """As in the archive of EMNIST, which holds six."""
    for seed, name in enumerate(["emnist-digits", "emnist-letters"]):
        examples = make_examples(3, seed=seed)
        write_idx_folder(tmp_path / name, examples, examples)
        for path in (tmp_path / name).iterdir():
            path.rename(tmp_path / f"{name}-{path.name}")
    for seed, name in enumerate(["emnist/digits", "emnist/letters"]):
        loaded = datasets.load(name, str(tmp_path))
        np.testing.assert_array_equal(
            loaded.train.images, make_examples(3, seed=seed).images
        )
    with pytest.raises(errors.InputError) as error:
        datasets.load("mnist", str(tmp_path))
    assert "no IDX files of mnist, but those of" in str(error.value)
    assert "emnist-digits" in str(error.value) and "--dataset" in str(error.value)


def test_an_unpacked_file_goes_before_a_packed_one(tmp_path):
    write_idx_folder(tmp_path, EXAMPLES, EXAMPLES, packed=True)
    write_idx_folder(tmp_path, EXAMPLES, EXAMPLES, packed=False)
    found = idx_folder.find(tmp_path, "own")
    assert {path.name for path in found.values()} == set(idx_folder.NAMES)


def test_a_folder_without_idx_files_gives_none_and_a_missing_file_is_named(tmp_path):
    assert idx_folder.find(tmp_path, "own") is None
    write_idx_folder(tmp_path, EXAMPLES, EXAMPLES)
    pathlib.Path(tmp_path, "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(errors.InputError, match="t10k-labels-idx1-ubyte.gz is missing"):
        idx_folder.find(tmp_path, "own")


@pytest.mark.parametrize("name", ["emnist-letters", "my_letters", "mnist"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_if_nothing_is_found_the_error_names_the_four_files(
    tmp_path, monkeypatch, name
):
    def no_network(url, **_):
        raise tfds_source.requests.ConnectionError("no route")

    monkeypatch.setattr(tfds_source.requests, "head", no_network)
    (tmp_path / "letters.csv").touch()
    with pytest.raises(errors.InputError) as error:
        datasets.load(name.replace("t-l", "t_l") + "x" * (name != "mnist"), tmp_path)
    for file in idx_folder.NAMES:
        assert file in str(error.value)
    assert "did you mean" not in str(error.value) and "\n" not in str(error.value)
