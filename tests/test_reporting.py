"""Reports: what is read, what is compared, and what a page may hold."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from tfmirror import command, errors, metrics, report
from tfmirror.reporting import comparison, history, page, plots
from tfmirror.rundir import reader

PNG = b"\x89PNG\r\n\x1a\n"


def write_run(folder, accuracies=(0.5, 0.7), speed=100.0, *, finished=True, **settings):
    """Writes a run directory by hand; returns its path as text."""
    folder.mkdir(parents=True)
    settings = {
        "model": "cnn", "dataset": "digits", "gpus": 1, "global_batch_size": 64,
        "precision": "float32", "epochs": len(accuracies),
    } | settings  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    lines = []
    for epoch, accuracy in enumerate(accuracies, start=1):
        record = {
            "train_loss": 2 - accuracy,
            "train_accuracy": accuracy + 0.1,
            "eval_loss": 2.1 - accuracy,
            "eval_accuracy": accuracy,
            "train_seconds": 10.0,
            "eval_seconds": 2.5,
            "images_per_second": speed,
        }
        names = {metrics.NAMES[key]: value for key, value in record.items()}
        lines.append(json.dumps({"step": epoch * 7, "epoch": epoch} | names) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    if finished:
        summary = {"stand_in_devices": True, "final_eval_accuracy": accuracies[-1]}
        (folder / "summary.json").write_text(json.dumps(summary))
    return str(folder)


def call(*argv):
    """Calls the command; returns its exit code."""
    return command.run_and_return_exit_code(
        report.main, report.ReportConfig, "", check=report.check, argv=list(argv)
    )


def test_a_run_is_read_as_it_was_written(tmp_path):
    run = reader.read(write_run(tmp_path / "a", gpus=2))
    assert (run.name, run.num_replicas, run.is_finished) == ("a", 2, True)
    assert run.values("eval_accuracy") == [0.5, 0.7] and run.values("epoch") == [1, 2]
    assert run.seconds == [0.0, 12.5, 25.0]
    assert run.images_per_second == 100.0


def test_an_interrupted_run_is_read_up_to_its_last_whole_line(tmp_path):
    folder = tmp_path / "a"
    write_run(folder, (0.5, 0.6, 0.7), finished=False, epochs=5)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 28, "epo')
    run = reader.read(folder)
    assert not run.is_finished and run.values("epoch") == [1, 2, 3]
    assert comparison.compare([run])[0].state == "not finished: 3 of 5 epochs"
    (folder / "metrics.jsonl").unlink()
    run = reader.read(folder)
    assert run.records == [] and run.images_per_second is None


def test_speed_up_and_efficiency_are_relative_to_the_fewest_replicas(tmp_path):
    given = [
        write_run(tmp_path / "four", speed=300.0, gpus=4),
        write_run(tmp_path / "one", speed=100.0, gpus=1),
        write_run(tmp_path / "other", speed=10.0, gpus=2, model="resnet18"),
        write_run(tmp_path / "none", (), finished=False, gpus=8),
    ]
    four, one, other, none = comparison.compare([reader.read(path) for path in given])
    assert (four.speed_up, four.efficiency, four.baseline) == (3.0, 0.75, 2)
    assert four.per_replica == 75.0
    assert (one.speed_up, one.efficiency) == (1.0, 1.0)
    assert (other.speed_up, other.efficiency, other.baseline) == (1.0, 1.0, 3)
    assert none.speed_up is None and none.final_accuracy is None
    assert none.state == "not finished: 0 of 0 epochs"


def test_the_best_accuracy_is_not_the_last_one(tmp_path):
    (row,) = comparison.compare([reader.read(write_run(tmp_path / "a", (0.9, 0.8)))])
    assert (row.best_accuracy, row.final_accuracy) == (0.9, 0.8)


def test_only_settings_that_differ_are_listed(tmp_path):
    given = [reader.read(write_run(tmp_path / str(n), gpus=n, extra=1)) for n in (1, 2)]
    given.append(reader.read(write_run(tmp_path / "3", gpus=2)))
    differing = comparison.differing_settings(given)
    assert differing == {"gpus": [1, 2, 2], "extra": [1, 1, None]}


def test_settings_that_earlier_versions_wrote_differently_do_not_differ(tmp_path):
    values = {"old": True, "new": "crop", "none": False}
    paths = [write_run(tmp_path / n, augment=value) for n, value in values.items()]
    given = [reader.read(path) for path in paths]
    assert comparison.differing_settings(given[:2]) == {}
    assert comparison.differing_settings(given) == {"augment": ["crop", "crop", "none"]}


HOSTILE = """<img src=x onerror=alert(1)> "quoted" & 'such' $x_1$"""


def test_names_and_settings_are_escaped(tmp_path):
    given = write_run(tmp_path / HOSTILE, data_dir="</td><script>alert(2)</script>")
    html = page.make_page([reader.read(given)], PNG)
    assert "<img src=x" not in html and "<script" not in html
    assert "&lt;img src=x onerror=alert(1)&gt; &#34;quoted&#34; &amp;" in html
    assert "&lt;/td&gt;&lt;script&gt;alert(2)" in html


def test_the_page_needs_nothing_beside_it(tmp_path):
    given = [reader.read(write_run(tmp_path / name)) for name in "ab"]
    html = page.make_page(given, PNG)
    sources = re.findall(r"""(?:src|href)=["']?([^"' >]*)""", html)
    assert len(sources) == 1 and sources[0].startswith("data:image/png;base64,")
    assert "url(" not in html and "@import" not in html and "http:" not in html


def test_each_line_holds_the_numbers_that_its_axes_name(tmp_path):
    """Solid: evaluation, dashed: training; the last row is the learning rate."""
    folder = pathlib.Path(write_run(tmp_path / "a"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [
        json.loads(line) | {metrics.NAMES["learning_rate"]: rate}
        for line, rate in zip(lines, (0.3, 0.1), strict=True)
    ]
    (folder / "metrics.jsonl").write_text(
        "".join(f"{json.dumps(r)}\n" for r in records)
    )
    drawn = plots.draw_curves([reader.read(folder)])
    expected = [
        {"--": [1.5, 1.3], "-": [1.6, 1.4]},
        {"--": [0.6, 0.8], "-": [0.5, 0.7]},
        {"-": [0.3, 0.1]},
    ]
    for row, values in enumerate(expected):
        for ax, x in zip(drawn.axes[2 * row :], ([1, 2], [12.5, 25]), strict=False):
            found = {
                line.get_linestyle(): line for line in ax.lines if len(line.get_xdata())
            }
            assert found.keys() == values.keys()
            for style, y in values.items():
                np.testing.assert_allclose(found[style].get_ydata(), y, rtol=1e-12)
                np.testing.assert_array_equal(found[style].get_xdata(), x)


@pytest.mark.parametrize("names", ["a", "abcdefgh", "abcdefghijklm"])
def test_any_number_of_runs_is_drawn(tmp_path, names):
    given = [reader.read(write_run(tmp_path / name)) for name in names]
    drawn = plots.draw_curves(given)
    assert plots.to_png(drawn).startswith(PNG)
    solid = [
        x
        for x in drawn.axes[2].lines
        if x.get_linestyle() == "-" and len(x.get_xdata())
    ]
    assert len(solid) == len(names)
    np.testing.assert_array_equal(solid[0].get_xydata(), [[1, 0.5], [2, 0.7]])
    by_seconds = [line for line in drawn.axes[3].lines if len(line.get_xdata())]
    np.testing.assert_array_equal(by_seconds[1].get_xydata(), [[12.5, 0.5], [25, 0.7]])


@pytest.mark.parametrize("name", ["_hidden", "$x_1", "x" * 90, "東京", HOSTILE])
def test_any_name_is_in_the_legend(tmp_path, name):
    run = reader.read(write_run(tmp_path / name))
    drawn = plots.draw_curves([run])
    assert plots.to_png(drawn).startswith(PNG)
    text = drawn.legends[0].get_texts()[0].get_text()
    assert text.startswith(f"1  {name[:40]}") and len(text) <= 52


def test_a_run_without_a_finished_epoch_is_drawn(tmp_path):
    run = reader.read(write_run(tmp_path / "a", (), finished=False))
    assert plots.to_png(plots.draw_curves([run])).startswith(PNG)


def test_a_heat_map_shows_its_numbers_and_leaves_gaps():
    drawn = plots.draw_heat_map(
        [[0.5, np.nan], [0.25, 0.75]],
        rows=["1", "2"],
        columns=["a", "b"],
        column_title="columns",
        title="t",
    )
    texts = [text.get_text() for text in drawn.axes[0].texts]
    assert texts == ["0.5000", "0.2500", "0.7500"]
    assert plots.to_png(drawn).startswith(PNG)


ON_CPU = {
    "time": "2030-01-02T12:00:00Z", "step": 0, "host": "first", "gpus": [],
    "devices": ["CPU:0", "CPU:1"], "stand_in_devices": True, "cpu_model": "Big CPU",
    "nvidia_driver": "", "cuda": "", "cudnn": "", "tensorflow": "2.21.0",
}  # fmt: skip
ON_GPU = ON_CPU | {
    "time": "2030-01-03T12:00:00Z", "step": 14, "host": "second", "stand_in_devices":
    False, "devices": ["GPU:0", "GPU:1"], "gpus": ["NVIDIA H200", "NVIDIA H200"],
    "nvidia_driver": "550.54.15", "cuda": "12.5.1", "cudnn": "9",
}  # fmt: skip


def test_the_history_of_a_run_on_two_machines_is_shown(tmp_path, capsys):
    folder = tmp_path / "a"
    given = [write_run(folder), write_run(tmp_path / "b")]
    (folder / "environment.json").write_text(json.dumps({"starts": [ON_CPU, ON_GPU]}))
    first, second = history.history([reader.read(path) for path in given])
    assert (first.run_name, first.step, first.host) == ("a", "0", "first")
    assert (first.devices, first.cuda) == ("2 logical CPU devices", "")
    assert (second.step, second.devices) == ("14", "2 x NVIDIA H200")
    assert (second.driver, second.cuda) == ("550.54.15", "12.5.1 / 9")
    target = tmp_path / "report.html"
    assert call(*given, f"--html_file={target}") == 0
    html = target.read_text()
    assert all(text in html for text in ("second", "2 x NVIDIA H200", "550.54.15"))
    assert "1 a: 1 replica, 2 epochs, 2 starts, " in capsys.readouterr().out


def test_a_run_from_before_each_start_was_written_has_one(tmp_path):
    folder = tmp_path / "a"
    write_run(folder)
    old = {"tensorflow": "2.20.0", "cpu_model": "Old", "devices": ["GPU:0"]}
    (folder / "environment.json").write_text(json.dumps(old))
    (start,) = history.history([reader.read(folder)])
    assert (start.tensorflow, start.processor, start.time) == ("2.20.0", "Old", "")
    assert start.devices == "GPU:0"


@pytest.mark.parametrize("name", ["summary.json", "environment.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", bytes(9)])
def test_a_damaged_file_that_can_be_done_without_is_a_warning(tmp_path, name, content):
    folder, said = damage(tmp_path / "a", name, content), []
    run = reader.read(folder, said.append)
    assert len(said) == 1 and f"{name} is damaged (" in said[0]
    assert run.is_finished == (name != "summary.json") and run.starts == ()


def test_the_command_writes_page_and_picture(tmp_path, capsys):
    given = [write_run(tmp_path / "a b"), write_run(tmp_path / "c", gpus=2)]
    target = tmp_path / "my report.html"
    assert call(*given, f"--html_file={target}") == 0
    assert target.with_suffix(".png").read_bytes().startswith(PNG)
    assert target.read_text().startswith("<!doctype html>")
    out = capsys.readouterr().out
    assert "1 a b: 1 replica, 2 epochs, 100 images/s" in out
    assert f"wrote {target}" in out


def damage(folder, name, content):
    """Writes `content` over a file of a run; returns the folder."""
    write_run(folder)
    (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p / "nowhere", "nowhere', which is not a folder"),
        (lambda p: p, "which holds no config.json"),
        (lambda p: damage(p / "a", "config.json", b"{"), "config.json is damaged"),
        (lambda p: damage(p / "a", "config.json", b"[1]"), "a JSON object is expected"),
        (lambda p: damage(p / "a", "config.json", b"{}"), "no setting 'model'"),
        (lambda p: damage(p / "a", "metrics.jsonl", b"1\n"), "metrics.jsonl is damag"),
        (lambda p: damage(p / "a", "metrics.jsonl", b"{}\n"), "no 'train/loss' in a"),
    ],
)
def test_a_bad_run_directory_is_one_line(tmp_path, capsys, make, says):
    given = make(tmp_path)
    target = tmp_path / "report.html"
    assert call(str(given), f"--html_file={target}") == command.EXIT_WRONG_INPUT
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
    assert not target.exists() and not target.with_suffix(".png").exists()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "arguments must be one run directory or more: got ()"),
        (["a", "--html_file=a.pdf"], "html_file must be a name that ends in .html"),
        (["a", "--html_file=nowhere/a.html"], "must be in an existing folder"),
    ],
)
def test_wrong_arguments_are_one_line(argv, says, capsys):
    assert call(*argv) == command.EXIT_WRONG_INPUT
    assert says in capsys.readouterr().err


def test_a_report_needs_no_tensorflow():
    code = (
        "import sys; from tfmirror.reporting import page, plots; "
        "import tfmirror.report; sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_input_errors_are_those_of_the_commands():
    with pytest.raises(errors.InputError):
        reader.read("nowhere")
