"""A checkpoint is whole or not there, and a damaged one is never read."""

import contextlib
import errno
import io
import os
import pathlib
import resource
import zipfile

import numpy as np
import pytest
from helpers import faults

from tfmirror import metrics
from tfmirror.rundir import checkpoints, state


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
    with pytest.raises(checkpoints.DamagedError, match="allow_pickle=False"):
        checkpoints.from_bytes(body + checkpoints._digest(body))


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
