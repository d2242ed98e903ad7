"""A checkpoint is whole or not there, and a damaged one is never read."""

import contextlib
import errno
import io
import os
import pathlib
import resource
import time
import tracemalloc
import zipfile

import keras
import numpy as np
import pytest
from helpers import faults

from tfmirror import metrics, models
from tfmirror.rundir import checkpoints, directory, state


def make_state(num_steps=7, seed=0):
    """Returns a RunState of which no part is empty."""
    rng = np.random.default_rng(seed)
    return state.RunState(
        settings={"model": "cnn", "gpus": 2, "data_dir": "a folder/ü"},
        data_sha256="ab" * 32,
        position=state.RunProgress(
            ({"epoch": 1, "train_loss": 0.1 + 0.2, "eval_accuracy": 1 / 3},),
            state.PassProgress(3, metrics.Totals(1e17 / 3, 12, 96), 1.25),
        ),
        num_steps=num_steps,
        model=state.ModelDescription((28, 28, 1), 10, ("ü/a",)),
        variables={
            "cnn/conv1/kernel": rng.normal(size=(3, 3, 1, 4)).astype(np.float32),
            "sgd/iteration": np.array(num_steps, np.int64),
            "a/name/../of no file": np.arange(3, dtype=np.int32),
        },
    )


def assert_equal(one, other):
    """Asserts that two States are the same to the bit."""
    for name in ("settings", "data_sha256", "position", "num_steps", "model"):
        assert getattr(one, name) == getattr(other, name)
    assert list(one.variables) == list(other.variables)
    for name, array in one.variables.items():
        assert array.tobytes() == other.variables[name].tobytes()
        assert (array.dtype, array.shape) == (
            other.variables[name].dtype,
            other.variables[name].shape,
        )


def test_what_is_written_is_read_to_the_bit(tmp_path):
    path = checkpoints.write(tmp_path / "checkpoints", make_state())
    assert path.name == "step-000000007.npz"
    assert_equal(checkpoints.read(path), make_state())


def test_numpy_opens_it_without_pickle(tmp_path):
    path = checkpoints.write(tmp_path / "checkpoints", make_state())
    with np.load(path, allow_pickle=False) as archive:
        kernel = make_state().variables["cnn/conv1/kernel"]
        np.testing.assert_array_equal(archive["variable0"], kernel)


