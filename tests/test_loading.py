"""A trained model is found whole, or one line says what is wrong with it."""

import collections
import dataclasses
import io
import json
import os
import pathlib
import shutil
import zipfile

import h5py
import keras
import numpy as np
import pytest
from helpers import faults, make_strategy

from tfmirror import errors, models
from tfmirror.rundir import checkpoints, loading
from tfmirror.rundir.state import ModelDescription, PassProgress, RunProgress, RunState


def assert_same(one, other):
    """Asserts that two Trained models have the same bits."""
    assert one.input_shape == other.input_shape == (28, 28, 1)
    assert one.num_classes == other.num_classes == 10
    assert len(one.variables) == len(other.variables) == 8
    for mine, theirs in zip(one.variables, other.variables, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_finished_run_and_its_last_checkpoint_are_the_same(finished_run):
    """Both with the averaged weights, which are not the weights."""
    whole = loading.find(finished_run, pytest.fail)
    state, last = checkpoints.latest(finished_run / "checkpoints", pytest.fail)
    assert_same(whole, loading.find(last, pytest.fail))
    raw = state.variables["cnn/conv1/kernel"]
    assert np.abs(whole.variables[0] - raw).max() > 1e-5


def test_a_run_that_was_interrupted_gives_its_last_whole_checkpoint(
    finished_run, tmp_path
):
    folder = shutil.copytree(finished_run, tmp_path / "interrupted")
    (folder / "summary.json").unlink()
    first, last = sorted(folder.glob("checkpoints/step-*.npz"))
    assert loading.find(folder, pytest.fail).source == str(last)
    last.write_bytes(last.read_bytes()[:-1])
    warnings = []
    assert loading.find(folder, warnings.append).source == str(first)
    assert len(warnings) == 1 and last.name in warnings[0]
    first.unlink()
    with pytest.raises(errors.InputError, match="neither a finished run nor a comp"):
        loading.find(folder, warnings.append)


def test_every_fault_of_a_saved_model_is_recognised_or_harmless(
    finished_run, tmp_path, record_property
):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    whole, file = loading.find(folder, pytest.fail), folder / "model.keras"
    other = models.build("cnn", (28, 28, 1), 10)
    other.save(tmp_path / "other.keras")
    count = collections.Counter()
    content, of_other = file.read_bytes(), (tmp_path / "other.keras").read_bytes()
    for what, damaged in faults(content, of_other):
        file.write_bytes(damaged)
        try:
            assert_same(loading.find(folder, pytest.fail), whole)
            count["harmless"] += 1
        except errors.InputError as error:
            assert "model.keras can't be used" in str(error), what
            assert "\n" not in str(error), what
            count["recognised"] += 1
    assert count.total() == 76 and count["recognised"] > 40
    record_property("shown", f"76 faults of model.keras: {dict(count)}")


def test_a_model_that_brings_code_along_is_refused(finished_run, tmp_path):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    layer = keras.layers.Lambda(lambda x: x)
    keras.Sequential([keras.Input((28, 28, 1)), layer]).save(folder / "model.keras")
    with pytest.raises(errors.InputError, match="(?i)lambda"):
        loading.find(folder, pytest.fail)


def rewritten(source, target, change, **options):
    """Copies a .keras file; `change` is called with {name: content}, to change it."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(target, "w", **options) as archive:
        for name, member in members.items():
            archive.writestr(name, member)


def widen(members):
    """Gives the last layer a million million units: 512 TB."""
    members["config.json"] = members["config.json"].replace(
        b'"units": 10,', b'"units": 1000000000000,'
    )
    assert b"1000000000000" in members["config.json"]


def with_weights(write):
    """Returns a change of the weights: `write` gets the open HDF5 file."""

    def change(members):
        content = io.BytesIO(members["model.weights.h5"])
        with h5py.File(content, "r+") as weights:
            write(weights)
        members["model.weights.h5"] = content.getvalue()

    return change


def add_unwritten(weights):
    weights.create_dataset("vars/9", (2**40,), "float32")


def add_packed(weights):
    weights.create_dataset("vars/9", (2**20,), "float32", compression="gzip")


def add_external(weights):
    weights.create_dataset("vars/9", (8,), "uint8", external=[("/etc/passwd", 0, 8)])


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (widen, {}, "its model has 129,000,000,127,778 values"),
        (lambda _: None, {"compression": zipfile.ZIP_DEFLATED}, "is packed"),
        (with_weights(add_unwritten), {}, "announces 4,398,046,511,104 bytes, but has"),
        (with_weights(add_packed), {}, "vars/9 is not stored plainly"),
        (with_weights(add_external), {}, "vars/9 is not stored plainly"),
        (lambda m: m.update({"config.json": b"[" * 10**5}), {}, "recursion"),
        (lambda m: m.update({"config.json": b" " * 2**26}), {}, "is too large"),
        (lambda m: m.pop("model.weights.h5"), {}, "model.weights.h5"),
        (lambda m: m.update({"model.weights.h5": b"text"}), {}, "."),
    ],
)
def test_a_crafted_model_is_refused_before_keras_reads_it(
    finished_run, tmp_path, monkeypatch, change, options, says
):
    monkeypatch.setattr(
        keras.models, "load_model", lambda *_, **__: pytest.fail("read")
    )
    file = tmp_path / "model.keras"
    rewritten(finished_run / "model.keras", file, change, **options)
    with pytest.raises(errors.InputError, match=says) as error:
        loading._load_keras(file)
    assert "\n" not in str(error.value) and "can't be used" in str(error.value)


@pytest.mark.parametrize("kind", ["a pipe", "a file larger than the memory"])
def test_a_model_file_of_another_kind_is_not_read(tmp_path, kind):
    file = tmp_path / "model.keras"
    if kind == "a pipe":
        os.mkfifo(file)
    else:
        file.touch()
        os.truncate(file, 2**43)
    with pytest.raises(errors.InputError, match="must be a regular|must have at most"):
        loading._load_keras(file)


@pytest.mark.parametrize(
    "claim",
    [
        {"input_shape": (100_000, 100_000, 1)},
        {"num_classes": 10**12},
        {"num_classes": -1},
        {"input_shape": ("a", "b", "c")},
        {"input_shape": ()},
        {"variables": ()},
    ],
)
def test_a_checkpoint_that_claims_another_model_takes_no_memory(finished_run, claim):
    (*_, last) = sorted(finished_run.glob("checkpoints/step-*.npz"))
    found = dataclasses.replace(loading.find(last, pytest.fail), **claim)
    with pytest.raises(errors.InputError, match="does not fit the model|too small"):
        loading.build(found)


@pytest.mark.parametrize("name", ["nothing/there", "a_file.npz"])
def test_what_is_no_model_is_one_line(tmp_path, name):
    (tmp_path / "a_file.npz").write_bytes(b"text" * 50)
    with pytest.raises(errors.InputError, match="a run directory or a checkpoint is"):
        loading.find(tmp_path / name, pytest.fail)


def test_settings_that_name_another_model_are_refused(finished_run, tmp_path):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"model": "resnet18"}))
    found = loading.find(folder, pytest.fail)
    with pytest.raises(errors.InputError, match="does not fit the model resnet18"):
        loading.build(found, make_strategy(2))


def test_statistics_of_a_second_layer_of_one_name_are_recognised():
    """Within an epoch there are none for the averages, so the raw weights are used."""
    paths = ("a/gamma#2", "a/moving_mean#2")
    state = RunState(
        settings={},
        data_sha256="",
        position=RunProgress(point=PassProgress(num_steps=1)),
        num_steps=1,
        model=ModelDescription((28, 28, 1), 10, paths),
        variables=dict.fromkeys((*paths, *(f"averaged/{p}" for p in paths))),
    )
    said = []
    names = loading._evaluated_names(state, pathlib.Path("x.npz"), said.append)
    assert names == list(paths)
    assert len(said) == 1 and "the raw weights are used" in said[0]
