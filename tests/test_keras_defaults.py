"""Whatever Keras is set to, tfmirror builds, trains and reads the same models."""

import pathlib
import runpy

import keras
import numpy as np
import pytest
from helpers import NUM_CLASSES, make_examples
from test_command import ROOT, run_python

from tfmirror import config, errors, inspect_replicas, metrics, models
from tfmirror.data import datasets
from tfmirror.diagnostics import observation
from tfmirror.inference import evaluation, export, prediction
from tfmirror.models import keras_defaults
from tfmirror.parallel import devices
from tfmirror.rundir import loading
from tfmirror.training import run

OTHER = {
    "floatx": "float64",
    "epsilon": 0.1,
    "image_data_format": "channels_first",
    "dtype_policy": "mixed_float16",
}


def settings_of_keras():
    found = {name: getattr(keras.config, name)() for name in OTHER}
    return found | {"dtype_policy": found["dtype_policy"].name}


@pytest.fixture
def use_other_settings():
    """Returns a function that sets Keras as another user may; undone afterwards."""
    kept = settings_of_keras()

    def use(settings):
        for name, value in settings.items():
            getattr(keras.config, f"set_{name}")(value)

    yield lambda: use(OTHER)
    use(kept)


@pytest.mark.parametrize("precision", models.PRECISIONS)
@pytest.mark.parametrize("name", models.BUILDERS)
def test_models_do_not_depend_on_the_users_settings(
    use_other_settings, name, precision
):
    def build():
        keras.utils.set_random_seed(0)
        model = models.build(name, (28, 28, 1), NUM_CLASSES, precision=precision)
        # Every layer's data type and layout; names and shapes.
        return model.to_json(), metrics.weights_sha256(model.variables)

    expected = build()
    use_other_settings()
    assert build() == expected
    assert settings_of_keras() == OTHER  # given back


def test_the_settings_are_given_back_after_an_error_and_from_within_a_scope(
    use_other_settings,
):
    use_other_settings()
    with pytest.raises(ZeroDivisionError), keras_defaults.scope():
        with keras_defaults.scope():
            assert keras.config.floatx() == "float32"
        assert keras.config.floatx() == "float32"
        raise ZeroDivisionError
    assert settings_of_keras() == OTHER


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(errors.InputError, match="must be tensorflow: got 'jax'; set"):
        models.build("probe", (28, 28, 1), NUM_CLASSES)


@pytest.mark.training
@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "adam", "schedule": "cosine", "ema_decay": 0.5},
        pytest.param(
            {"precision": "float16", "momentum": 0.9, "clip_norm": 1.0},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"batch_norm": "sync", "model": "resnet18", "microbatches": 0},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_has_the_same_bits(use_other_settings, tmp_path, given):
    def train(folder):
        size = 16 if "model" in given else 96
        settings = {"gpus": 2, "epochs": 1, "microbatches": 2, "warmup_epochs": 0.5}
        settings |= {"limit_train_examples": size, "limit_eval_examples": size}
        settings |= {"global_batch_size": size // 2, "workdir": str(tmp_path / folder)}
        summary = run.train(config.TrainConfig(**settings | given))
        return summary["weights_sha256"], summary["epochs"][0]["eval_loss"]

    expected = train("usual")
    use_other_settings()
    assert train("other") == expected
    assert settings_of_keras() == OTHER


@pytest.mark.slow
def test_a_trained_model_is_read_evaluated_and_exported_alike(
    use_other_settings, finished_run, tmp_path
):
    chosen = devices.set_up(2, "cpu")
    dataset = datasets.load("digits", limit_eval_examples=75)
    images = make_examples(5).images

    def observe(folder):
        found = loading.find(finished_run, pytest.fail)
        reached = evaluation.evaluate(found, dataset, chosen, 32)
        strategy = devices.make_strategy(chosen)
        model = loading.build(found, strategy)
        predicted = prediction.predict(strategy, model, images)
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "model.keras"
        export.write_keras(loading.build(found), file)
        export.write_saved_model(loading.build(found), tmp_path / folder / "saved")
        digest = metrics.weights_sha256(keras.models.load_model(file).variables)
        return reached.totals, predicted.tobytes(), digest

    expected = observe("usual")
    use_other_settings()
    assert observe("other") == expected


def test_inspect_replicas_shows_the_same(use_other_settings):
    def observe():
        view, _ = inspect_replicas.inspect(inspect_replicas.InspectConfig(gpus=2))
        return [np.stack(v.aggregated_gradients).tobytes() for v in view.variables]

    expected = observe()
    use_other_settings()
    assert observe() == expected


@pytest.mark.slow
def test_verify_observes_the_same(use_other_settings):
    def observe():
        seen = observation.observe(1, "probe", "cpu")
        return {
            claim: {name: array.tobytes() for name, array in arrays.items()}
            for claim, arrays in seen.items()
        }

    expected = observe()
    use_other_settings()
    assert observe() == expected


@pytest.mark.slow
@pytest.mark.training
def test_the_smallest_use_of_the_library_prints_the_same(use_other_settings, capsys):
    def observe():
        runpy.run_path(str(pathlib.Path(ROOT, "examples", "minimal.py")))
        return capsys.readouterr().out

    expected = observe()
    use_other_settings()
    assert observe() == expected


@pytest.mark.slow
def test_a_users_keras_json_does_not_matter_to_a_command(tmp_path):
    (tmp_path / "keras.json").write_text(
        '{"floatx": "float64", "epsilon": 0.1, "image_data_format": "channels_first"}'
    )
    argv = ["-m", "tfmirror.inspect_replicas", "--json"]
    (tmp_path / "empty").mkdir()
    usual = run_python(*argv, KERAS_HOME=str(tmp_path / "empty"))
    other = run_python(*argv, KERAS_HOME=str(tmp_path))
    assert (other.returncode, other.stdout) == (0, usual.stdout), other.stderr
