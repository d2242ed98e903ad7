"""Writes a run's checkpoints when they are due, and marks the best one.

checkpointer = Checkpointer(training_setup, folder / "checkpoints", warn=print)
path = checkpointer.write(run_progress)
"""

import pathlib
from collections.abc import Callable

from tfmirror.rundir import checkpoints
from tfmirror.rundir import state as states
from tfmirror.rundir.state import START_OF_PASS, RunProgress
from tfmirror.training.setup import TrainingSetup


class Checkpointer:
    """The checkpoints of one run."""

    def __init__(
        self,
        training_setup: TrainingSetup,
        folder: pathlib.Path,
        warn: Callable[[str], object],
    ) -> None:
        """Reads how good the best checkpoint yet is.

        Args:
          folder: the run directory's folder of checkpoints.
          warn: called with one line if that checkpoint is damaged.
        """
        self._setup, self._folder = training_setup, folder
        interval = training_setup.settings.checkpoint_every
        self.is_enabled = interval.number > 0
        # 0: none is due after steps, or after epochs.
        self.every_steps = interval.number if interval.unit == "step" else 0
        self._every_epochs = interval.number if interval.unit == "epoch" else 0
        self._best_accuracy = checkpoints.best_accuracy(folder, warn)

    def write(self, progress: RunProgress) -> pathlib.Path:
        """Writes a checkpoint at `progress`, where the setup is; returns its path."""
        path = checkpoints.write(
            self._folder,
            states.capture(self._setup, progress),
            keep=self._setup.settings.keep,
        )
        if self._is_best(progress):
            checkpoints.mark_best(path)
            self._best_accuracy = progress.records[-1]["eval_accuracy"]
        return path

    def write_on_resume(self, progress: RunProgress) -> None:
        """Writes the state that the run resumed from into its own directory.

        Without it, a run killed before its next checkpoint would start anew in a new
        folder, and resume with its earlier settings in the old one.
        """
        if self.is_enabled and progress != RunProgress():
            self.write(progress)

    def write_after_epoch(self, progress: RunProgress) -> None:
        """Writes a checkpoint if one is due, or if it is the best or the last."""
        if not self.is_enabled:
            return
        num_epochs = progress.num_epochs
        is_due = self._every_epochs and num_epochs % self._every_epochs == 0
        is_last = num_epochs == self._setup.settings.epochs
        if is_due or is_last or self._is_best(progress):
            self.write(progress)

    def _is_best(self, progress: RunProgress) -> bool:
        """Returns whether `progress` is at the end of the best epoch yet."""
        if not progress.records or progress.point != START_OF_PASS:
            return False
        return progress.records[-1]["eval_accuracy"] > self._best_accuracy