def test_only_the_last_few_are_kept_and_the_best(tmp_path):
    for num_steps in range(1, 6):
        path = checkpoints.write(tmp_path, make_state(num_steps), keep=2)
        if num_steps == 2:
            checkpoints.mark_best(path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["best.npz", "step-000000004.npz", "step-000000005.npz"]
    assert checkpoints.read(tmp_path / "best.npz").num_steps == 2
    checkpoints.mark_best(tmp_path / "step-000000005.npz")
    assert checkpoints.read(tmp_path / "best.npz").num_steps == 5


@pytest.mark.parametrize("keep", [1, 2])
def test_what_was_just_written_is_never_removed(tmp_path, keep):
    """Damaged files of later steps, passed over at a resume, do not count."""
    for num_steps in (8, 9):
        (tmp_path / f"step-{num_steps:09}.npz").write_bytes(b"damaged")
    for num_steps in (3, 4, 5):
        written = checkpoints.write(tmp_path, make_state(num_steps), keep=keep)
        assert checkpoints.latest(tmp_path, lambda line: None)[1] == written
    kept = [p.name for p in sorted(tmp_path.iterdir())]
    steps = [*range(6 - keep, 6), 8, 9]
    assert kept == [f"step-{k:09}.npz" for k in steps]


def test_newer_damaged_files_are_found_and_older_ones_are_not_looked_at(tmp_path):
    for num_steps in (1, 2, 3, 4):
        checkpoints.write(tmp_path, make_state(num_steps))
    for num_steps in (1, 3, 4):
        (tmp_path / f"step-{num_steps:09}.npz").write_bytes(b"")
    found = checkpoints.find(tmp_path, lambda line: None)
    assert found.state.num_steps == 2 and found.path.name == "step-000000002.npz"
    assert [p.name for p in found.damaged] == [
        "step-000000004.npz", "step-000000003.npz"
    ]  # fmt: skip
    assert len(list(tmp_path.iterdir())) == 4  # finding changes nothing


def test_a_damaged_best_is_said_and_may_be_replaced(tmp_path):
    (tmp_path / "best.npz").write_bytes(b"")
    said = []
    assert checkpoints.best_accuracy(tmp_path, said.append) == -1
    assert len(said) == 1 and "best.npz is damaged (it has only 0 bytes)" in said[0]
    assert checkpoints.best_accuracy(tmp_path / "none", pytest.fail) == -1


def set_clock(monkeypatch, seconds):
    """Sets the clock that programs of this process see to seconds since 1970."""
    real = time.localtime
    monkeypatch.setattr(time, "time", lambda: float(seconds))
    monkeypatch.setattr(
        time, "localtime", lambda s=None: real(seconds if s is None else s)
    )


def test_equal_states_are_equal_files_at_any_time(monkeypatch):
    content = checkpoints.to_bytes(make_state())
    for seconds in (0, 3600, 1e9, 4e9):  # the first two are before 1980
        set_clock(monkeypatch, seconds)
        assert checkpoints.to_bytes(make_state()) == content
    assert checkpoints.to_bytes(make_state(seed=1)) != content


def test_a_model_is_saved_by_a_clock_that_stands_before_1980(tmp_path, monkeypatch):
    model = models.build("probe", (16, 16, 1), 10)
    set_clock(monkeypatch, 3600)
    directory.save_model(model, tmp_path / "model.keras")
    assert zipfile.time is time  # only while it was saved
    saved = keras.saving.load_model(tmp_path / "model.keras")
    for one, other in zip(model.get_weights(), saved.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_where_links_can_not_be_made_the_best_is_a_copy(tmp_path, monkeypatch):
    def refuse(*names):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    checkpoints.mark_best(checkpoints.write(tmp_path, make_state(3)))
    assert checkpoints.read(tmp_path / "best.npz").num_steps == 3


def test_the_latest_whole_one_is_taken_and_damaged_ones_are_named(tmp_path):
    for num_steps in (5, 10, 90, 100):
        checkpoints.write(tmp_path, make_state(num_steps))
    for num_steps in (90, 100):
        (tmp_path / f"step-{num_steps:09}.npz").write_bytes(b"")
    warnings = []
    found, path = checkpoints.latest(tmp_path, warnings.append)
    assert (found.num_steps, path.name) == (10, "step-000000010.npz")
    assert len(warnings) == 2 and "step-000000100.npz: it has" in warnings[0]


def test_there_may_be_none(tmp_path):
    assert checkpoints.latest(tmp_path / "nowhere", print) == (None, None)
    assert checkpoints.latest(tmp_path, print) == (None, None)


def test_every_fault_of_a_file_is_recognised(tmp_path, record_property):
    """And the checkpoint before it is taken."""
    checkpoints.write(tmp_path, make_state(1))
    path = checkpoints.write(tmp_path, make_state(2))
    content, count = path.read_bytes(), 0
    for what, damaged in faults(content, checkpoints.to_bytes(make_state(3))):
        path.write_bytes(damaged)
        with pytest.raises(checkpoints.DamagedError):
            checkpoints.read(path)
            pytest.fail(what)
        found, _ = checkpoints.latest(tmp_path, lambda line: None)
        assert_equal(found, make_state(1))
        count += 1
    assert count == 20 + 1 + 50 + 5
    record_property("shown", f"{count} faults of a checkpoint file, all recognised")


def test_a_whole_archive_of_something_else_is_refused(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3))
    content = buffer.getvalue()
    (tmp_path / "a.npz").write_bytes(content + checkpoints._digest(content))
    with pytest.raises(checkpoints.DamagedError, match="not written by tfmirror"):
        checkpoints.read(tmp_path / "a.npz")


def test_pickles_are_not_loaded(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, variable0=np.array([{}], object))
    content = checkpoints.to_bytes(make_state())
    # The real thing, with an array of objects in the place of the first variable.
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as real,
        zipfile.ZipFile(buffer) as pickled,
        zipfile.ZipFile(out, "w") as archive,
    ):
        for name in real.namelist():
            source = pickled if name == "variable0.npy" else real
            archive.writestr(name, source.read(name))
    body = out.getvalue()
    with pytest.raises(checkpoints.DamagedError, match="holds Python objects"):
        checkpoints.from_bytes(body + checkpoints._digest(body))


