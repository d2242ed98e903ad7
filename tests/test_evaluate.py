"""The command evaluate gives the run's own figures, on any number of devices."""

import dataclasses
import json
import math
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import (
    FakeThreads,
    make_call,
    make_examples,
    watch_threads,
    write_idx_folder,
)

from tfmirror import config, evaluate, hardware, report
from tfmirror.data import datasets
from tfmirror.reporting import comparison, page
from tfmirror.rundir import checkpoints, reader
from tfmirror.rundir.state import RunProgress
from tfmirror.training import run

call = make_call(evaluate.main, evaluate.EvaluateConfig, evaluate.check)


@pytest.fixture(scope="module")
def of_12_classes(tmp_path_factory):
    """(run directory, evaluation examples, their logits) of a run on two replicas."""
    folder = tmp_path_factory.mktemp("of 12 classes")
    train, held_out = (make_examples(n, seed=n, num_classes=12) for n in (40, 53))
    settings = config.TrainConfig(
        gpus=2,
        dataset="own",
        data_dir=write_idx_folder(folder / "data", train, held_out),
        microbatches=4,
        global_batch_size=16,
        epochs=2,
        learning_rate=0.02,
        workdir=str(folder / "run"),
    )
    run.train(settings)
    model = keras.models.load_model(folder / "run" / "model.keras")
    logits = model.predict(held_out.images / np.float32(255), verbose=0)
    return folder / "run", held_out, logits


def last_record(folder):
    """Returns the record of a run's last epoch."""
    return json.loads((folder / "summary.json").read_text())["epochs"][-1]


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_it_is_the_accuracy_of_the_last_epochs_line(finished_run, capsys, num_replicas):
    gpus = f"--gpus={num_replicas}"
    code, out, _ = call(capsys, str(finished_run), gpus, "--json")
    report, record = json.loads(out), last_record(finished_run)
    assert code == 0 and report["num_eval_examples"] == 75
    assert report["eval_accuracy"] == record["eval_accuracy"]
    assert report["num_correct"] == round(75 * record["eval_accuracy"])
    if num_replicas <= 2:  # the microbatches are the same
        assert report["eval_loss"] == record["eval_loss"]
    assert report["eval_loss"] == pytest.approx(record["eval_loss"], rel=1e-6)


