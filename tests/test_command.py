"""Exit codes and the one line of an error, for every wrong input a user may give."""

import os
import pathlib
import subprocess
import sys

import pytest
from helpers import make_examples, write_idx_folder

from tfmirror import command, config, errors, inspect_replicas, train
from tfmirror.benchmarking import contenders, workload
from tfmirror.data import datasets, idx_folder
from tfmirror.rundir import checkpoints

ROOT = pathlib.Path(__file__).resolve().parents[1]


def call(main, *argv, settings_class=config.TrainConfig, check=config.check):
    return command.run_and_return_exit_code(
        main, settings_class, "Synopsis.", check=check, argv=list(argv)
    )


def raising(error):
    def main(settings):
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            errors.InputError("gpus must be\n  more: got 1"),
            2,
            "gpus must be more: got 1",
        ),
        (errors.TrainingStoppedError("loss is nan"), 3, "loss is nan"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_codes(capsys, error, code, line):
    assert call(raising(error)) == code
    assert capsys.readouterr() == ("", f"error: {line}\n")


def test_done_is_0_help_is_0_and_a_bug_is_a_traceback(capsys):
    assert call(lambda settings: None) == 0
    assert call(raising(KeyError("bug")), "--help") == 0
    assert capsys.readouterr().out.startswith("Synopsis.\n\nModel:")
    with pytest.raises(KeyError):
        call(raising(KeyError("bug")))


def test_run_exits_the_process(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program", "--gpus=-1"])
    with pytest.raises(SystemExit) as stop:
        command.run(pytest.fail, config.TrainConfig, "", check=config.check)
    assert stop.value.code == 2


WRONG_FLAGS = {
    "negative gpus": ["--gpus=-1"],
    "no gpu": ["--gpus=2", "--device_type=gpu"],
    "batch 0": ["--global_batch_size=0"],
    "both batches": ["--global_batch_size=8", "--per_replica_batch_size=4"],
    "model": ["--model=typo"],
    "dataset": ["--dataset=mnits"],
    "flag": ["--gpu=2"],
    "value": ["--epochs=many"],
    "data_dir": ["--data_dir=/nowhere/at/all"],
    "limit": ["--limit_train_examples=2000"],
    "microbatches": ["--gpus=4", "--microbatches=3"],
    "shares": ["--gpus=2", "--microbatches=8", "--microbatches_per_replica=5,4"],
    "no network, no data": ["--dataset=kmnist"],
}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty working directory, no network, and no data prepared anywhere."""
    import requests

    def no_network(*_, **__):
        raise requests.ConnectionError("no route to host")

    monkeypatch.setattr(requests, "head", no_network)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setattr(idx_folder, "DEBIAN_FOLDER", tmp_path / "debian")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "cwd"


def assert_one_line_and_nothing_written(capsys, code, folder):
    out, err = capsys.readouterr()
    assert code == 2
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert "Traceback" not in err and len(err) < 600
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("argv", WRONG_FLAGS.values(), ids=WRONG_FLAGS)
def test_wrong_flags_are_one_line_and_nothing_is_written(elsewhere, capsys, argv):
    assert_one_line_and_nothing_written(capsys, call(train.main, *argv), elsewhere)


@pytest.mark.parametrize(
    "argv",
    [["--num_examples=0"], ["--channel=-1"], ["--channel=20"], ["--layer=conv3"]]
    + [["--seed=-1"], ["--num_examples=1000"]],
)
def test_wrong_flags_of_inspect_replicas_are_one_line(elsewhere, capsys, argv):
    code = call(
        inspect_replicas.main,
        *argv,
        settings_class=inspect_replicas.InspectConfig,
        check=inspect_replicas.check,
    )
    assert_one_line_and_nothing_written(capsys, code, elsewhere)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-30])


def html(path):
    path.write_bytes(b"<!DOCTYPE html><title>404</title>")


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


def not_a_label(path):
    import gzip

    content = bytearray(gzip.decompress(path.read_bytes()))
    content[-1] = 200
    path.write_bytes(gzip.compress(bytes(content)))


def one_less(path):
    import gzip
    import struct

    content = gzip.decompress(path.read_bytes())
    (count,) = struct.unpack(">I", content[4:8])
    shorter = content[:4] + struct.pack(">I", count - 1) + content[8:-1]
    path.write_bytes(gzip.compress(shorter))


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (truncate, "train-images-idx3-ubyte.gz"),
        (html, "t10k-images-idx3-ubyte.gz"),
        (empty, "train-labels-idx1-ubyte.gz"),
        (remove, "train-labels-idx1-ubyte.gz"),
        (not_a_label, "train-labels-idx1-ubyte.gz"),
        (one_less, "t10k-labels-idx1-ubyte.gz"),
    ],
)
def test_damaged_data_are_one_line_and_nothing_is_written(
    elsewhere, tmp_path, capsys, spoil, name
):
    folder = write_idx_folder(tmp_path / "data", make_examples(4), make_examples(4))
    spoil(pathlib.Path(folder, name))
    code = call(train.main, "--dataset=mnist", f"--data_dir={folder}")
    assert_one_line_and_nothing_written(capsys, code, elsewhere)


def test_a_workdir_with_a_run_or_under_a_file_is_refused(elsewhere, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    for workdir in (tmp_path / "run", tmp_path / "run" / "config.json" / "deeper"):
        code = call(train.main, f"--workdir={workdir}")
        assert_one_line_and_nothing_written(capsys, code, elsewhere)
    assert (tmp_path / "run" / "config.json").read_text() == "{}"


def start_python(*argv, **variables):
    """Starts Python as a user would; returns the process."""
    environment = {k: v for k, v in os.environ.items() if k != command.LOG_LEVEL}
    return subprocess.Popen(
        [sys.executable, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment | variables,
    )


def run_python(*argv, **variables):
    """Runs Python as a user would; returns what happened."""
    with start_python(*argv, **variables) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


@pytest.mark.training
def test_a_users_run_prints_its_lines_and_no_noise(tmp_path):
    argv = ["-m", "tfmirror.train", "--gpus=2", "--epochs=1", f"--workdir={tmp_path}"]
    done = run_python(*argv, "--limit_train_examples=150", "--limit_eval_examples=30")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "model: cnn, 129,068 parameters"
    assert lines[3].startswith("devices: CPU:0, CPU:1 (logical CPU devices stand in")
    assert lines[-3].startswith("epoch 1/1  train loss ")
    assert (tmp_path / "summary.json").is_file()


@pytest.mark.slow
@pytest.mark.training
def test_a_reader_that_leaves_ends_the_run_and_its_checkpoints_are_whole(tmp_path):
    folder = tmp_path / "run"
    argv = ["-m", "tfmirror.train", "--gpus=2", "--epochs=50", f"--workdir={folder}"]
    with start_python(*argv, "--limit_train_examples=150") as process:
        while not process.stdout.readline().startswith("traced"):
            pass
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (141, "")
    state, _ = checkpoints.latest(folder / "checkpoints", pytest.fail)
    assert state.position.num_epochs >= 1 and not (folder / "summary.json").exists()


def test_an_error_in_a_process_of_its_own_has_exit_code_2():
    done = run_python("-m", "tfmirror.train", "--gpus=-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: gpus must be at least 0 (0: all GPUs, or ")
    assert done.stderr.endswith("): got -1\n") and done.stderr.count("\n") == 1


def test_what_tensorflow_says_while_its_import_fails_is_shown(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import os\n"
        "os.write(2, b'a line from C++\\n')\n"
        "raise ImportError('no libx.so')\n"
    )
    done = run_python(
        "-c",
        "from tfmirror import command; command.import_tensorflow_quietly()",
        PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}",
    )
    assert done.returncode == 1
    assert "a line from C++" in done.stderr and "no libx.so" in done.stderr


def test_file_names_that_are_not_utf8_are_printed_as_they_are():
    code = (
        "import os; from tfmirror import command, config, errors\n"
        "def main(settings):\n"
        "    print(settings.data_dir)\n"
        "    raise errors.InputError(settings.data_dir)\n"
        "command.run(main, config.TrainConfig, '', check=config.check,"
        " needs_tensorflow=False)"
    )
    argv = [sys.executable, "-c", code, b"--data_dir=a\xffb"]
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}  # as in most locales
    done = subprocess.run(argv, capture_output=True, cwd=ROOT, env=strict)
    assert (done.returncode, done.stdout) == (2, b"a\xffb\n")
    assert done.stderr == b"error: a\\udcffb\n"


def test_data_in_a_folder_whose_name_is_not_utf8_are_read(tmp_path):
    folder = pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    written = write_idx_folder(folder, make_examples(20), make_examples(10))
    assert len(datasets.load("mnist", written).eval) == 10


def test_torch_python_may_begin_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    peer = workload.Workload(
        contender="torch_ddp",
        model="cnn",
        dataset="digits",
        data_dir="",
        num_replicas=1,
        global_batch_size=8,
        precision="float32",
    )
    assert contenders._program(peer, "~/bin/python")[0] == f"{tmp_path}/bin/python"
