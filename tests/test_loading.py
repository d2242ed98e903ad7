"""A trained model is found whole, or one line says what is wrong with it."""

import collections
import json
import shutil

import keras
import numpy as np
import pytest
from helpers import faults, make_strategy

from tfmirror import errors, models
from tfmirror.inference import loading
from tfmirror.rundir import checkpoints


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
