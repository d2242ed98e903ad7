"""A run that starts from given weights: the same bits on any number of devices."""

import dataclasses
import pathlib
import shutil

import keras
import numpy as np
import pytest
from test_resume import interrupt_after

from tfmirror import config, errors, metrics, models
from tfmirror.models import layer_weights
from tfmirror.rundir import checkpoints, loading, reader
from tfmirror.training import initial_weights, run

pytestmark = pytest.mark.training
layers = keras.layers

SETTINGS = config.TrainConfig(
    microbatches=4,
    global_batch_size=32,
    limit_train_examples=96,
    limit_eval_examples=40,
    epochs=2,
    learning_rate=0.05,
    momentum=0.9,
    weight_decay=0.01,
    clip_norm=1.0,
    ema_decay=0.9,
    new_head=True,
    freeze="conv1,norm1",
    steps_per_loop=1,
    seed=3,
)


def build(input_shape, num_classes, initializer):
    """Returns a small model with batch norm."""
    kernel = {"kernel_initializer": initializer()}
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(4, 5, strides=3, use_bias=False, name="conv1", **kernel),
            layers.BatchNormalization(name="norm1"),
            layers.Conv2D(4, 3, activation="relu", name="conv2", **kernel),
            layers.BatchNormalization(name="norm2"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(num_classes, name="logits", **kernel),
        ],
        name="small",
    )


@pytest.fixture(scope="module", autouse=True)
def small_model():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.BUILDERS, "cnn", build)
        yield


def write(path, num_classes=5, seed=0):
    """Writes the model with weights of a seed; returns {layer: {name: array}}."""
    model = build((28, 28, 1), num_classes, keras.initializers.GlorotUniform)
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(rng.uniform(0.1, 0.3, variable.shape))
    if str(path).endswith(".h5"):
        model.save_weights(path)
    else:
        model.save(path)
    return layer_weights.saved_weights(model).layers


