"""Resuming a run: finds what there is of it, and checks that it fits the settings.

previous = find(settings, warn=print)
previous.state, previous.summary                    # None, None: starts from step 0
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

from tfmirror import config, errors, files
from tfmirror.rundir import checkpoints
from tfmirror.rundir.state import RunState
from tfmirror.settings import names_with

# Entries of environment.json that affect how the last bits are rounded. The number of
# threads does too.
AFFECTS_ROUNDING = ("tfmirror", "tensorflow", "keras", "cpu_model", "stand_in_devices")


@dataclasses.dataclass(frozen=True)
class PreviousRun:
    """What there is of a run to resume."""

    directory: pathlib.Path | None = None  # to continue in; None: make a new one
    state: RunState | None = None  # None: start from step 0
    summary: dict[str, Any] | None = None  # None: the run still has to be trained
    environment: dict[str, Any] | None = None  # environment.json; None: not known


def find(settings: config.ResolvedConfig, warn: Callable[[str], object]) -> PreviousRun:
    """Returns the run that resolved `settings` ask to resume.

    Args:
      warn: called with lines for people.

    Raises:
      InputError: the run or checkpoint can't be used, or has other settings.
    """
    if settings.resume == "never":
        return PreviousRun()
    if settings.resume == "auto":
        return _find_in_workdir(settings, warn)
    return _find_given(settings, warn)


def _find_given(
    settings: config.ResolvedConfig, warn: Callable[[str], object]
) -> PreviousRun:
    """Returns the run at the path settings.resume, to continue in a new directory."""
    path = errors.expand_path("resume", settings.resume)
    state = _read_given(path, warn)
    check_settings(state.settings, settings)
    directory = path if path.is_dir() else path.resolve().parent.parent
    return PreviousRun(state=state, environment=_read_environment(directory))


def _find_in_workdir(
    settings: config.ResolvedConfig, warn: Callable[[str], object]
) -> PreviousRun:
    """Returns the run in settings.workdir, to continue there."""
    directory = errors.expand_path("workdir", settings.workdir)
    if not (directory / "config.json").exists():
        return PreviousRun()
    state, path = checkpoints.latest(directory / "checkpoints", warn)
    if state:
        previous_settings = state.settings
    else:
        previous_settings = files.read_json_object(directory / "config.json")
    check_settings(previous_settings, settings)
    has_finished = (directory / "summary.json").exists()
    if has_finished and previous_settings.get("epochs") == settings.epochs:
        summary = files.read_json_object(directory / "summary.json")
        return PreviousRun(directory, summary=summary)
    if state:
        warn(f"resumed from {path}")
        return PreviousRun(directory, state, environment=_read_environment(directory))
    if has_finished:
        raise errors.InputError(
            f"{directory} holds a finished run without a checkpoint to resume from; "
            "choose another --workdir"
        )
    warn(f"no checkpoint in {directory}: the run starts from step 0")
    return PreviousRun(directory)


def _read_given(path: pathlib.Path, warn: Callable[[str], object]) -> RunState:
    """Returns the RunState in a checkpoint, or in the newest one of a run directory.

    Raises:
      InputError: there is no complete checkpoint.
    """
    if path.is_dir():
        state, _ = checkpoints.latest(path / "checkpoints", warn)
        if state is None:
            raise errors.InputError(
                f"resume must be a run with a complete checkpoint: got {str(path)!r}"
            )
        return state
    try:
        return checkpoints.read(path)
    except checkpoints.DamagedError as error:
        raise errors.InputError(
            "resume must be never, auto, a checkpoint or a run directory: "
            f"{str(path)!r} can't be used: {error}"
        ) from error


def _read_environment(directory: pathlib.Path) -> dict[str, Any] | None:
    """Returns the environment.json of a run directory; None if there is none."""
    path = directory / "environment.json"
    return files.read_json_object(path) if path.exists() else None


def environment_changes(
    previous: dict[str, Any] | None, current: dict[str, Any]
) -> list[str]:
    """Returns a warning for each change that may round the last bits differently.

    Args:
      previous: environment.json of the run to resume; None: not known.
      current: what environment.describe gives now.
    """
    if not previous:
        return []
    then, now = _rounding(previous), _rounding(current)
    return [
        f"warning: {name} was {then[name]}, now {now[name]}: last bits may differ"
        for name in then
        if then[name] != now[name]
    ]


def _rounding(environment: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of environment.json that affect rounding, and the threads."""
    threads = environment.get("intra_op_threads") or environment.get("num_cpus")
    return {n: environment.get(n) for n in AFFECTS_ROUNDING} | {"threads": threads}


def check_settings(previous: dict[str, Any], settings: config.ResolvedConfig) -> None:
    """Checks that a run with the settings `previous` may be resumed with `settings`.

    The number of replicas may differ if the microbatches are fixed, since it then
    changes no bit.

    Args:
      previous: {name: value}, resolved. A setting that it lacks did not exist when the
        run began, and has had its default's effect.

    Raises:
      InputError: a setting differs that must not; the message lists all of them.
    """
    previous = dataclasses.asdict(config.TrainConfig()) | previous
    allowed = {*settings.resume_override, *names_with(config.TrainConfig, "free")}
    if settings.microbatches:
        allowed.add("gpus")
    now = settings.to_json()
    differing = [n for n in now if n not in allowed and now[n] != previous[n]]
    if not differing:
        return
    listed = "; ".join(f"{n} {previous[n]!r}, now {now[n]!r}" for n in differing)
    advice = "give the same values as then"
    if set(differing) <= set(names_with(config.TrainConfig, "override")):
        advice += f", or --resume_override={','.join(differing)}"
    raise errors.InputError(f"the run to resume had other settings: {listed}; {advice}")


def check_progress(
    state: RunState, settings: config.ResolvedConfig, data_sha256: str
) -> None:
    """Checks that `state` was trained on the same data, and not for too many epochs.

    Args:
      data_sha256: datasets.ImageDataset.sha256 of the data now.

    Raises:
      InputError: other data, or more epochs are finished than the settings ask for.
    """
    if state.data_sha256 != data_sha256:
        raise errors.InputError(
            f"the run to resume was trained on other data than dataset="
            f"{settings.dataset} gives now; give the same --data_dir as then"
        )
    num_epochs = state.position.num_epochs
    if num_epochs > (settings.epochs or 0):
        raise errors.InputError(
            f"epochs must be at least {num_epochs}, the epochs already trained: got "
            f"{settings.epochs}"
        )
