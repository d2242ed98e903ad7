"""A whole run: what it leaves behind is complete, true and repeatable."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfmirror import command, config, errors, hardware
from tfmirror.data import datasets, pipeline
from tfmirror.parallel import devices, gradients, optimizers
from tfmirror.reporting import plots
from tfmirror.rundir import environment
from tfmirror.training import progress, run, setup, terminal

SUMMARY_KEYS = (
    "model input_shape dataset num_classes num_train_examples num_eval_examples "
    "class_names num_replicas "
    "num_workers devices stand_in_devices global_batch_size num_microbatches "
    "precision seed trace_seconds epochs skipped_steps final_eval_accuracy "
    "weights_sha256"
).split()
EPOCH_KEYS = (
    "epoch train_loss train_accuracy eval_loss eval_accuracy train_seconds "
    "eval_seconds images_per_second learning_rate skipped_steps"
).split()

SHORT = config.TrainConfig(
    gpus=2, epochs=2, limit_train_examples=300, limit_eval_examples=75
)


def train(folder, **changes):
    return run.train(dataclasses.replace(SHORT, workdir=str(folder), **changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(run directory, summary) of a short run on two replicas."""
    folder = tmp_path_factory.mktemp("run")
    return folder, train(folder)


@pytest.mark.training
def test_the_run_directory_is_complete(finished):
    folder, summary = finished
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "environment.json", "metrics.jsonl", "tensorboard",
        "summary.json", "model.keras", "plots", "checkpoints", ".lock",
    }  # fmt: skip
    written = json.loads((folder / "summary.json").read_text())
    assert list(written) == SUMMARY_KEYS
    assert [list(record) for record in written["epochs"]] == [EPOCH_KEYS] * 2
    assert summary == written | {"workdir": str(folder)}


@pytest.mark.training
def test_the_summary_says_what_was_done(finished):
    _, summary = finished
    assert summary["num_replicas"] == 2 and summary["devices"] == ["CPU:0", "CPU:1"]
    assert summary["stand_in_devices"] is True
    assert (summary["num_train_examples"], summary["num_eval_examples"]) == (300, 75)
    assert summary["global_batch_size"] == 128 and summary["trace_seconds"] > 0
    for record in summary["epochs"]:  # accuracies are counts over all examples
        assert record["train_accuracy"] * 300 == pytest.approx(
            round(record["train_accuracy"] * 300), abs=1e-9
        )
        assert record["eval_accuracy"] * 75 == pytest.approx(
            round(record["eval_accuracy"] * 75), abs=1e-9
        )
    assert [r["learning_rate"] for r in summary["epochs"]] == pytest.approx([0.3] * 2)
    assert [r["skipped_steps"] for r in summary["epochs"]] == [0, 0]
    assert summary["skipped_steps"] == 0
    assert summary["final_eval_accuracy"] == summary["epochs"][-1]["eval_accuracy"]


@pytest.mark.training
def test_config_json_has_every_setting_resolved(finished):
    folder, _ = finished
    written = json.loads((folder / "config.json").read_text())
    assert written.pop("order_version") == pipeline.ORDER_VERSION
    assert list(written) == [f.name for f in dataclasses.fields(config.TrainConfig)]
    assert None not in written.values()
    assert (written["gpus"], written["learning_rate"]) == (2, 0.3)


@pytest.mark.training
def test_plain_keras_opens_the_model_and_gets_the_last_accuracy(finished):
    folder, summary = finished
    model = keras.saving.load_model(folder / "model.keras")
    evaluation = datasets.load("digits", limit_eval_examples=75).eval
    logits = model.predict(evaluation.images / np.float32(255), verbose=0)
    accuracy = (logits.argmax(axis=1) == evaluation.labels).mean()
    assert accuracy == pytest.approx(summary["final_eval_accuracy"], abs=1e-9)


@pytest.mark.slow
@pytest.mark.training
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(finished, tmp_path):
    _, summary = finished
    again = train(tmp_path / "again", steps_per_loop=1)
    assert again["weights_sha256"] == summary["weights_sha256"]
    assert again["epochs"][-1]["train_loss"] == summary["epochs"][-1]["train_loss"]
    other = train(tmp_path / "other", seed=1, epochs=1)
    assert other["weights_sha256"] != summary["weights_sha256"]


