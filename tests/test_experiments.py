"""Experiments run end to end on a little data."""

import importlib.util
import json
import pathlib
import re
import types

import pytest
from helpers import write_idx_folder

from tfmirror import command, recipes
from tfmirror.data import datasets

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "experiments"


def load_experiment(name):
    """Returns experiments/<name>.py as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def digits_as_mnist(tmp_path):
    digits = datasets.load("digits")
    return write_idx_folder(tmp_path / "data", digits.train, digits.eval)


@pytest.mark.slow
def test_mnist_cnn_trains_the_chapters_two_runs_afresh(
    digits_as_mnist, tmp_path, monkeypatch, capsys
):
    experiment = load_experiment("mnist_cnn")
    monkeypatch.setenv("HOME", str(tmp_path))
    argv = [f"--data_dir={digits_as_mnist}", "--workdir=~/out"]
    argv += ["--epochs=2", "--num_seeds=2", "--limit_train_examples=400"]
    code = command.run_and_return_exit_code(
        experiment.main,
        experiment.ExperimentConfig,
        "",
        check=experiment.check,
        argv=argv,
    )
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    keys = ("num_replicas", "global_batch_size", "seed")
    assert [tuple(r[key] for key in keys) for r in results] == [
        (1, 64, 0), (1, 64, 1), (2, 128, 0), (2, 128, 1),
    ]  # fmt: skip
    assert len({r["weights_sha256"] for r in results}) == 4
    table = (tmp_path / "out" / "table.md").read_text()
    assert table in out and table.count("\n") == 4
    accuracies = sorted(r["final_eval_accuracy"] for r in results[:2])
    row = f"| 1 | 64 | 0.3 | {sum(accuracies) / 2:.4f} ({accuracies[0]:.4f} to "
    assert row + f"{accuracies[1]:.4f}) |" in table
    for seed in (0, 1):
        cells = (f"{r['epochs'][1]['eval_accuracy']:.4f}" for r in results[seed::2])
        ending = "\n 2 | " + r" | ".join(rf" *[\d.]+ s {cell}" for cell in cells)
        assert re.search(ending.replace("|", r"\|"), out)


@pytest.mark.slow
def test_microbatch_cost_prints_a_row_for_each_number_of_replicas(
    digits_as_mnist, monkeypatch, capsys
):
    experiment = load_experiment("microbatch_cost")
    monkeypatch.setattr(experiment, "GLOBAL_BATCH_SIZES", (64,))
    argv = [f"--data_dir={digits_as_mnist}", "--repetitions=1", "--seconds=0.05"]
    assert call(experiment, experiment.ExperimentConfig, *argv) == 0
    out, err = capsys.readouterr()
    *_, one, two = out.splitlines()
    ratio = r" ([\d.]+) \(\{0} to \{0}\) \|"
    ending = r" \| 8 \| 8 \| 64 \| [\d,]+ \|" + ratio.format(1) + ratio.format(2)
    assert err == "" and len(out.splitlines()) == 4
    assert re.fullmatch(r"\| 1" + ending, one) and re.fullmatch(r"\| 2" + ending, two)


def call(experiment, settings_class, *argv):
    """Calls an experiment; returns (exit code, output)."""
    return command.run_and_return_exit_code(
        experiment.main, settings_class, "", check=experiment.check, argv=list(argv)
    )


@pytest.mark.training
def test_tracing_cost_prints_a_row_for_each_model(monkeypatch, capsys):
    experiment = load_experiment("tracing_cost")
    monkeypatch.setattr(experiment, "MODELS", ("cnn",))
    monkeypatch.setattr(experiment, "MICROBATCHES", (2, 4))
    # Tracing takes 2 s, then 5 s.
    clock = types.SimpleNamespace(perf_counter=iter([0.0, 2.0, 2.0, 7.0]).__next__)
    monkeypatch.setattr(experiment, "time", clock)
    assert call(experiment, experiment.ExperimentConfig, "--repetitions=1") == 0
    out, err = capsys.readouterr()
    assert err == "" and "| model | M = 2, seconds | M = 4, seconds | ratio" in out
    assert "| cnn | 2.00 | 5.00 | 2.50 (2.50 to 2.50) |" in out


@pytest.mark.slow
@pytest.mark.training
def test_time_to_accuracy_trains_the_preset_with_every_seed(
    digits_as_mnist, tmp_path, capsys
):
    experiment = load_experiment("time_to_accuracy")
    workdir = tmp_path / "out"
    argv = [f"--data_dir={digits_as_mnist}", f"--workdir={workdir}", "--num_seeds=2"]
    argv += ["--limit_train_examples=600", "--accuracy=0.05"]
    assert call(experiment, experiment.ExperimentConfig, *argv) == 0
    summaries = [
        json.loads((workdir / f"seed{seed}" / "summary.json").read_text())
        for seed in (0, 1)
    ]
    assert len({s["weights_sha256"] for s in summaries}) == 2
    settings = json.loads((workdir / "seed1" / "config.json").read_text())
    preset = recipes.PRESETS["fast"]
    assert {name: settings[name] for name in preset} == preset
    row = capsys.readouterr().out.splitlines()[-1]
    least, most = sorted(s["final_eval_accuracy"] for s in summaries)
    assert row.startswith("| fast | 1 | 0.05: 2 of 2 | ")
    assert row.endswith(f"({least:.4f} to {most:.4f}) |")


@pytest.mark.parametrize("accuracy", [0.0, 1.5, 99.0])
def test_an_accuracy_that_no_run_can_have_is_refused_before_training(accuracy, capsys):
    experiment = load_experiment("time_to_accuracy")
    assert call(experiment, experiment.ExperimentConfig, f"--accuracy={accuracy}") == 2
    assert "accuracy must be in (0, 1]" in capsys.readouterr().err


def test_seconds_to_an_accuracy_are_those_of_the_first_epoch_that_has_it():
    seconds_to = load_experiment("time_to_accuracy").seconds_to
    epochs = [
        {"train_seconds": 5.0, "eval_seconds": 1.0, "eval_accuracy": accuracy}
        for accuracy in (0.9, 0.99, 0.98, 0.995)
    ]
    assert seconds_to(epochs, 0.99) == 12.0
    assert seconds_to(epochs, 0.995) == 24.0
    assert seconds_to(epochs, 0.999) is None


@pytest.mark.slow
def test_fashion_resnet18_trains_both_runs_once_and_draws_them(
    digits_as_mnist, tmp_path, monkeypatch, capsys
):
    experiment = load_experiment("fashion_resnet18")
    monkeypatch.setattr(experiment, "RUNS", ((1, 4, 0.1), (2, 8, 0.2)))
    monkeypatch.setenv("HOME", str(tmp_path))
    workdir = tmp_path / "out"
    argv = [f"--data_dir={digits_as_mnist}", "--workdir=~/out", "--epochs=2"]
    argv += ["--limit_train_examples=8", "--limit_eval_examples=4"]
    assert call(experiment, experiment.ExperimentConfig, *argv) == 0
    out = capsys.readouterr().out
    lines = re.findall(r"test acc: ([\d.]+), [\d.]+ sec/epoch on \[(.*)\]", out)
    assert [devices for _, devices in lines] == ["CPU:0", "CPU:0, CPU:1"]
    table = (workdir / "table.md").read_text()
    assert table in out and "| 1 | 4 | 0.1 | " in table and "| 2 | 8 | 0.2 |" in table
    assert (workdir / "accuracy.png").stat().st_size > 10_000
    settings = json.loads((workdir / "2 replicas" / "config.json").read_text())
    assert (settings["model"], settings["init"]) == ("resnet18", "normal")
    assert call(experiment, experiment.ExperimentConfig, *argv) == 0
    again = capsys.readouterr().out
    assert "traced and compiled" in out and "traced and compiled" not in again
    assert table in again


@pytest.mark.slow
def test_sweep_runs_each_combination_once_and_goes_on_after_an_interruption(
    tmp_path, monkeypatch, capsys
):
    experiment = load_experiment("sweep")
    monkeypatch.setenv("HOME", str(tmp_path))
    argv = ["--workdir=~", "--epochs=1", "--limit_train_examples=64"]
    argv += ["--limit_eval_examples=32"]
    lists = ["--gpus=1,2", "--lr_scaling=none,linear"]
    assert call(experiment, experiment.SweepConfig, *argv, *lists) == 0
    out = capsys.readouterr().out
    assert out.count("traced and compiled") == 4
    table = (tmp_path / "table.md").read_text()
    assert table in out and table.startswith("| lr_scaling | gpus | test accuracy |\n")
    assert (tmp_path / "heat_map.png").stat().st_size > 5_000
    folders = sorted(p.name for p in tmp_path.iterdir() if p.is_dir())
    assert "lr_scaling=linear warmup_epochs=0 epochs=1 seed=0 gpus=2" in folders
    # One of them did not come to its end, and a list has grown.
    (tmp_path / folders[0] / "summary.json").unlink()
    lists[0] = "--gpus=1,2,3"
    assert call(experiment, experiment.SweepConfig, *argv, *lists) == 0
    assert capsys.readouterr().out.count("traced and compiled") == 1 + 2
    assert (tmp_path / folders[0] / "summary.json").exists()
    # The same names with other settings are refused, not mixed.
    argv[2] = "--limit_train_examples=32"
    assert call(experiment, experiment.SweepConfig, *argv, *lists) == 2
    assert "limit_train_examples 64, now 32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--gpus=1,two", "flag --gpus=two"),
        ("--epochs=0", "epochs must be at least 1"),
        ("--lr_scaling=none,log", "lr_scaling must be one of none, linear, sqrt"),
    ],
)
def test_a_wrong_value_in_a_list_is_refused_before_anything_runs(
    argument, says, tmp_path, capsys
):
    experiment = load_experiment("sweep")
    workdir = f"--workdir={tmp_path / 'out'}"
    assert call(experiment, experiment.SweepConfig, workdir, argument) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "out").exists()
