"""What is exported gives the same predictions elsewhere, to the bit."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import make_call, make_examples, make_strategy

from tfmirror import export as export_command
from tfmirror import models
from tfmirror.inference import export, prediction
from tfmirror.rundir import loading

SHAPE = (16, 16, 3)


def make_trained(name, precision):
    """Returns a Trained model whose every variable, batch norm's too, is its own."""
    model = models.build(name, SHAPE, 10, precision=precision, init="he")
    rng = np.random.default_rng(0)
    values = [v.numpy() for v in model.variables]
    for k, variable in enumerate(model.variables):
        if variable.path.endswith(("gamma", "beta", "mean", "variance")):
            values[k] = rng.uniform(0.5, 1.5, variable.shape).astype(np.float32)
    settings = {"model": name, "precision": precision}
    return loading.Trained("a test", settings, SHAPE, 10, tuple(values))


@pytest.mark.training
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["cnn", "probe", pytest.param("resnet18", marks=pytest.mark.slow)]
)
def test_plain_keras_and_a_saved_model_predict_the_same_bits(name, precision, tmp_path):
    found = make_trained(name, precision)
    images = make_examples(100, shape=SHAPE).images
    strategy = make_strategy(2)
    expected = prediction.predict(strategy, loading.build(found, strategy), images)
    assert np.unique(expected).size > 500  # 100 examples, no two alike

    model = loading.build(found)
    export.write_keras(model, tmp_path / "model.keras")
    export.write_saved_model(model, tmp_path / "saved")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert not any("call" in vars(layer) for layer in plain.layers)
    scaled = images * np.float32(1 / 255)
    logits = plain.predict(scaled, batch_size=100, verbose=0)
    probabilities = tf.nn.softmax(tf.cast(logits, tf.float32)).numpy()
    np.testing.assert_array_equal(probabilities, expected)

    serve = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    served = serve(images=tf.constant(images))
    np.testing.assert_array_equal(served["probabilities"], expected)
    np.testing.assert_array_equal(served["classes"], expected.argmax(axis=1))


call = make_call(export_command.main, export_command.ExportConfig, export_command.check)


def test_the_command_writes_both_from_a_checkpoint(finished_run, tmp_path, capsys):
    best = finished_run / "checkpoints" / "best.npz"
    keras_file, saved = tmp_path / "best.keras", tmp_path / "1"
    code, out, err = call(
        capsys, best, f"--keras_file={keras_file}", f"--saved_model={saved}"
    )
    assert (code, err) == (0, "") and out.count("\n") == 2
    assert f"wrote {saved}: cnn of {best}" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "best.keras"]
    model = keras.models.load_model(keras_file)
    found = loading.find(best, pytest.fail)
    for variable, value in zip(model.variables, found.variables, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["{run}"], "give keras_file, saved_model or both"),
        (["{run}", "--keras_file=a.h5"], "a name that ends in .keras"),
        (
            ["{run}", "--saved_model={run}"],
            "must be a path where nothing exists yet: got",
        ),
        (
            ["{run}", "--saved_model={run}/a.keras", "--keras_file={run}/a.keras"],
            "other",
        ),
        (["{run}", "--saved_model=/proc/a"], "/proc/a can't be written"),
        (["{run}", "--saved_model=~nobody_there/a"], "names an unknown user"),
        (
            ["{run}", "--saved_model={run}/a/b"],
            "saved_model must be in an existing folder: got",
        ),
        (["--saved_model={run}/a"], "one run directory or checkpoint: got ()"),
    ],
)
def test_wrong_input_is_one_line(finished_run, capsys, argv, says):
    before = sorted(finished_run.rglob("*"))
    argv = [a.replace("{run}", str(finished_run)) for a in argv]
    code, out, err = call(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and says in err
    assert sorted(finished_run.rglob("*")) == before
