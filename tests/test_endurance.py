"""Long runs keep neither files open nor memory."""

import json
import os

import pytest

from tfmirror import config
from tfmirror.rundir import checkpoints
from tfmirror.training import run

MEGABYTE = 2**20


def resident_bytes():
    """Returns the memory of this process that is in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_2000_steps_with_40_checkpoints_leave_files_and_memory_flat(
    tmp_path, monkeypatch, record_property
):
    seen, write = [], checkpoints.write

    def looked_at(*args, **kwargs):
        path = write(*args, **kwargs)
        seen.append((len(os.listdir("/proc/self/fd")), resident_bytes()))
        return path

    monkeypatch.setattr(checkpoints, "write", looked_at)
    settings = config.TrainConfig(
        gpus=2,
        dataset="synthetic",  # 64 steps an epoch
        global_batch_size=64,
        epochs=32,
        learning_rate=0.01,
        checkpoint_every="50steps",
        workdir=str(tmp_path / "run"),
    )
    summary = run.train(settings)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(summary["epochs"]) * 64 == 2048
    assert len(seen) >= 2048 // 50
    warm = seen[10:]  # by then all that is kept for later is there
    files, memory = zip(*warm, strict=True)
    record_property(
        "shown",
        f"{len(seen)} checkpoints: {min(files)} to {max(files)} open files, "
        f"{min(memory) // MEGABYTE} to {max(memory) // MEGABYTE} MB",
    )
    assert max(files) == min(files)
    assert max(memory) - min(memory) < 20 * MEGABYTE
