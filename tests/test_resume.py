"""A run that was interrupted ends as the run that never was, to the bit."""

import dataclasses
import json
import pathlib
import resource
import shutil

import pytest

from tfmirror import config, errors
from tfmirror.data import pipeline
from tfmirror.rundir import checkpoints, reader, resume, workdir
from tfmirror.rundir import state as states
from tfmirror.training import interruption, run

pytestmark = pytest.mark.training

# Three batches of 32 and one of 4 an epoch; all that could depend on where it stopped.
SETTINGS = config.TrainConfig(
    gpus=2,
    microbatches=4,
    global_batch_size=32,
    limit_train_examples=100,
    limit_eval_examples=40,
    epochs=2,
    momentum=0.9,
    schedule="cosine",
    warmup_epochs=0.5,
    ema_decay=0.9,
    augment="crop",
    steps_per_loop=1,
)
STEPS_PER_EPOCH = 4


def train(folder, **changes):
    """Trains in `folder`, going on with what is there."""
    settings = {"workdir": str(folder), "resume": "auto"} | changes
    return run.train(dataclasses.replace(SETTINGS, **settings))


def without_times(summary):
    """Returns a summary without what a clock or the devices decide."""
    of_devices = ("workdir", "trace_seconds", "devices", "num_replicas")
    kept = {k: v for k, v in summary.items() if k not in of_devices}
    times = ("train_seconds", "eval_seconds", "images_per_second")
    kept["epochs"] = [
        {k: v for k, v in record.items() if k not in times}
        for record in summary["epochs"]
    ]
    return kept


def interrupt_after(monkeypatch, num_calls):
    """Lets the next run be asked to end after so many steps."""

    class Asked(interruption.Watch):
        calls = 0

        @property
        def is_asked(self):
            self.calls += 1
            return self.calls >= num_calls

    monkeypatch.setattr(interruption, "Watch", Asked)


