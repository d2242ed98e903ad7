"""The run directory: never overwritten, and files that hold what was written."""

import datetime
import errno
import json
import os

import pytest
import tensorflow as tf

from tfmirror import errors, metrics
from tfmirror.rundir import checkpoints, directory, state, workdir

NOON = datetime.datetime(2030, 1, 2, 12, 0, 5, tzinfo=datetime.UTC)
RECORD = {
    "epoch": 3, "train_loss": 0.5, "train_accuracy": 0.75, "eval_loss": 0.25,
    "eval_accuracy": 0.875, "train_seconds": 2.0, "eval_seconds": 1.0,
    "images_per_second": 1000.0, "learning_rate": 0.125, "skipped_steps": 2,
    "eval_top5_accuracy": 0.9375,
}  # fmt: skip


def test_default_names_are_new_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [workdir.create("", "cnn-digits", now=NOON) for _ in range(3)]
    assert [str(path) for path in paths] == [
        "runs/cnn-digits-20300102T120005Z",
        "runs/cnn-digits-20300102T120005Z-2",
        "runs/cnn-digits-20300102T120005Z-3",
    ]
    assert all(path.is_dir() for path in paths)


def test_a_workdir_may_be_new_or_empty_and_have_any_name(tmp_path):
    for name in ("new/deep", "with space", "größe"):
        path = tmp_path / name
        assert workdir.create(str(path), "unused") == path
        assert workdir.create(str(path), "unused") == path  # still empty


def test_a_workdir_that_holds_a_run_or_files_is_refused_untouched(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(errors.InputError, match="holds a run already"):
        workdir.create(str(tmp_path), "unused")
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
    (tmp_path / "config.json").rename(tmp_path / "notes.txt")
    with pytest.raises(errors.InputError, match="holds files already"):
        workdir.create(str(tmp_path), "unused")


LEFTOVERS = [
    {".lock": ""},
    {".lock": "", "config.json.unfinished": '{"half'},
    {"config.json.unfinished": ""},  # a power cut may lose a name
    {".lock": "", "metrics.jsonl": "", "tensorboard/events.out.tfevents.1": "x"},
]


@pytest.mark.parametrize("left", LEFTOVERS)
def test_a_folder_in_which_a_run_was_killed_before_it_began_is_free(tmp_path, left):
    write_files(tmp_path, left)
    assert workdir.create(str(tmp_path), "unused") == tmp_path
    with workdir.lock_new(tmp_path):
        assert not workdir.holds_run(tmp_path)


@pytest.mark.parametrize(
    "left",
    [
        {"metrics.jsonl": ""},
        {"tensorboard/events.out.tfevents.1": "of something else"},
        {".lock": "", "metrics.jsonl": "{}"},
        {".lock": "", "notes.txt": ""},
    ],
)
def test_files_that_may_be_of_someone_else_are_not_taken_for_leftovers(tmp_path, left):
    write_files(tmp_path, left)
    with pytest.raises(errors.InputError, match="holds files already"):
        workdir.check_is_free(str(tmp_path))


def write_files(folder, contents):
    """Writes {name: text} into a folder."""
    for name, text in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_checkpoints_without_their_settings_are_a_run(tmp_path):
    write_files(tmp_path, {"checkpoints/step-000000001.npz": ""})
    assert workdir.holds_run(tmp_path)
    with pytest.raises(errors.InputError, match="holds a run already"):
        workdir.check_is_free(str(tmp_path))


def test_who_loses_the_race_for_a_new_folder_is_told_that_it_is_in_use(tmp_path):
    for _ in range(2):  # both find the folder free
        folder = workdir.create(str(tmp_path / "run"), "unused")
    with workdir.lock_new(folder):
        with pytest.raises(errors.InputError, match="in use: another process trains"):
            with workdir.lock_new(folder):
                pytest.fail("was locked twice")
        (folder / "config.json").write_text("{}")
        with pytest.raises(errors.InputError, match="in use: another process trains"):
            workdir.create(str(folder), "unused")
    with pytest.raises(errors.InputError, match="holds a run already"):
        with workdir.lock_new(folder):
            pytest.fail("the other has written to it")


def test_a_lock_that_cannot_be_made_is_one_line(tmp_path):
    with pytest.raises(
        errors.InputError, match="can't be locked at .*: Too many levels"
    ):
        (tmp_path / ".lock").symlink_to(tmp_path / "nowhere" / "lock")
        with workdir.lock(tmp_path):
            pytest.fail("was locked")


def stop_by_a_full_disk(folder):
    """Returns what is said when a disk is full."""
    with pytest.raises(errors.TrainingStoppedError) as error:
        with directory.stops_on_os_errors(folder):
            raise OSError(errno.ENOSPC, "No space left on device")
    return str(error.value)


def test_what_is_advised_when_a_run_stops_is_true(tmp_path):
    folder = tmp_path / "run"
    assert stop_by_a_full_disk(folder) == (
        f"{folder} can't be written: No space left on device; the folder is gone: "
        "choose another --workdir"
    )
    write_files(tmp_path, {"run/checkpoints": ""})
    (folder / "checkpoints").unlink()
    again = f"with --workdir='{folder}' --resume=auto"
    none = f"it has no complete checkpoint: call again {again} to start from step 0"
    assert stop_by_a_full_disk(folder).endswith(none)
    write_files(folder, {"checkpoints/step-000000003.npz": "damaged"})
    assert stop_by_a_full_disk(folder).endswith(none)
    checkpoints.write(folder / "checkpoints", make_state(2))
    assert stop_by_a_full_disk(folder).endswith(
        f"step-000000002.npz is complete: resume {again}"
    )


def make_state(num_steps):
    """Returns a small RunState."""
    return state.RunState(
        settings={},
        data_sha256="",
        position=state.RunProgress(),
        num_steps=num_steps,
        model=state.ModelDescription((1, 1, 1), 1, ()),
        variables={},
    )


def test_a_workdir_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(errors.InputError, match="not a folder"):
            workdir.check_is_free(str(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(errors.InputError, match="read-only"):
        workdir.check_is_free(str(tmp_path / "run"))


def test_a_read_only_parent_is_refused_for_root_too(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(errors.InputError, match="is read-only"):
        workdir.check_is_free(str(tmp_path / "run"))


def test_an_error_of_the_file_system_is_one_line(tmp_path, monkeypatch):
    def full(self, *_, **__):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(workdir.pathlib.Path, "mkdir", full)
    with pytest.raises(errors.InputError, match="can't be made at .*: No space left"):
        workdir.create(str(tmp_path / "run"), "unused")


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
        "train/seconds": 2.0, "eval/seconds": 1.0, "train/learning_rate": 0.125,
        "train/skipped_steps": 2, "eval/top5_accuracy": 0.9375,
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
    assert scalars[12, "train/learning_rate"] == 0.125
    assert scalars[24, "train/skipped_steps"] == 2
    assert scalars[24, "eval/top5_accuracy"] == 0.9375
    assert len(scalars) == 2 * 10


def test_a_record_of_an_earlier_version_is_written_without_the_keys_it_lacks(tmp_path):
    old = {key: value for key, value in RECORD.items() if key not in metrics.ADDED}
    with directory.RunWriter(tmp_path, [old], steps_per_epoch=4):
        pass
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line["step"] == 12 and line["train/loss"] == 0.5
    assert not {metrics.NAMES[key] for key in metrics.ADDED} & set(line)