def train(folder, path, **changes):
    settings = {"workdir": str(folder), "resume": "auto", "gpus": 2} | changes
    return run.train(
        dataclasses.replace(SETTINGS, initial_weights=str(path), **settings)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(Summary of a run that was never stopped, the weights that it began with)."""
    folder = tmp_path_factory.mktemp("tuned")
    given = write(folder / "given.keras")
    return train(folder / "whole", folder / "given.keras", gpus=4), given


def final_weights(summary):
    model = keras.models.load_model(f"{summary['workdir']}/model.keras")
    return model, layer_weights.saved_weights(model).layers


def test_frozen_layers_have_the_given_bits_in_the_end_and_the_others_learned(whole):
    summary, given = whole
    model, final = final_weights(summary)
    for name in ("conv1", "norm1"):
        assert not model.get_layer(name).trainable
        for mine, theirs in zip(
            final[name].values(), given[name].values(), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
    for name in ("conv2", "norm2"):
        assert model.get_layer(name).trainable
        for mine, theirs in zip(
            final[name].values(), given[name].values(), strict=True
        ):
            assert (mine != theirs).all()


def test_the_digest_is_of_what_was_taken(whole):
    summary, given = whole
    recorded = reader.read(summary["workdir"]).settings
    del given["logits"]
    taken = [keras.Variable(v) for layer in given.values() for v in layer.values()]
    assert recorded["initial_weights_sha256"] == metrics.weights_sha256(taken)
    folder = pathlib.Path(summary["workdir"]) / "checkpoints"
    state, _ = checkpoints.latest(folder, pytest.fail)
    assert state.settings == recorded


@pytest.mark.slow
def test_one_device_gives_the_same_bits(whole, tmp_path):
    write(tmp_path / "given.keras")
    summary = train(tmp_path / "one", tmp_path / "given.keras", gpus=1)
    assert summary["weights_sha256"] == whole[0]["weights_sha256"]


def test_stopped_on_one_device_it_ends_on_two_though_the_file_is_gone(
    whole, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "given.weights.h5"
    write(path)  # the same weights, without names of variables
    interrupt_after(monkeypatch, 3)
    with pytest.raises(errors.InterruptedRunError, match="after step 3 of epoch 1"):
        train(tmp_path / "run", path, gpus=1)
    monkeypatch.undo()
    out = capsys.readouterr().out
    assert f"\ninitial weights: 11 variables from {path}; new head: logits\n" in out
    # 5*5*4 + 4*4, of these and 3*3*4*4+4, 4*4, 4*10+10.
    assert "\nfrozen: 5 of 13 variables, 116 of 330 numbers\n" in out
    began_with = reader.read(tmp_path / "run").settings["initial_weights_sha256"]
    path.unlink()
    for changes, says in (
        ({"freeze": "conv1"}, "freeze 'conv1,norm1', now 'conv1'"),
        ({"new_head": False}, "new_head True, now False"),
    ):
        with pytest.raises(errors.InputError, match=says):
            train(tmp_path / "run", path, **changes)
    capsys.readouterr()
    summary = train(tmp_path / "run", path, gpus=2)
    assert summary["weights_sha256"] == whole[0]["weights_sha256"]
    settings = reader.read(tmp_path / "run").settings
    assert settings["initial_weights_sha256"] == began_with
    out = capsys.readouterr().out
    assert "\nfrozen: 5 of 13" in out and "initial weights" not in out


@pytest.mark.slow
def test_killed_before_its_first_checkpoint_it_begins_with_the_same_weights(
    whole, tmp_path, monkeypatch
):
    path = tmp_path / "given.keras"
    write(path)
    with monkeypatch.context() as patch:
        patch.setattr(run, "_trace", lambda training_setup: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "run", path)
    before = (tmp_path / "run" / "config.json").read_bytes()
    write(path, seed=1)
    with pytest.raises(errors.InputError, match="initial_weights have changed since"):
        train(tmp_path / "run", path)
    path.unlink()
    with pytest.raises(errors.InputError, match="must be an existing .keras"):
        train(tmp_path / "run", path)
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    write(path)
    summary = train(tmp_path / "run", path)
    assert summary["weights_sha256"] == whole[0]["weights_sha256"]


def refused(tmp_path, path, **changes):
    """Returns what is said; asserts that nothing is written."""
    with pytest.raises(errors.InputError) as error:
        train(tmp_path / "new", path, **changes)
    assert not (tmp_path / "new").exists() and "\n" not in str(error.value)
    return str(error.value)


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "given.keras"
    write(path)
    assert refused(tmp_path, path, new_head=False) == (
        f"initial_weights={path} do not fit the model small: of another shape: "
        "logits/kernel float32 [4, 5] there, float32 [4, 10] here, logits/bias float32 "
        "[5] there, float32 [10] here; with new_head logits is made anew, and the rest "
        "is taken"
    )
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="conv1")])
    model.save(path)
    said = refused(tmp_path, path)
    assert said.startswith(f"initial_weights={path} do not fit the model small: not ")
    assert said.endswith("of the same layers; with new_head only logits may differ")
    assert refused(tmp_path, path, new_head=False).endswith("of the same layers")


def test_weights_that_are_not_finite_are_refused(tmp_path):
    path = tmp_path / "given.weights.h5"
    model = build((28, 28, 1), 10, keras.initializers.GlorotUniform)
    model.get_layer("norm2").moving_variance.assign([1, 2, np.nan, 3])
    model.save_weights(path)
    assert "must be finite in norm2/moving_variance" in refused(tmp_path, path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("nothing.keras", None, "must be an existing .keras or .weights.h5 file"),
        ("a.h5", b"text", "must be an existing .keras or .weights.h5 file, run"),
        ("a.keras", b"text", r"a.keras can't be used \(.*\); give an existing .keras"),
        ("a.weights.h5", b"text", r"a.weights.h5 can't be used \("),
        ("a.npz", b"text", "a.npz' can't be used: it has only 4 bytes"),
    ],
)
def test_what_holds_no_weights_is_refused_in_a_line(tmp_path, name, content, says):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(errors.InputError, match=says) as error:
        initial_weights.read(str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_a_model_that_brings_code_along_is_refused(tmp_path):
    layer = layers.Lambda(lambda x: x)
    path = tmp_path / "a.keras"
    keras.Sequential([keras.Input((28, 28, 1)), layer]).save(path)
    with pytest.raises(errors.InputError, match="(?i)can't be used .*lambda"):
        initial_weights.read(str(path))


def test_a_new_head_needs_weights_for_the_others():
    with pytest.raises(errors.InputError, match="new_head needs initial_weights"):
        config.check(config.TrainConfig(new_head=True))


def test_a_run_and_its_checkpoints_give_the_weights_that_are_evaluated(whole, tmp_path):
    summary, _ = whole
    _, final = final_weights(summary)
    folder = shutil.copytree(summary["workdir"], tmp_path / "run")
    last = max((folder / "checkpoints").glob("step-*.npz"))
    found = [initial_weights.read(str(path)) for path in (folder, last)]
    assert [source.path for source in found] == [str(folder / "model.keras"), str(last)]
    (folder / "summary.json").unlink()  # now it is not finished
    found.append(initial_weights.read(str(folder)))
    for source in found:
        assert source.warnings == () and source.saved.layers.keys() == final.keys()
        for layer, values in source.saved.layers.items():
            assert values.keys() == final[layer].keys()
            for name, value in values.items():
                np.testing.assert_array_equal(value, final[layer][name])
    raw = checkpoints.read(last).variables["small/conv2/kernel"]
    assert np.abs(raw - final["conv2"]["kernel"]).max() > 1e-5


def test_averages_with_frozen_batch_norm_are_loaded_without_a_warning(
    tmp_path, monkeypatch
):
    """Its statistics are those of any weights; also from within an epoch."""
    write(tmp_path / "given.keras")
    interrupt_after(monkeypatch, 2)
    with pytest.raises(errors.InterruptedRunError):
        train(tmp_path / "run", tmp_path / "given.keras", freeze="conv1,norm*")
    monkeypatch.undo()
    found = loading.find(tmp_path / "run", pytest.fail)
    state, _ = checkpoints.latest(tmp_path / "run" / "checkpoints", pytest.fail)
    for name, value in zip(state.model.variables, found.variables, strict=True):
        averaged = state.variables.get(f"averaged/{name}", state.variables[name])
        np.testing.assert_array_equal(value, averaged)


def test_reading_a_model_changes_no_name_of_the_run(tmp_path):
    """Or a resumed run, which reads none, would have other names."""
    write(tmp_path / "given.keras")
    first = keras.layers.Dense(1).name
    second = keras.layers.Dense(1).name
    initial_weights.read(str(tmp_path / "given.keras"))
    third = keras.layers.Dense(1).name
    numbers = [int(name.removeprefix("dense_")) for name in (second, third)]
    assert numbers[1] == numbers[0] + 1, (first, second, third)