def stop(monkeypatch, folder, num_steps, **changes):
    """Trains so many steps in `folder`; returns what is said at the end."""
    interrupt_after(monkeypatch, num_steps)
    try:
        train(folder, **changes)
        pytest.fail("was not interrupted")
    except errors.InterruptedRunError as error:
        return str(error)
    finally:
        monkeypatch.undo()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The summary of the run that is never stopped."""
    return train(tmp_path_factory.mktemp("runs") / "whole", gpus=4)


@pytest.mark.slow
def test_stopped_on_four_and_on_one_it_ends_on_two_to_the_bit(
    whole, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "a run, interrupted"
    said = stop(monkeypatch, folder, 2, gpus=4)
    assert "interrupted after step 2 of epoch 1; wrote" in said
    assert f"--workdir='{folder}' --resume=auto" in said
    assert not (folder / "summary.json").exists()
    said = stop(monkeypatch, folder, 3, gpus=1)  # the 2 that are left, 1 of evaluation
    assert "interrupted after step 4 of epoch 1; wrote" in said
    assert reader.read(folder).values("epoch") == []
    said = stop(monkeypatch, folder, 3, gpus=2)  # the 2 of evaluation, 1 of epoch 2
    assert "interrupted after step 1 of epoch 2; wrote" in said
    assert reader.read(folder).values("epoch") == [1]
    resumed = train(folder, gpus=2)
    assert without_times(resumed) == without_times(whole)
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["num_replicas"] == 2 and whole["num_replicas"] == 4
    out = capsys.readouterr().out
    assert "resumed from" in out and "warning" not in out
    assert reader.read(folder).values("epoch") == [1, 2]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    assert len(list((folder / "tensorboard").iterdir())) == 1


def test_a_finished_run_is_not_run_again(whole, capsys):
    capsys.readouterr()
    again = train(whole["workdir"])
    assert again == whole
    assert capsys.readouterr().out == f"finished already: {whole['workdir']}\n"
    with pytest.raises(errors.InputError, match="holds a run already"):
        train(whole["workdir"], resume="never")


@pytest.mark.slow
def test_killed_between_the_last_checkpoint_and_the_summary(whole, tmp_path):
    folder = tmp_path / "run"
    train(folder)
    (folder / "summary.json").unlink()
    (folder / "metrics.jsonl").write_text('{"half a li')
    assert without_times(train(folder)) == without_times(whole)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(whole, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    stop(monkeypatch, folder, 3, checkpoint_every="1step")
    last = folder / "checkpoints" / "step-000000003.npz"
    last.write_bytes(last.read_bytes()[:-9])
    assert train(folder)["weights_sha256"] == whole["weights_sha256"]
    out = capsys.readouterr().out
    assert f"warning: skipped the damaged checkpoint {last}: " in out
    assert "resumed from" in out and "step-000000002.npz" in out


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_starts_anew(whole, tmp_path, capsys):
    (tmp_path / "config.json").write_text(
        (pathlib.Path(whole["workdir"]) / "config.json").read_text()
    )
    assert train(tmp_path)["weights_sha256"] == whole["weights_sha256"]
    assert "the run starts from step 0" in capsys.readouterr().out


@pytest.mark.slow
def test_more_epochs_go_on_from_the_end_in_a_new_folder(whole, tmp_path):
    longer = train(
        tmp_path / "longer",
        resume=whole["workdir"],
        epochs=3,
        resume_override="epochs",
    )
    assert [record["epoch"] for record in longer["epochs"]] == [1, 2, 3]
    assert without_times(longer)["epochs"][:2] == without_times(whole)["epochs"]
    # Of what is in the new folder, whether the old one had better or not.
    accuracies = [record["eval_accuracy"] for record in longer["epochs"]]
    of_best = checkpoints.best_accuracy(tmp_path / "longer" / "checkpoints")
    assert of_best == max(accuracies[1:])
    best = pathlib.Path(whole["workdir"]) / "checkpoints" / "best.npz"
    again = train(tmp_path / "again", resume=str(best), schedule="cosine")
    assert without_times(again) == without_times(whole)


@pytest.mark.slow
def test_killed_in_a_new_folder_before_its_first_step_it_goes_on_from_there(
    whole, tmp_path, monkeypatch
):
    old, new = tmp_path / "old", tmp_path / "new"
    stop(monkeypatch, old, 7)  # after the first step of epoch 2
    with monkeypatch.context() as patch:
        patch.setattr(run, "_trace", lambda training_setup: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(new, resume=str(old))
    state, _ = checkpoints.latest(new / "checkpoints", pytest.fail)
    assert state.num_steps == STEPS_PER_EPOCH + 1
    assert without_times(train(new)) == without_times(whole)
    of_best = checkpoints.best_accuracy(new / "checkpoints")
    assert of_best == whole["epochs"][-1]["eval_accuracy"]


@pytest.mark.slow
def test_killed_before_the_best_was_marked_it_is_marked_later(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole["workdir"], folder)
    (folder / "checkpoints" / "best.npz").unlink()
    (folder / "summary.json").unlink()
    train(folder)
    of_best = checkpoints.best_accuracy(folder / "checkpoints")
    assert of_best == whole["epochs"][-1]["eval_accuracy"]


@pytest.mark.slow
def test_a_run_made_longer_is_not_finished_until_it_is(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    train(folder, epochs=1)
    longer = {"epochs": 2, "resume_override": "epochs"}
    stop(monkeypatch, folder, 2, **longer)
    assert not reader.read(folder).is_finished
    assert len(train(folder, **longer)["epochs"]) == 2


@pytest.mark.slow
def test_a_finished_run_without_checkpoints_is_not_written_over(tmp_path):
    folder = tmp_path / "run"
    first = train(folder, epochs=1, checkpoint_every="")
    with pytest.raises(errors.InputError, match="finished run without a checkpoint"):
        train(folder, epochs=2, resume_override="epochs")
    assert train(folder, epochs=1) == first


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"learning_rate": 0.1},
            "other settings: learning_rate 0.3, now 0.1; give the same values as then, "
            "or --resume_override=learning_rate",
        ),
        (
            {"momentum": 0.5, "epochs": 9},
            "epochs 2, now 9; momentum 0.9, now 0.5; give the same values as then$",
        ),
        ({"dataset": "synthetic"}, "dataset 'digits', now 'synthetic'"),
        ({"model": "resnet18", "epochs": 2}, "model 'cnn', now 'resnet18'"),
        ({"microbatches": 0}, "microbatches 4, now 0"),
        ({"epochs": 1, "resume_override": "epochs"}, "epochs must be at least 2"),
        ({"resume": "nowhere.npz"}, "'nowhere.npz' can't be used: No such file"),
        ({"resume": "/"}, "resume must be a run with a complete checkpoint: got '/'"),
    ],
)
def test_a_run_of_other_settings_is_refused(whole, changes, says, tmp_path):
    changes = {"resume": whole["workdir"]} | changes
    with pytest.raises(errors.InputError, match=says):
        train(tmp_path / "new", **changes)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_other_data_of_the_same_name_are_refused(tmp_path, monkeypatch):
    from tfmirror.data import datasets

    folder = tmp_path / "run"
    stop(monkeypatch, folder, 2)
    load = datasets.load

    def load_other(*args, **kwargs):
        dataset = load(*args, **kwargs)
        dataset.train.images[5, 0, 0] += 1
        return dataset

    monkeypatch.setattr(datasets, "load", load_other)
    with pytest.raises(errors.InputError, match="trained on other data"):
        train(folder)


@pytest.mark.slow
def test_without_a_fixed_tree_another_number_of_replicas_must_be_asked_for(
    tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    stop(monkeypatch, folder, 2, microbatches=0, gpus=2)
    with pytest.raises(errors.InputError, match="gpus 2, now 1; .*=gpus"):
        train(folder, microbatches=0, gpus=1)
    train(folder, microbatches=0, gpus=1, resume_override="gpus")


@pytest.mark.slow
def test_passed_over_files_are_moved_aside_when_the_run_goes_on(
    tmp_path, monkeypatch, capsys
):
    """With keep=2, two damaged files must not push out the only whole one."""
    folder, kept = tmp_path / "run", {"checkpoint_every": "1step", "keep": 2}
    stop(monkeypatch, folder, 3, **kept)
    damaged = [folder / "checkpoints" / f"step-{k:09}.npz" for k in (4, 5)]
    for path in damaged:
        path.write_bytes(b"damaged")
    said = stop(monkeypatch, folder, 1, **kept)  # after step 4
    assert said.count("step-000000004.npz") == 1
    found, path = checkpoints.latest(folder / "checkpoints", pytest.fail)
    assert found.num_steps == 4 and str(path) in said
    out = capsys.readouterr().out
    for path in damaged:
        assert f"moved {path} aside, to {path.name}.damaged\n" in out
        assert path.with_name(path.name + ".damaged").read_bytes() == b"damaged"


@pytest.mark.slow
def test_what_another_process_did_before_the_lock_is_seen(
    whole, tmp_path, monkeypatch, capsys
):
    """The state is read once the lock is held, not before."""
    folder = tmp_path / "run"
    stop(monkeypatch, folder, 2)
    lock = workdir.lock

    def lock_later(path):
        monkeypatch.setattr(workdir, "lock", lock)
        train(folder)  # by another process, to the end
        capsys.readouterr()
        return lock(path)

    monkeypatch.setattr(workdir, "lock", lock_later)
    summary = train(folder)
    assert capsys.readouterr().out == f"finished already: {folder}\n"
    assert summary["weights_sha256"] == whole["weights_sha256"]
    assert (folder / "summary.json").exists()


@pytest.mark.parametrize("content", [pytest.param(b"", marks=pytest.mark.slow), b"{}"])
def test_a_damaged_summary_is_an_unfinished_run(whole, tmp_path, content, capsys):
    folder = shutil.copytree(whole["workdir"], tmp_path / "run")
    (folder / "summary.json").write_bytes(content)
    (folder / "environment.json").write_bytes(b"")
    (folder / "config.json").write_bytes(b"")  # the checkpoint has the settings
    assert without_times(train(folder)) == without_times(whole)
    out = capsys.readouterr().out
    assert ("summary.json is damaged" in out) == (content != b"{}")
    assert "warning: " in out and "environment.json is damaged" in out
    assert json.loads((folder / "config.json").read_text())["epochs"] == 2
    assert len(reader.read(folder, pytest.fail).starts) == 1


def test_settings_that_nothing_tells_are_one_line(tmp_path):
    (tmp_path / "config.json").write_bytes(b"")
    says = "config.json is damaged .* no complete checkpoint .* choose another --workd"
    with pytest.raises(errors.InputError, match=says):
        train(tmp_path)


@pytest.mark.slow
def test_killed_in_a_new_folder_before_its_first_checkpoint_it_begins_there_again(
    whole, tmp_path, monkeypatch
):
    old, new = tmp_path / "old", tmp_path / "new"
    stop(monkeypatch, old, 7)  # after the first step of epoch 2
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(new, resume=str(old))
    assert not (new / "checkpoints").exists()
    assert without_times(train(new)) == without_times(whole)
    assert [start["step"] for start in reader.read(new).starts] == [0, 5, 5]


@pytest.mark.slow
def test_every_start_is_kept_with_its_settings(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    stop(monkeypatch, folder, 1, gpus=2)
    stop(monkeypatch, folder, 2, gpus=1, keep=5)
    starts = reader.read(folder, pytest.fail).starts
    assert [start["step"] for start in starts] == [0, 1]
    assert [len(start["devices"]) for start in starts] == [2, 1]
    assert [start["settings"]["keep"] for start in starts] == [3, 5]
    assert all(start["time"].endswith("Z") for start in starts)


def test_another_gpu_or_driver_is_warned_of():
    then = {
        "tensorflow": "2.21.0", "intra_op_threads": 1, "gpus": ["A100", "A100"],
        "nvidia_driver": "535.1", "cuda": "12.5", "cudnn": "9",
    }  # fmt: skip
    fewer = then | {"gpus": ["A100"]}
    assert resume.environment_changes([then], fewer) == []
    now = then | {"gpus": ["H200"], "nvidia_driver": "550.1"}
    assert resume.environment_changes([now, then], now) == [
        "warning: nvidia_driver was 535.1, now 550.1: last bits may differ",
        "warning: gpu was A100, now H200: last bits may differ",
    ]
    assert resume.environment_changes([], now) == []


@pytest.mark.slow
def test_another_processor_or_other_threads_are_warned_of(
    tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "run"
    stop(monkeypatch, folder, 3)
    path = folder / "environment.json"
    (described,) = json.loads(path.read_text())["starts"]
    changes = {"cpu_model": "Other", "intra_op_threads": 99, "python": "3.99"}
    path.write_text(json.dumps({"starts": [described | changes]}))
    checkpoint = next((folder / "checkpoints").iterdir())
    elsewhere = {"workdir": str(tmp_path / "other"), "resume": str(checkpoint)}
    for changed in ({}, elsewhere):
        capsys.readouterr()
        train(folder, **changed)
        warnings = [
            line for line in capsys.readouterr().out.splitlines() if "warning" in line
        ]
        assert warnings == [
            f"warning: cpu_model was Other, now {described['cpu_model']}: "
            "last bits may differ",
            f"warning: threads was 99, now {described['num_cpus']}: "
            "last bits may differ",
        ]
        path.write_text(json.dumps({"starts": [described | changes]}))


def test_a_run_from_before_a_setting_was_there_had_its_default():
    resolved = config.resolve(SETTINGS, num_replicas=2)
    earlier = states.settings_to_record(resolved)
    del earlier["pack_mb"]
    resume.check_settings(earlier, resolved)
    now = dataclasses.replace(resolved, pack_mb=2.0)
    with pytest.raises(errors.InputError, match="other settings: pack_mb 0.0, now 2.0"):
        resume.check_settings(earlier, now)


@pytest.mark.parametrize(("was", "now"), [(False, "none"), (True, "crop")])
def test_a_recorded_augment_of_earlier_versions_means_what_it_meant(was, now):
    resolved = dataclasses.replace(config.resolve(SETTINGS, 2), augment=now)
    earlier = states.settings_to_record(resolved) | {"augment": was}
    resume.check_settings(earlier, resolved)
    other = dataclasses.replace(resolved, augment="resized_crop")
    says = f"augment '{now}', now 'resized_crop'; give .*resume_override=augment"
    with pytest.raises(errors.InputError, match=says):
        resume.check_settings(earlier, other)
    resume.check_settings(
        earlier, dataclasses.replace(other, resume_override=("augment",))
    )


@pytest.mark.parametrize("version", [None, 1, 99])
def test_a_run_with_another_order_of_examples_is_refused_by_name(version):
    resolved = config.resolve(SETTINGS, num_replicas=2)
    earlier = resolved.to_json()  # as of the first version, which was not recorded
    if version:
        earlier["order_version"] = version
    with pytest.raises(errors.InputError) as error:
        resume.check_settings(earlier, resolved)
    assert str(error.value) == (
        f"the run to resume shuffles with version {version or 1} of the order of "
        f"examples, this tfmirror has version {pipeline.ORDER_VERSION}: start a new "
        "run in another --workdir, or resume with the tfmirror that began it"
    )


def test_a_run_records_the_version_of_its_order_twice(whole):
    folder = pathlib.Path(whole["workdir"])
    written = json.loads((folder / "config.json").read_text())
    assert written["order_version"] == pipeline.ORDER_VERSION
    state, _ = checkpoints.latest(folder / "checkpoints", pytest.fail)
    assert state.settings == written


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_it_goes_on_when_there_is_room(whole, tmp_path):
    folder = tmp_path / "run"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        with pytest.raises(errors.TrainingStoppedError) as error:
            train(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "can't be written: File too large" in str(error.value)
    assert list((folder / "checkpoints").iterdir()) == []
    assert train(folder)["weights_sha256"] == whole["weights_sha256"]


def test_two_runs_in_one_folder_are_refused(whole, tmp_path):
    (tmp_path / "config.json").write_text(
        (pathlib.Path(whole["workdir"]) / "config.json").read_text()
    )
    with workdir.lock(tmp_path):
        with pytest.raises(errors.InputError, match="in use: another process trains"):
            train(tmp_path)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_without_checkpoints_an_interrupted_run_says_so(tmp_path, monkeypatch):
    said = stop(monkeypatch, tmp_path / "run", 1, checkpoint_every="")
    assert "wrote no checkpoint, since checkpoint_every is empty" in said
    assert not (tmp_path / "run" / "checkpoints").exists()
