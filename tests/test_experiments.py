"""Experiments run end to end on a little data."""

import importlib.util
import json
import pathlib
import re

import pytest
from helpers import write_idx_folder

from tfmirror import command
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


def test_mnist_cnn_trains_the_chapters_two_runs_afresh(
    digits_as_mnist, tmp_path, capsys
):
    experiment = load_experiment("mnist_cnn")
    argv = [f"--data_dir={digits_as_mnist}", f"--workdir={tmp_path / 'out'}"]
    argv += ["--epochs=2", "--num_seeds=2", "--limit_train_examples=400"]
    code = command.exit_code(
        experiment.main, experiment.ExperimentConfig, "", experiment.check, argv
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


def test_microbatch_cost_prints_a_row_for_each_batch_size(
    digits_as_mnist, monkeypatch, capsys
):
    experiment = load_experiment("microbatch_cost")
    monkeypatch.setattr(experiment, "EXAMPLES_A_TURN", 512)
    argv = [f"--data_dir={digits_as_mnist}", "--repetitions=1"]
    code = command.exit_code(
        experiment.main, experiment.ExperimentConfig, "", experiment.check, argv
    )
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    row = r"\| 8 \| {} \| {} \| [\d,]+ against [\d,]+ \| ([\d.]+) \(\1 to \1\) \|\n"
    assert re.search(
        row.format(16, 128) + row.format(64, 512).replace(r"\1", r"\2"), out
    )
