"""Writes the files that a run starts with, so that it can be resumed from then on.

write(training_setup, checkpointer, folder, previous, print)
"""

import pathlib
from collections.abc import Callable

from tfmirror import files
from tfmirror.rundir import environment, resume
from tfmirror.rundir.state import RunProgress, settings_to_record
from tfmirror.training.checkpointer import Checkpointer
from tfmirror.training.setup import TrainingSetup


def write(
    training_setup: TrainingSetup,
    checkpointer: Checkpointer,
    folder: pathlib.Path,
    previous: resume.PreviousRun,
    say: Callable[[str], object],
) -> None:
    """Writes config.json, environment.json and the state that is resumed.

    In a new folder config.json comes first: it says that there is a run, and from which
    other it began. In a run's own folder the summary goes first, with which a run that
    is made longer would seem finished, and the state comes before the settings, since
    a resumed run has the settings that its newest checkpoint says.

    Args:
      training_setup: it has the state of `previous`.
      folder: the run directory, locked.
      previous: what is resumed.
      say: called with one line for each damaged checkpoint that is moved aside.

    Raises:
      OSError: a file can't be written.
    """
    for path in previous.damaged:
        say(f"moved {path} aside, to {files.move_aside(path).name}")
    files.remove(folder / "summary.json")
    state, settings = previous.state, training_setup.settings
    progress = state.position if state else RunProgress()
    if previous.directory:
        checkpointer.write_on_resume(progress)
    record = settings_to_record(settings, training_setup.initial_weights_sha256)
    files.write_json(folder / "config.json", record)
    num_steps = progress.num_steps(training_setup.steps_per_epoch)
    start = environment.describe_start(training_setup.devices, settings, num_steps)
    environment.write(folder, [*previous.starts, start])
    if not previous.directory:
        checkpointer.write_on_resume(progress)
