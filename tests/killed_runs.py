"""Kills a run again and again, while other processes try to take it over.

python killed_runs.py FOLDER NUM_KILLS SEED         # prints JSON: what was counted

Each process is forked from this one, which has imported everything and started nothing,
so a run trains after two seconds. While one process trains, others start in the same
folder: each must say that it is in use, or, if the first was killed by then, go on.
"""

import collections
import importlib
import json
import os
import pathlib
import pkgutil
import random
import runpy
import signal
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

# Checkpoints after every second step, so that some kills fall into their writing.
FLAGS = [
    "--gpus=2", "--microbatches=4", "--global_batch_size=32",
    "--limit_train_examples=200", "--limit_eval_examples=40", "--momentum=0.9",
    "--learning_rate=0.02", "--checkpoint_every=2steps", "--resume=auto",
    "--resume_override=epochs",
]  # fmt: skip
MANY_EPOCHS = 100_000  # far more than pass before a run is killed
IN_USE = "workdir is in use: another process trains in"


def import_everything() -> None:
    """Imports all that a run imports, so that it is there after a fork."""
    package = importlib.import_module("tfmirror")
    for module in pkgutil.walk_packages(package.__path__, "tfmirror."):
        if "torch" not in module.name:
            importlib.import_module(module.name)


def start(folder: pathlib.Path, errors: pathlib.Path, epochs: int) -> int:
    """Starts training in a process of its own; returns its number."""
    process = os.fork()
    if process:
        return process
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.argv = ["train", *FLAGS, f"--epochs={epochs}", f"--workdir={folder}"]
        runpy.run_module("tfmirror.train", run_name="__main__")
    except SystemExit as end:
        os._exit(end.code)
    finally:
        os._exit(1)  # after its traceback


def exit_code(process: int, *, waits: bool) -> int | None:
    """Returns the exit code of a process, below 0 for a signal; None: it runs."""
    done, status = os.waitpid(process, 0 if waits else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def checkpoints(folder: pathlib.Path) -> set[str]:
    """Returns the names of the checkpoints and of what is being written."""
    try:
        return set(os.listdir(folder / "checkpoints"))
    except FileNotFoundError:
        return set()


class Killer:
    """Counts what happens to the processes that train in one folder."""

    def __init__(self, folder: pathlib.Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.errors = folder.with_suffix(".errors")
        self.counts: collections.Counter[str] = collections.Counter()
        self.trains = start(folder, self.errors, MANY_EPOCHS)

    def wait_for_checkpoints(self) -> None:
        """Waits until a random number of new checkpoints has been seen.

        With none, the run may still be reading its state, or not even have the lock.
        """
        before, seen = checkpoints(self.folder), set()
        num_wanted = self.rng.choice([0, 1, 2, 3, 5, 8])
        while len(seen) < num_wanted:
            self._assert_trains()
            seen |= checkpoints(self.folder) - before
            time.sleep(0.002)
        time.sleep(self.rng.uniform(0, 0.1 if num_wanted else 2))

    def kill(self) -> None:
        """Kills the process that trains; another one takes over.

        In half of the cases the other one has started before the kill.
        """
        begins_before = self.rng.random() < 0.5
        if begins_before:
            other = start(self.folder, self.folder.with_suffix(".other"), MANY_EPOCHS)
            time.sleep(self.rng.choice([0, 0.003, 0.006, 0.01, 0.02, 0.05]))
        self._assert_trains()
        os.kill(self.trains, signal.SIGKILL)
        assert exit_code(self.trains, waits=True) == -signal.SIGKILL
        self.counts["kills"] += 1
        if begins_before:
            self.folder.with_suffix(".other").replace(self.errors)
            self.trains = other
            if not self._was_refused():
                self.counts["took over a lock"] += 1
                return
        self.trains = start(self.folder, self.errors, MANY_EPOCHS)

    def _was_refused(self) -> bool:
        """Returns whether the process that would train ends: the folder is in use."""
        for _ in range(500):  # it tries the lock within some hundredths of a second
            code = exit_code(self.trains, waits=False)
            if code is not None:
                text = self.errors.read_text()
                assert code == 2 and IN_USE in text, (code, text)
                self.counts["refused, in use"] += 1
                return True
            time.sleep(0.001)
        return False

    def _assert_trains(self) -> None:
        code = exit_code(self.trains, waits=False)
        assert code is None, (code, self.errors.read_text())


def main(folder: pathlib.Path, num_kills: int, seed: int) -> None:
    """Kills the run `num_kills` times and lets it end; prints what was counted."""
    import_everything()
    from tfmirror.rundir import checkpoints as files

    killer = Killer(folder, seed)
    while killer.counts["kills"] < num_kills:
        killer.wait_for_checkpoints()
        killer.kill()
    killer._assert_trains()
    os.kill(killer.trains, signal.SIGKILL)
    exit_code(killer.trains, waits=True)
    passed_over: list[str] = []
    found, _ = files.latest(folder / "checkpoints", passed_over.append)
    assert found is not None
    epochs = found.position.num_epochs + 2  # one that is whole after the last kill
    for of_run in (folder, folder.with_suffix(".whole")):
        process = start(of_run, killer.errors, epochs)
        code = exit_code(process, waits=True)
        assert code == 0, (code, killer.errors.read_text())
    counted = {**killer.counts, "epochs": epochs, "damaged": len(passed_over)}
    print(json.dumps(counted), flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