def crafted(change, **options):
    """Returns a checkpoint with a right digest, whose members `change` has changed.

    Args:
      change: called with {name: content}, to change it.
    """
    content = checkpoints.to_bytes(make_state())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
        archive.comment = b"0" * checkpoints.DIGEST_LENGTH
    body = out.getvalue()[: -checkpoints.DIGEST_LENGTH]
    return body + checkpoints._digest(body)


def announce_128_tib(members):
    member = members["variable0.npy"]
    start = member.index(b"(3, 3, 1, 4)")
    huge = b"(35184372088832,)"
    members["variable0.npy"] = (
        member[:start] + huge + member[start + 12 :].replace(b" " * 5, b"", 1)
    )


def set_json(text):
    return lambda members: members.update({"state.json": text})


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (announce_128_tib, {}, "announces 140,737,488,355,328 bytes and has"),
        (lambda members: None, {"compression": zipfile.ZIP_DEFLATED}, "is packed"),
        (set_json(b" " * (2**25 + 1)), {}, "state.json in it is too large"),
        (set_json(b"[" * 10**5), {}, "recursion"),
        (set_json(b"[]"), {}, "."),
        (set_json(b'{"variables": 3}'), {}, "."),
        (set_json(b'{"variables": [], "point": "a"}'), {}, "."),
        (lambda members: members.pop("state.json"), {}, "no item named"),
        (lambda members: members.pop("variable1.npy"), {}, "no item named"),
    ],
)
def test_a_crafted_checkpoint_is_one_line_and_takes_no_memory(change, options, says):
    content = crafted(change, **options)
    tracemalloc.start()
    try:
        with pytest.raises(checkpoints.DamagedError, match=says) as error:
            checkpoints.from_bytes(content)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(content) + 10**6
    finally:
        tracemalloc.stop()
    assert "not written by tfmirror" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_crafted_checkpoint_without_a_change_is_read():
    assert_equal(checkpoints.from_bytes(crafted(lambda members: None)), make_state())


def test_an_array_file_is_no_checkpoint():
    """NumPy alone would read it as an array, of any size that its header announces."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    body = buffer.getvalue().replace(b"(3,), }          ", b"(35184372088832,), }")
    with pytest.raises(checkpoints.DamagedError, match="not a zip file"):
        checkpoints.from_bytes(body + checkpoints._digest(body))


def test_a_file_larger_than_the_memory_and_a_pipe_are_not_read(tmp_path):
    path = tmp_path / "step-000000007.npz"
    path.touch()
    os.truncate(path, 2**43)
    with pytest.raises(checkpoints.DamagedError, match="must have at most"):
        checkpoints.read(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(checkpoints.DamagedError, match="must be a regular file"):
        checkpoints.read(path)


@contextlib.contextmanager
def small_disk():
    """No file may grow beyond 2,000 bytes.

    Not a fixture: that would last while pytest writes its own output, maybe to a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_one_before_and_nothing_half_written(tmp_path):
    small = make_state(1)
    small.variables.pop("cnn/conv1/kernel")
    first = checkpoints.write(tmp_path, small, keep=1)
    large = make_state(2)
    large.variables["large"] = np.zeros(1000)
    with pytest.raises(OSError) as error, small_disk():
        checkpoints.write(tmp_path, large, keep=1)
    assert error.value.errno == errno.EFBIG
    assert [p.name for p in tmp_path.iterdir()] == [first.name]
    assert_equal(checkpoints.read(first), small)


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    (tmp_path / "step-000000001.npz.unfinished").write_bytes(b"half")
    checkpoints.write(tmp_path, make_state(2))
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000002.npz"]


def test_a_folder_that_vanished_is_made_again_but_not_the_run(tmp_path):
    checkpoints.write(tmp_path / "checkpoints", make_state())
    with pytest.raises(FileNotFoundError):
        checkpoints.write(tmp_path / "gone" / "checkpoints", make_state())
    assert not pathlib.Path(tmp_path / "gone").exists()