@pytest.mark.training
@pytest.mark.parametrize("num_replicas", [1, 4])
def test_other_numbers_of_replicas_train_alike(finished, tmp_path, num_replicas):
    _, summary = finished
    other = train(tmp_path / "run", gpus=num_replicas, global_batch_size=128)
    first, expected = other["epochs"][0], summary["epochs"][0]
    assert first["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)


@pytest.mark.training
def test_a_loss_that_explodes_stops_the_run(tmp_path):
    with pytest.raises(
        errors.TrainingStoppedError, match="step 2 .* replica 0, microbatch 0"
    ):
        train(tmp_path / "run", learning_rate=1e30)
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.training
@pytest.mark.parametrize("unit", ["1epoch", "1steps"])
def test_a_variable_that_overflows_is_not_saved(tmp_path, monkeypatch, unit):
    """Adam never changes a weight again whose second moment is infinite."""
    prepare = setup.prepare

    def prepare_with_overflow(*arguments):
        built = prepare(*arguments)
        name = next(n for n in built.variables if n.endswith("kernel_velocity"))
        moment = built.variables[name]
        moment.assign(np.full(moment.shape, np.inf))
        return built

    monkeypatch.setattr(setup, "prepare", prepare_with_overflow)
    with pytest.raises(errors.TrainingStoppedError, match="finite: .*kernel_velocity;"):
        train(tmp_path, optimizer="adam", checkpoint_every=unit)
    assert not list(tmp_path.glob("checkpoints/*"))


@pytest.mark.training
def test_a_float16_run_that_never_steps_stops_with_code_3(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(optimizers, "INITIAL_LOSS_SCALE", 4.0)
    whole = gradients.microbatch_gradients

    def overflowing(*arguments, **options):
        sums = whole(*arguments, **options)
        return sums._replace(gradients=[g * np.inf for g in sums.gradients])

    monkeypatch.setattr(gradients, "microbatch_gradients", overflowing)
    code = command.run_and_return_exit_code(
        run.train,
        config.TrainConfig,
        None,
        check=config.check,
        argv=[
            "--gpus=2", "--precision=float16", "--limit_train_examples=300",
            "--epochs=2", f"--workdir={tmp_path / 'run'}",
        ],
    )  # fmt: skip
    assert code == command.EXIT_STOPPED
    assert "error: step 3 (epoch 1) was not taken" in capsys.readouterr().err
    assert not (tmp_path / "run" / "summary.json").exists()


def test_the_environment_is_plain_values():
    described = environment.describe(devices.set_up(2, "cpu"))
    assert json.loads(json.dumps(described)) == described
    assert described["devices"] == ["CPU:0", "CPU:1"]
    for key in ("tensorflow", "keras", "num_cpus", "intra_op_threads", "cpu_flags"):
        assert key in described


def test_gpus_their_driver_and_cuda_are_described(monkeypatch, tmp_path):
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue")
    monkeypatch.setattr(hardware, "NVIDIA_DRIVER", driver)
    gpus = ["A100", "A100", "H200"]  # as TensorFlow lists them
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(
        tf.config.experimental,
        "get_device_details",
        lambda device: {"device_name": f"NVIDIA {device}"},
    )
    build = {"cuda_version": "12.5.1", "cudnn_version": "9"}
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: build)
    used = devices.Devices(("GPU:1", "GPU:2"), are_stand_ins=False)
    assert environment.describe_gpus(used) == {
        "gpus": ["NVIDIA A100", "NVIDIA H200"], "nvidia_driver": "550.54.15",
        "cuda": "12.5.1", "cudnn": "9",
    }  # fmt: skip
    stand_ins = devices.Devices(("CPU:0",), are_stand_ins=True)
    assert environment.describe_gpus(stand_ins) == {
        "gpus": [], "nvidia_driver": "", "cuda": "", "cudnn": ""
    }  # fmt: skip


@pytest.mark.training
def test_a_picture_that_can_not_be_drawn_is_a_warning(tmp_path, monkeypatch, capsys):
    def fail(runs):
        raise RuntimeError("no font\nfound")

    with monkeypatch.context() as patch:
        patch.setattr(plots, "draw_curves", fail)
        summary = train(tmp_path, epochs=1)
    assert (
        f"warning: the curves are not drawn (no font found); to draw them later: "
        f"python -m tfmirror.report '{tmp_path}'\n" in capsys.readouterr().out
    )
    assert json.loads((tmp_path / "summary.json").read_text())["epochs"]
    assert not (tmp_path / "plots" / "curves.png").exists()
    assert train(tmp_path, epochs=1, resume="auto") == summary


@pytest.mark.training
def test_the_settings_are_there_before_anything_is_printed(tmp_path, monkeypatch):
    """A reader that has left, as in `train | head -1`, leaves a run to resume."""
    folder, there = tmp_path / "run", []

    def leave(self, text):
        there.extend(path.name for path in folder.iterdir())
        raise BrokenPipeError

    monkeypatch.setattr(terminal.Terminal, "print_line", leave)
    with pytest.raises(BrokenPipeError):
        train(folder, epochs=1, resume="auto")
    assert {"config.json", "environment.json"} <= set(there)
    monkeypatch.undo()
    assert train(folder, epochs=1, resume="auto")["epochs"][-1]["epoch"] == 1


@pytest.mark.parametrize(
    ("flag", "warns"), [("amx_bf16", False), ("avx512_bf16", False), ("avx2", True)]
)
def test_bfloat16_without_instructions_for_it_is_warned_of(
    tmp_path, monkeypatch, flag, warns
):
    (tmp_path / "cpuinfo").write_text(f"model name: A\nflags: fpu {flag}\n")
    monkeypatch.setattr(hardware, "CPUINFO", tmp_path / "cpuinfo")
    settings = config.TrainConfig(precision="bfloat16")
    assert bool(progress.extra_lines(settings)) == warns
    assert progress.extra_lines(config.TrainConfig()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_chapters_run_on_two_replicas_learns(request, tmp_path, name):
    folder = request.getfixturevalue(f"{name}_folder")
    settings = config.TrainConfig(
        gpus=2, dataset=name, data_dir=folder, epochs=2, workdir=str(tmp_path)
    )
    accuracy = run.train(settings)["final_eval_accuracy"]
    assert accuracy > {"mnist": 0.965, "fashion_mnist": 0.75}[name]


@pytest.mark.parametrize(("skipped", "is_warned"), [(0, False), (4, False), (5, True)])
def test_more_than_half_of_an_epoch_skipped_is_a_warning(skipped, is_warned):
    record = {"epoch": 3, "skipped_steps": skipped}
    lines = progress.skip_warnings(record, steps_per_epoch=8)
    assert len(lines) == is_warned
    assert all(line.startswith("warning: 5 of 8 steps of epoch 3") for line in lines)
