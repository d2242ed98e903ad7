"""A file that is promised complete is on the disk before it has its name."""

import errno
import json
import os
import pathlib

import pytest

from tfmirror import config, errors, files, models
from tfmirror.inference import export
from tfmirror.rundir import directory
from tfmirror.training import run


@pytest.fixture
def calls(monkeypatch):
    """The system calls fsync and rename that were made, in order.

    ("fsync", path, its size then) for files, ("fsync", path, None) for folders, and
    ("rename", old path, new path).
    """
    noted = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        path = pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)
        size = None if path.is_dir() else os.fstat(descriptor).st_size
        noted.append(("fsync", path, size))

    def note_replace(old, new):
        replace(old, new)
        noted.append(("rename", pathlib.Path(old), pathlib.Path(new)))

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return noted


def assert_synced_then_renamed(calls, path):
    """Asserts fsync of all bytes, rename, fsync of the folder, in this order."""
    (at,) = [k for k, call in enumerate(calls) if call[::2] == ("rename", path)]
    unfinished = calls[at][1]
    assert unfinished.parent == path.parent and files.UNFINISHED in unfinished.name
    assert calls[at - 1] == ("fsync", unfinished, path.stat().st_size)
    assert calls[at + 1] == ("fsync", path.parent, None)


def test_a_file_is_synced_then_renamed_then_its_folder_is_synced(tmp_path, calls):
    path = tmp_path / "a file.json"
    files.write_json(path, {"ü": [1, 2.5]})
    names = [name for name, *_ in calls]
    assert names == ["fsync", "rename", "fsync"]
    assert_synced_then_renamed(calls, path)
    assert json.loads(path.read_text(encoding="utf-8")) == {"ü": [1, 2.5]}
    assert path.read_bytes().endswith(b"}\n")
    assert list(tmp_path.iterdir()) == [path]


def test_every_file_of_a_run_is_on_the_disk_before_it_has_its_name(tmp_path, calls):
    settings = config.TrainConfig(
        gpus=2,
        global_batch_size=32,
        limit_train_examples=64,
        limit_eval_examples=32,
        epochs=1,
        workdir=str(tmp_path / "run"),
    )
    run.train(settings)
    folder = tmp_path / "run"
    renamed = [str(new.relative_to(folder)) for c, _, new in calls if c == "rename"]
    assert renamed == [
        "config.json", "environment.json", "metrics.jsonl",
        "checkpoints/step-000000002.npz", "checkpoints/best.npz", "model.keras",
        "plots/curves.png", "summary.json",
    ]  # fmt: skip
    for name in set(renamed) - {"metrics.jsonl"}:
        assert_synced_then_renamed(calls, folder / name)
    # It grows under its own name, and each line is on the disk before the summary.
    log = folder / "metrics.jsonl"
    synced = [k for k, c in enumerate(calls) if c == ("fsync", log, log.stat().st_size)]
    assert synced and synced[-1] < calls.index(
        ("rename", folder / f"summary.json{files.UNFINISHED}", folder / "summary.json")
    )
    # A power cut may take away a folder whose name is not on the disk in its parent.
    assert ("fsync", tmp_path, None) in calls[: calls.index(("fsync", folder, None))]
    folders = [call for call in calls if call == ("fsync", folder, None)]
    assert len(folders) == 5 + 2  # five files, and the folders checkpoints and plots
    assert list(folder.rglob(f"*{files.UNFINISHED}*")) == []


def test_an_exported_folder_is_synced_with_all_that_is_in_it(tmp_path, calls):
    model = models.build("probe", (16, 16, 1), 10)
    export.write_saved_model(model, tmp_path / "saved")
    (at,) = [k for k, (name, *_) in enumerate(calls) if name == "rename"]
    unfinished = tmp_path / f"saved{files.UNFINISHED}"
    assert calls[at] == ("rename", unfinished, tmp_path / "saved")
    synced = {path for _, path, _ in calls[:at]}
    written = {
        unfinished,
        *(
            unfinished / p.relative_to(tmp_path / "saved")
            for p in (tmp_path / "saved").rglob("*")
        ),
    }
    assert synced == written and len(written) > 4
    assert calls[at + 1] == ("fsync", tmp_path, None)


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(ZeroDivisionError), files.replaced(path) as unfinished:
        unfinished.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_failed_rename_leaves_nothing_behind(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(OSError) as error:
        files.write_text(tmp_path / "a", "a folder that is not empty has this name")
    assert error.value.errno == errno.EISDIR
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_a_killed_process_left_is_replaced(tmp_path, is_folder):
    stale = tmp_path / f"a{files.UNFINISHED}"
    if is_folder:
        (stale / "half").mkdir(parents=True)
    else:
        stale.write_text("half")
    with files.replaced(tmp_path / "a") as unfinished:
        assert not unfinished.exists()
        unfinished.write_text("whole")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["whole"]


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    path = tmp_path / "nowhere" / "a.txt"
    with pytest.raises(FileNotFoundError) as error:
        files.write_text(path, "text")
    assert error.value.filename == str(path)


def test_a_keras_file_that_can_not_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    model = models.build("probe", (16, 16, 1), 10)
    path = tmp_path / "model.keras"
    directory.save_model(model, path)
    content = path.read_bytes()

    def full_disk(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        directory.save_model(model, path)
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "Expecting property name"),
        (b"[1]", r"a JSON object is expected, got '\[1\]'"),
        (b"\xff", "can't decode byte 0xff"),
        (b"", "Expecting value"),
        (None, "No such file"),
    ],
)
def test_a_damaged_json_file_is_named_with_what_is_wrong(tmp_path, content, says):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.InputError, match=f"config.json is damaged .*{says}"):
        files.read_json_object(path)


def test_json_is_read_as_it_was_written(tmp_path):
    value = {"a": [1, 0.1 + 0.2, None, True], "ü": {"b": "東京"}}
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json_object(tmp_path / "a.json") == value


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: (p.touch(), os.truncate(p, 2**40)), "must have at most 33,554,432"),
        (os.mkfifo, "must be a regular file"),
        (lambda p: p.write_text("[" * 10**5), "recursion"),
        (lambda p: p.write_text('{"a":' * 10**5), "recursion"),
        (lambda p: p.write_text('{"a": ' + "9" * 10**5 + "}"), "digits"),
    ],
)
def test_json_of_others_is_refused_before_it_takes_memory(tmp_path, make, says):
    path = tmp_path / "config.json"
    make(path)
    with pytest.raises(errors.InputError, match=says) as error:
        files.read_json_object(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