@pytest.mark.training
def test_the_top_5_accuracy_of_more_than_ten_classes_is_in_all_records(
    of_12_classes, capsys
):
    folder, held_out, logits = of_12_classes
    first = np.argsort(-logits, axis=1)[:, :5] == held_out.labels[:, np.newaxis]
    expected = first.sum() / 53
    assert first[:, 0].sum() / 53 < expected < 1
    assert last_record(folder)["eval_top5_accuracy"] == expected
    line = (folder / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(line)["eval/top5_accuracy"] == expected
    for gpus in (1, 2, 4):
        code, out, _ = call(capsys, str(folder), f"--gpus={gpus}", "--json")
        assert code == 0 and json.loads(out)["eval_top5_accuracy"] == expected
    assert f" top-5 {expected:.4f}  " in call(capsys, str(folder))[1]
    (row,) = comparison.compare([reader.read(folder)])
    assert row.final_top5 == expected
    assert f", top-5 {expected:.4f}" in report.describe(row)
    assert f"<td>{expected:.4f}</td>" in page.make_page([row.run], b"")


@pytest.mark.training
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_each_example_is_in_the_confusion_matrix_once_whatever_the_replicas(
    of_12_classes, tmp_path, capsys, gpus
):
    folder, held_out, logits = of_12_classes
    folder = shutil.copytree(folder, tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    picture = tmp_path / "confusion.png"
    argv = [folder, f"--gpus={gpus}", "--per_class", f"--plot_file={picture}", "--json"]
    code, out, _ = call(capsys, *argv)
    expected = np.zeros((12, 12), int)
    np.add.at(expected, (held_out.labels, logits.argmax(axis=1)), 1)
    found = json.loads(out)
    assert code == 0 and found["confusion_matrix"] == expected.tolist()
    assert found["num_correct"] == np.trace(expected) > 0
    for k, one in enumerate(found["classes"]):
        assert one["num_examples"] == (held_out.labels == k).sum()
        assert one["num_correct"] == expected[k, k]
    assert picture.read_bytes().startswith(b"\x89PNG")
    run_record = reader.read(folder, pytest.fail)
    assert run_record.confusion.counts.tolist() == expected.tolist()
    html = page.make_page([run_record], b"")
    assert "<h2>Classes</h2>" in html and html.count("data:image/png") == 2
    written = [p for p in folder.rglob("*") if p.is_file() and p not in before]
    assert [p.name for p in written] == ["per_class.json"]
    assert {p: p.stat().st_mtime_ns for p in before} == before


@pytest.mark.training
def test_classes_are_named_and_kept_only_of_the_runs_own_data(
    finished_run, tmp_path, capsys, monkeypatch
):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    load = datasets.load

    def load_named(*args, **kwargs):
        names = ("zero", "<one>")
        return dataclasses.replace(load(*args, **kwargs), class_names=names)

    monkeypatch.setattr(datasets, "load", load_named)
    for argv in (
        [folder / "checkpoints" / "best.npz"],
        [folder, "--dataset=synthetic"],
        [folder, "--limit_eval_examples=20"],
    ):
        code, out, _ = call(capsys, *argv, "--per_class")
        assert code == 0 and "\n1 <one> " in out and "wrote" not in out
        assert not (folder / "per_class.json").exists()
    code, out, _ = call(capsys, folder, "--per_class")
    assert code == 0 and out.endswith(f"wrote {folder / 'per_class.json'}\n")
    assert "1 &lt;one&gt;" in page.make_page([reader.read(folder)], b"")


@pytest.mark.training
def test_classes_of_other_weights_or_damaged_are_left_out_of_a_report(
    finished_run, tmp_path, capsys
):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    assert call(capsys, folder, "--per_class")[0] == 0
    path, said = folder / "per_class.json", []
    content = json.loads(path.read_text())
    for text, says in (
        (json.dumps(content | {"weights_sha256": "ab"}), "is of other weights than"),
        (json.dumps(content | {"confusion_matrix": 1}), "is damaged (its confusion"),
        ("{", "is damaged"),
    ):
        path.write_text(text)
        assert reader.read(folder, said.append).confusion is None
        assert len(said) == 1 and says in said.pop()


@pytest.mark.training
def test_a_run_that_cannot_be_written_to_is_still_evaluated(
    finished_run, tmp_path, capsys
):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    (folder / "per_class.json").mkdir()
    code, out, _ = call(capsys, folder, "--per_class")
    assert code == 0 and "per_class.json can't be written" in out


@pytest.mark.training
def test_ten_classes_have_no_top_5_accuracy(finished_run, capsys):
    assert "top" not in call(capsys, str(finished_run), "--json")[1]
    assert "top" not in (finished_run / "summary.json").read_text()
    assert "Top-5" not in page.make_page([reader.read(finished_run)], b"")
    newest = max((finished_run / "checkpoints").glob("step-*"))
    assert b"num_top5" not in newest.read_bytes()


@pytest.mark.training
def test_a_run_from_before_top_5_was_counted_is_resumed_and_reported(
    of_12_classes, tmp_path
):
    folder, _, _ = of_12_classes
    shutil.copytree(folder, tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    state = checkpoints.read(newest)
    records = [dict(record) for record in state.position.records]
    for record in records:
        del record["eval_top5_accuracy"]
    state = dataclasses.replace(state, position=RunProgress(tuple(records)))
    newest.write_bytes(checkpoints.to_bytes(state))
    settings = {k: v for k, v in state.settings.items() if k != "order_version"}
    settings |= {"workdir": str(tmp_path / "run"), "epochs": 3, "resume": "auto"}
    settings |= {"per_replica_batch_size": None, "resume_override": "epochs"}
    run.train(config.TrainConfig(**settings))
    read = reader.read(tmp_path / "run")
    counted = ["eval_top5_accuracy" in record for record in read.records]
    assert counted == [False, False, True]
    assert math.isnan(read.values("eval_top5_accuracy")[0])
    assert comparison.compare([read])[0].final_top5 > 0


@pytest.mark.slow
@pytest.mark.training
def test_with_fixed_microbatches_the_loss_has_the_same_bits(
    tmp_path, capsys, monkeypatch
):
    compiled, kept_apart = watch_threads(monkeypatch)
    settings = config.TrainConfig(
        gpus=2,
        microbatches=4,
        global_batch_size=32,
        limit_train_examples=64,
        limit_eval_examples=45,  # the last batch has 13
        epochs=1,
        workdir=str(tmp_path / "run"),
    )
    run.train(settings)
    capsys.readouterr()
    for gpus in (1, 2, 3, 4):
        code, out, _ = call(capsys, settings.workdir, f"--gpus={gpus}", "--json")
        report, record = json.loads(out), last_record(tmp_path / "run")
        assert code == 0 and report["eval_loss"] == record["eval_loss"]
        assert report["eval_accuracy"] == record["eval_accuracy"]
    # One segment of training, and two each of five evaluations.
    assert compiled == [2] * 11
    assert kept_apart == [4] * 5  # of the run, and of four evaluations


@pytest.mark.parametrize(
    ("model", "of_run", "threads"),
    [
        ("", {"microbatches": 4}, (1, 0)),  # a core each
        ("", {"intra_op_threads": 2, "inter_op_threads": 3}, (2, 3)),
        ("checkpoints/best.npz", {"microbatches": 4}, (1, 0)),
    ],
)
def test_an_evaluation_has_the_threads_of_the_run(
    finished_run, tmp_path, monkeypatch, model, of_run, threads
):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    rewrite_settings(folder, of_run)
    found = FakeThreads(monkeypatch)
    monkeypatch.setattr(hardware, "num_cores", lambda: 4)
    evaluate.main(evaluate.EvaluateConfig((str(folder / model),), device_type="cpu"))
    assert (found.intra, found.inter) == threads


@pytest.mark.slow
def test_a_process_that_evaluates_has_the_threads_of_the_run(finished_run, tmp_path):
    """The real TensorFlow, which keeps the threads that it starts with."""
    folder = shutil.copytree(finished_run, tmp_path / "run")
    rewrite_settings(folder, {"microbatches": 4, "inter_op_threads": 3})
    code = (
        "import os\n"
        "os.sched_getaffinity = lambda pid: range(4)\n"
        "import tensorflow as tf\n"
        "from tfmirror import evaluate\n"
        f"arguments = ({str(folder / 'checkpoints' / 'best.npz')!r},)\n"
        "evaluate.main(evaluate.EvaluateConfig(arguments, device_type='cpu'))\n"
        "threads = tf.config.threading\n"
        "print(threads.get_intra_op_parallelism_threads())\n"
        "print(threads.get_inter_op_parallelism_threads())\n"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    *_, intra_op, inter_op = done.stdout.split()
    assert (int(intra_op), int(inter_op)) == (1, 3)


def rewrite_settings(folder, changes):
    """Changes settings of the run in `folder`: in its config.json and its best.npz."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    best = folder / "checkpoints/best.npz"
    state = checkpoints.read(best)
    state = dataclasses.replace(state, settings=state.settings | changes)
    best.write_bytes(checkpoints.to_bytes(state))


def test_text_says_what_was_evaluated_on_what(finished_run, capsys):
    code, out, err = call(capsys, str(finished_run))
    accuracy = last_record(finished_run)["eval_accuracy"]
    assert (code, err) == (0, "")
    assert f"model: cnn of {finished_run}" in out
    assert "data: digits, 75 evaluation examples\nsource: embedded\n" in out
    assert "devices: CPU:0, CPU:1 (logical CPU devices stand in" in out
    assert f" acc {accuracy:.4f}  {round(75 * accuracy)} of 75 correct  " in out


def test_other_data_are_taken_whole(finished_run, capsys):
    code, out, _ = call(capsys, str(finished_run), "--dataset=synthetic", "--json")
    assert code == 0 and json.loads(out)["num_eval_examples"] == 1024


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "arguments must be one run directory or checkpoint: got ()"),
        (["{run}", "b"], "one run directory or checkpoint"),
        (["{run}", "--dataset=nowhere"], "dataset must be"),
        (["{run}", "--global_batch_size=1"], "at least 2, the number of microbatches"),
        (["{run}", "--global_batch_size=0"], "global_batch_size must be at least 1"),
        (["{run}", "--limit_eval_examples=-1"], "at least 0"),
        (["{run}/plots"], "holds no config.json"),
        (["{run}", "--plot_file=a.png"], "plot_file needs per_class: got plot_file='a"),
        (["{run}", "--per_class", "--plot_file=a.jpg"], "must be a name in .png: got"),
        (
            ["{run}", "--per_class", "--plot_file=no/a.png"],
            "file in an existing folder",
        ),
    ],
)
def test_wrong_input_is_one_line(finished_run, capsys, argv, says):
    argv = [text.replace("{run}", str(finished_run)) for text in argv]
    code, _, err = call(capsys, *argv)
    assert code == 2
    assert err.startswith("error: ") and err.count("\n") == 1 and says in err


def test_data_of_another_shape_are_refused(finished_run, tmp_path, capsys):

    examples = make_examples(8, shape=(20, 20, 1))
    data = write_idx_folder(tmp_path / "data", examples, examples)
    argv = [str(finished_run), "--dataset=own", f"--data_dir={data}"]
    code, _, err = call(capsys, *argv)
    assert code == 2 and "must have images of shape [28, 28, 1]" in err
    assert "got [20, 20, 1]" in err


def test_it_writes_nothing_into_the_run(finished_run, capsys, tmp_path):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert call(capsys, str(folder))[0] == 0
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before
