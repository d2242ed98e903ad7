"""The run directory: never overwritten, and files that hold what was written."""

import datetime
import json
import os

import pytest
import tensorflow as tf

from tfmirror import errors
from tfmirror.rundir import directory

NOON = datetime.datetime(2030, 1, 2, 12, 0, 5, tzinfo=datetime.UTC)
RECORD = {
    "epoch": 3, "train_loss": 0.5, "train_accuracy": 0.75, "eval_loss": 0.25,
    "eval_accuracy": 0.875, "train_seconds": 2.0, "eval_seconds": 1.0,
    "images_per_second": 1000.0,
}  # fmt: skip


def test_default_names_are_new_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [directory.create("", "cnn-digits", now=NOON) for _ in range(3)]
    assert [str(path) for path in paths] == [
        "runs/cnn-digits-20300102T120005Z",
        "runs/cnn-digits-20300102T120005Z-2",
        "runs/cnn-digits-20300102T120005Z-3",
    ]
    assert all(path.is_dir() for path in paths)


def test_a_workdir_may_be_new_or_empty_and_have_any_name(tmp_path):
    for name in ("new/deep", "with space", "größe"):
        path = tmp_path / name
        assert directory.create(str(path), "unused") == path
        assert directory.create(str(path), "unused") == path  # still empty


def test_a_workdir_that_holds_a_run_or_files_is_refused_untouched(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(errors.InputError, match="holds a run already"):
        directory.create(str(tmp_path), "unused")
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
    (tmp_path / "config.json").rename(tmp_path / "notes.txt")
    with pytest.raises(errors.InputError, match="holds files already"):
        directory.create(str(tmp_path), "unused")


def test_a_workdir_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(errors.InputError, match="not a folder"):
            directory.check_is_free(str(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(errors.InputError, match="read-only"):
        directory.check_is_free(str(tmp_path / "run"))


def test_a_read_only_parent_is_refused_for_root_too(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(errors.InputError, match="is read-only"):
        directory.check_is_free(str(tmp_path / "run"))


def test_an_error_of_the_file_system_is_one_line(tmp_path, monkeypatch):
    def full(self, *_, **__):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(directory.pathlib.Path, "mkdir", full)
    with pytest.raises(errors.InputError, match="can't be made at .*: No space left"):
        directory.create(str(tmp_path / "run"), "unused")


def test_json_is_written_whole(tmp_path):
    with directory.RunWriter(tmp_path) as writer:
        writer.write_json("summary.json", {"a": [1, 2.5]})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": [1, 2.5]}
    assert not list(tmp_path.glob("*.unfinished"))


def test_what_tensorflow_can_not_write_is_an_error_of_the_system(tmp_path):
    (tmp_path / "tensorboard").write_text("a file")
    with pytest.raises(errors.TrainingStoppedError, match="tensorboard: Not a dir"):
        with directory.stops_on_os_errors(tmp_path), directory.RunWriter(tmp_path):
            pytest.fail("was made")


def test_epochs_go_to_metrics_jsonl_and_to_tensorboard(tmp_path):
    with directory.RunWriter(tmp_path) as writer:
        writer.write_epoch(12, RECORD)
        writer.write_epoch(24, RECORD | {"epoch": 4, "eval_loss": 0.125})
    lines = [
        json.loads(s) for s in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert lines[0] == {
        "step": 12, "epoch": 3, "train/loss": 0.5, "train/accuracy": 0.75,
        "eval/loss": 0.25, "eval/accuracy": 0.875, "train/images_per_second": 1000.0,
        "train/seconds": 2.0, "eval/seconds": 1.0,
    }  # fmt: skip
    assert lines[1]["step"] == 24 and lines[1]["eval/loss"] == 0.125
    (events,) = (tmp_path / "tensorboard").iterdir()
    scalars = {}
    for raw in tf.data.TFRecordDataset(str(events)):
        event = tf.compat.v1.Event.FromString(raw.numpy())
        for value in event.summary.value:
            assert value.metadata.plugin_data.plugin_name == "scalars"
            scalars[event.step, value.tag] = float(tf.make_ndarray(value.tensor))
    assert scalars[12, "eval/loss"] == 0.25 and scalars[24, "eval/loss"] == 0.125
    assert len(scalars) == 2 * 7
