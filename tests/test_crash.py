"""A training process that is killed at any moment loses nothing but time."""

import json
import os
import random
import subprocess
import sys
import time

import pytest

from tfmirror import command
from tfmirror.rundir import checkpoints

# Checkpoints after every second step, so that some kills fall into their writing.
COMMAND = [
    sys.executable, "-m", "tfmirror.train", "--gpus=2", "--microbatches=4",
    "--global_batch_size=32", "--limit_train_examples=200", "--limit_eval_examples=40",
    "--momentum=0.9", "--learning_rate=0.02", "--checkpoint_every=2steps",
    "--resume=auto",
]  # fmt: skip


def start(folder, epochs):
    """Starts the run in `folder`, or goes on with it."""
    environment = dict(os.environ)
    environment.pop(command.LOG_LEVEL, None)  # TensorFlow is to be quiet as for a user
    return subprocess.Popen(
        [*COMMAND, f"--epochs={epochs}", f"--workdir={folder}"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(folder, epochs):
    """Runs to the end; returns the summary."""
    with start(folder, epochs) as process:
        _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    return json.loads((folder / "summary.json").read_text())


def kill_at_random(folder, epochs, rng):
    """Kills the run at a random moment after its first new checkpoint, if it has one.

    Returns whether it was killed before its end.
    """
    before = set(folder.glob("checkpoints/*.npz"))
    with start(folder, epochs) as process:
        while process.poll() is None:
            if set(folder.glob("checkpoints/*.npz")) - before:
                break
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 1))
        process.kill()
        process.communicate()
    return process.returncode == -9


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [2, pytest.param(30, marks=pytest.mark.hours)])
def test_killed_again_and_again_it_ends_with_the_same_bits(num_kills, tmp_path):
    epochs = 20 * num_kills  # more than pass between two of them
    whole = finish(tmp_path / "whole", epochs)
    folder, rng, killed = tmp_path / "killed", random.Random(0), 0
    for _ in range(num_kills):
        killed += kill_at_random(folder, epochs, rng)
        found, _ = checkpoints.latest(folder / "checkpoints", pytest.fail)
        assert found is not None
    assert killed == num_kills
    resumed = finish(folder, epochs)
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    losses = [
        [record["train_loss"] for record in summary["epochs"]]
        for summary in (whole, resumed)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == epochs
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == epochs
    assert not list(folder.glob("checkpoints/*.unfinished"))
