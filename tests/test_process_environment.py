"""Environments that Keras or TensorFlow can't use are refused in one line."""

import json
import os
import subprocess
import sys

import keras
import pytest
from test_command import (
    ROOT,
    assert_one_line_and_nothing_written,
    elsewhere,
    run_python,
)

from tfmirror import (
    benchmark,
    command,
    config,
    errors,
    export,
    process_environment,
    train,
)
from tfmirror.parallel import devices

__all__ = ["elsewhere"]  # a fixture
TWO = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
ONE = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}


@pytest.fixture
def keras_home(tmp_path, monkeypatch):
    """Returns a function that writes keras.json, and makes Keras' settings those."""
    for name in (
        "KERAS_BACKEND",
        "KERAS_NNX_ENABLED",
        *process_environment.KERAS_NUMBERS,
    ):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "keras"
    folder.mkdir()
    monkeypatch.setenv("KERAS_HOME", str(folder))

    def write(text):
        (folder / "keras.json").write_text(text)

    return write


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            '{"backend": "jax"}',
            "backend must be tensorflow: got 'jax' from .*keras.json",
        ),
        ('{"backend": 1}', "backend must be tensorflow: got 1"),
        (
            '{"floatx": "int8"}',
            "floatx in .*keras.json must be one of float16, .*'int8'",
        ),
        (
            '{"image_data_format": []}',
            "image_data_format in .* must be one of channels_",
        ),
        (
            '{"epsilon": "small"}',
            "epsilon in .* must be a number such as 1e-07: got 'sm",
        ),
        ('{"epsilon": 1}', "epsilon in .* must be a number such as 1e-07: got 1"),
        (
            '{"nnx_enabled": true}',
            "nnx_enabled in .* must be false, or not set: got True",
        ),
        ("[]", "keras.json must be a JSON object: got 'list'"),
    ],
)
def test_a_keras_json_that_keras_can_not_use_is_refused(keras_home, content, says):
    keras_home(content)
    with pytest.raises(errors.InputError, match=says):
        process_environment.check_keras()


@pytest.mark.parametrize(
    "content", ["", "{", '{"backend": "tensorflow"}', "{}", "\xff"]
)
def test_a_keras_json_that_keras_takes_or_passes_over_is_none_of_ours(
    keras_home, content
):
    keras_home(content)
    process_environment.check_keras()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "KERAS_BACKEND",
            "torch",
            "'torch' from KERAS_BACKEND; set KERAS_BACKEND=tens",
        ),
        ("KERAS_NNX_ENABLED", "1", "KERAS_NNX_ENABLED must be false, or not set"),
        ("KERAS_MAX_EPOCHS", "few", "KERAS_MAX_EPOCHS must be a whole number"),
        ("KERAS_MAX_STEPS_PER_EPOCH", "", "KERAS_MAX_STEPS_PER_EPOCH must be a whole"),
    ],
)
def test_variables_that_keras_can_not_use_are_refused(
    keras_home, monkeypatch, name, value, says
):
    monkeypatch.setenv(name, value)
    with pytest.raises(errors.InputError, match=says):
        process_environment.check_keras()


def test_the_variable_overrides_the_file_as_in_keras(keras_home, monkeypatch):
    keras_home('{"backend": "jax"}')
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    process_environment.check_keras()


@pytest.mark.slow
@pytest.mark.training  # starts processes
@pytest.mark.parametrize("home", ["KERAS_HOME", "HOME"])
def test_keras_json_is_looked_for_where_keras_looks(tmp_path, home):
    """Keras, which reads the file itself, is the reference."""
    folder = tmp_path / (".keras" if home == "HOME" else "")
    folder.mkdir(exist_ok=True)
    (folder / "keras.json").write_text('{"epsilon": 0.125}')
    code = (
        "import keras; from tfmirror import process_environment as p;"
        "print(p._read_keras_file(p._keras_file())['epsilon'], keras.config.epsilon())"
    )
    variables = {k: v for k, v in os.environ.items() if not k.startswith("KERAS_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=variables | {home: str(tmp_path)},
    )
    assert done.stdout == "0.125 0.125\n", done.stderr


@pytest.mark.training
@pytest.mark.parametrize("name", ["train", "inspect_replicas", "verify", "benchmark"])
def test_another_backend_is_one_line_in_every_command_that_builds_models(name):
    done = run_python("-m", f"tfmirror.{name}", KERAS_BACKEND="jax")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: Keras' backend must be tensorflow: got 'jax' from KERAS_BACKEND; set "
        "KERAS_BACKEND=tensorflow\n"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "TF_CONFIG must be a JSON object of a cluster: got ''; unset TF_CONFIG"),
        ("worker", "got 'worker'; unset"),
        ("[]", r"got '\[\]'"),
        ("3", "got '3'"),
        ('{"cluster": 1}', "JSON object of a cluster"),
        ('{"cluster": {"worker": "a:1"}}', "JSON object of a cluster"),
        ("[" * 100_000, r"got '\[{60}\.\.\.'"),
        (json.dumps(TWO), "TF_CONFIG must name one process at most: got 2; unset"),
        ('{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}', "at most: got 2"),
        ('{"cluster": {"worker": {"0": "a:1", "1": "b:1"}}}', "at most: got 2"),
    ],
)
def test_a_tf_config_of_several_processes_or_none_is_refused(monkeypatch, text, says):
    chosen = devices.set_up(2, "cpu")
    monkeypatch.setenv("TF_CONFIG", text)
    for use in (
        lambda: devices.set_up(2, "cpu"),
        lambda: devices.make_strategy(chosen),
    ):
        with pytest.raises(errors.InputError, match=says):
            use()


@pytest.mark.parametrize("value", [{}, {"cluster": {}}, ONE, {"task": {"index": 0}}])
def test_a_tf_config_of_one_process_changes_nothing(monkeypatch, value):
    monkeypatch.setenv("TF_CONFIG", json.dumps(value))
    strategy = devices.make_strategy(devices.set_up(2, "cpu"))
    assert strategy.num_replicas_in_sync == 2
    monkeypatch.delenv("TF_CONFIG")
    without = devices.make_strategy(devices.set_up(2, "cpu"))
    assert strategy.extended.worker_devices == without.extended.worker_devices


@pytest.mark.parametrize(
    ("main", "settings_class", "check"),
    [
        (train.main, config.TrainConfig, config.check),
        (benchmark.main, benchmark.BenchmarkConfig, benchmark.check),
    ],
)
def test_a_wrong_tf_config_is_one_line_and_nothing_is_written(
    elsewhere, monkeypatch, capsys, main, settings_class, check
):
    monkeypatch.setenv("TF_CONFIG", json.dumps(TWO))
    code = command.run_and_return_exit_code(
        main, settings_class, "", check=check, argv=[]
    )
    assert_one_line_and_nothing_written(capsys, code, elsewhere)


def test_export_needs_no_strategy_and_no_tf_config(monkeypatch, finished_run, tmp_path):
    monkeypatch.setenv("TF_CONFIG", "nonsense")
    path = tmp_path / "model.keras"
    export.main(export.ExportConfig((str(finished_run),), keras_file=str(path)))
    assert keras.models.load_model(path).count_params() == 129_068
