"""Going on with a run that was interrupted: what is there, and whether it fits.

earlier = find(settings, warn=print)
earlier.state, earlier.summary                     # None, None: starts anew
"""

import dataclasses
import json
import pathlib

from tfmirror import config
from tfmirror.training import checkpoints
from tfmirror.training.state import State

# Settings that decide nothing of what is computed.
FREE = frozenset(
    "workdir device_type data_dir steps_per_loop check_drift_every on_drift "
    "checkpoint_every keep resume resume_override step_timeout "
    "microbatches_per_replica per_replica_batch_size".split()
)


@dataclasses.dataclass(frozen=True)
class Earlier:
    """What there is of a run to go on with."""

    directory: pathlib.Path | None = None  # to go on in; None: in a new one
    state: State | None = None  # None: nothing is to be restored
    summary: dict | None = None  # of a run that needs nothing more


def find(settings, warn):
    """Returns the Earlier run that resolved `settings` ask for.

    Args:
      warn: called with lines for people.

    Raises:
      InputError: a run or checkpoint that can't be used, or has other settings.
    """
    if settings.resume == "never":
        return Earlier()
    if settings.resume != "auto":
        state = _read_given(config.expand_path("resume", settings.resume), warn)
        check_settings(state.settings, settings)
        return Earlier(state=state)
    directory = config.expand_path("workdir", settings.workdir)
    if not (directory / "config.json").exists():
        return Earlier()
    state, path = checkpoints.latest(directory / "checkpoints", warn)
    earlier = state.settings if state else _read_json(directory / "config.json")
    check_settings(earlier, settings)
    if (directory / "summary.json").exists() and earlier["epochs"] == settings.epochs:
        return Earlier(directory, summary=_read_json(directory / "summary.json"))
    if state:
        warn(f"resumed from {path}")
    elif (directory / "summary.json").exists():
        raise config.InputError(
            f"{directory} holds a finished run without a checkpoint to go on from; "
            "choose another --workdir"
        )
    else:
        warn(f"no checkpoint in {directory}: the run starts anew")
    return Earlier(directory, state)


def _read_given(path, warn):
    """Returns the State in a checkpoint file, or the last one of a run directory."""
    if path.is_dir():
        state, _ = checkpoints.latest(path / "checkpoints", warn)
        config.require(state, "resume", str(path), "a run with a whole checkpoint")
        return state
    try:
        return checkpoints.read(path)
    except checkpoints.DamagedError as error:
        raise config.InputError(
            "resume must be never, auto, a checkpoint or a run directory: "
            f"{str(path)!r} can't be used: {error}"
        ) from error


def _read_json(path):
    """Returns what the JSON file `path` holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise config.InputError(f"{path} is damaged ({error})") from error


def check_settings(earlier, settings):
    """Raises InputError unless a run of `earlier` settings may go on with `settings`.

    On another number of replicas it may if its microbatches are fixed, since the number
    then changes no bit.

    Args:
      earlier: {name: value}, resolved.
    """
    allowed = set(config.split_names(settings.resume_override)) | FREE
    if settings.microbatches:
        allowed.add("gpus")
    wanted = dataclasses.asdict(settings)
    differing = [n for n in wanted if n not in allowed and wanted[n] != earlier.get(n)]
    if not differing:
        return
    listed = "; ".join(f"{n} {earlier.get(n)!r}, now {wanted[n]!r}" for n in differing)
    advice = "give the same as then"
    if set(differing) <= set(config.OVERRIDABLE):
        advice += f", or --resume_override={','.join(differing)}"
    raise config.InputError(f"the run to resume had other settings: {listed}; {advice}")


def check_progress(state, settings, data_sha256):
    """Raises InputError unless `state` is of these data, and within these epochs."""
    if state.data_sha256 != data_sha256:
        raise config.InputError(
            f"the run to resume was trained on other data than dataset="
            f"{settings.dataset} gives now; give the same --data_dir as then"
        )
    if state.position.num_epochs > settings.epochs:
        raise config.InputError(
            f"epochs must be at least {state.position.num_epochs}, which the run to "
            f"resume has behind it: got {settings.epochs}"
        )
