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


MANY_EPOCHS = 100_000  # far more than pass before a run is killed


def start(folder, epochs):
    """Starts the run in `folder`, or goes on with it, to its end after `epochs`."""
    environment = dict(os.environ)
    environment.pop(command.LOG_LEVEL, None)  # TensorFlow is to be quiet as for a user
    return subprocess.Popen(
        [
            *COMMAND,
            f"--epochs={epochs}",
            "--resume_override=epochs",
            f"--workdir={folder}",
        ],
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


def kill_at_random(folder, rng):
    """Kills the run at a random moment after a random number of new checkpoints."""
    before = set(folder.glob("checkpoints/*.npz"))
    seen, num_wanted = set(), rng.randint(1, 20)
    with start(folder, MANY_EPOCHS) as process:
        while len(seen) < num_wanted:
            assert process.poll() is None, process.stderr.read()
            seen |= set(folder.glob("checkpoints/*.npz")) - before
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.communicate()
    assert process.returncode == -9


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [2, pytest.param(30, marks=pytest.mark.hours)])
def test_killed_again_and_again_it_ends_with_the_same_bits(num_kills, tmp_path):
    folder, rng = tmp_path / "killed", random.Random(0)
    for _ in range(num_kills):
        kill_at_random(folder, rng)
        found, _ = checkpoints.latest(folder / "checkpoints", pytest.fail)
        assert found is not None
    epochs = found.position.num_epochs + 2  # one that is whole after the last kill
    resumed = finish(folder, epochs)
    whole = finish(tmp_path / "whole", epochs)
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    losses = [
        [record["train_loss"] for record in summary["epochs"]]
        for summary in (whole, resumed)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == epochs
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == epochs
    assert not list(folder.glob("checkpoints/*.unfinished"))
