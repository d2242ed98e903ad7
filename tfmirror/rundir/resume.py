"""Going on with a run that was interrupted: what is there, and whether it fits.

earlier = find(settings, warn=print)
earlier.state, earlier.summary                     # None, None: starts anew
"""

import dataclasses
import json
import pathlib

from tfmirror import config, errors
from tfmirror.rundir import checkpoints
from tfmirror.rundir.state import RunState

# Settings that decide nothing of what is computed.
MAY_DIFFER_ON_RESUME = frozenset(
    "workdir device_type data_dir steps_per_loop check_drift_every on_drift "
    "checkpoint_every keep resume resume_override step_timeout "
    "microbatches_per_replica per_replica_batch_size".split()
)

# What decides beside them how the last bits are rounded, in environment.json; threads
# do as well.
AFFECTS_ROUNDING = ("tfmirror", "tensorflow", "keras", "cpu_model", "stand_in_devices")


@dataclasses.dataclass(frozen=True)
class PreviousRun:
    """What there is of a run to go on with."""

    directory: pathlib.Path | None = None  # to go on in; None: in a new one
    state: RunState | None = None  # None: nothing is to be restored
    summary: dict | None = None  # of a run that needs nothing more
    environment: dict | None = None  # what it ran on


def find(settings, warn):
    """Returns the PreviousRun run that resolved `settings` ask for.

    Args:
      warn: called with lines for people.

    Raises:
      InputError: a run or checkpoint that can't be used, or has other settings.
    """
    if settings.resume == "never":
        return PreviousRun()
    if settings.resume != "auto":
        path = errors.expand_path("resume", settings.resume)
        state = _read_given(path, warn)
        check_settings(state.settings, settings)
        run_directory = path if path.is_dir() else path.resolve().parent.parent
        return PreviousRun(state=state, environment=_read_environment(run_directory))
    directory = errors.expand_path("workdir", settings.workdir)
    if not (directory / "config.json").exists():
        return PreviousRun()
    state, path = checkpoints.latest(directory / "checkpoints", warn)
    earlier = state.settings if state else _read_json(directory / "config.json")
    check_settings(earlier, settings)
    if (directory / "summary.json").exists() and earlier["epochs"] == settings.epochs:
        return PreviousRun(directory, summary=_read_json(directory / "summary.json"))
    if state:
        warn(f"resumed from {path}")
    elif (directory / "summary.json").exists():
        raise errors.InputError(
            f"{directory} holds a finished run without a checkpoint to go on from; "
            "choose another --workdir"
        )
    else:
        warn(f"no checkpoint in {directory}: the run starts anew")
    environment = _read_environment(directory) if state else None
    return PreviousRun(directory, state, environment=environment)


def _read_given(path, warn):
    """Returns the RunState in a checkpoint file, or the last one of a run directory."""
    if path.is_dir():
        state, _ = checkpoints.latest(path / "checkpoints", warn)
        errors.require(state, "resume", str(path), "a run with a whole checkpoint")
        return state
    try:
        return checkpoints.read(path)
    except checkpoints.DamagedError as error:
        raise errors.InputError(
            "resume must be never, auto, a checkpoint or a run directory: "
            f"{str(path)!r} can't be used: {error}"
        ) from error


def _read_json(path):
    """Returns what the JSON file `path` holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise errors.InputError(f"{path} is damaged ({error})") from error


def _read_environment(directory):
    """Returns what environment.json of a run directory holds; None: it is not there."""
    path = directory / "environment.json"
    return _read_json(path) if path.exists() else None


def environment_changes(earlier, now):
    """Returns what may round otherwise in `now` than in `earlier`, as lines for people.

    Args:
      earlier, now: of environment.describe; None: not known.
    """
    if not earlier:
        return []
    then, here = (
        {name: e.get(name) for name in AFFECTS_ROUNDING}
        | {"threads": e.get("intra_op_threads") or e.get("num_cpus")}
        for e in (earlier, now)
    )
    return [
        f"warning: {name} was {then[name]}, now {here[name]}: last bits may differ"
        for name in then
        if then[name] != here[name]
    ]


def check_settings(earlier, settings):
    """Raises InputError unless a run of `earlier` settings may go on with `settings`.

    On another number of replicas it may if its microbatches are fixed, since the number
    then changes no bit.

    Args:
      earlier: {name: value}, resolved. What it lacks had its default's effect before
        it became a setting.
    """
    earlier = dataclasses.asdict(config.TrainConfig()) | earlier
    allowed = set(errors.split_names(settings.resume_override)) | MAY_DIFFER_ON_RESUME
    if settings.microbatches:
        allowed.add("gpus")
    wanted = dataclasses.asdict(settings)
    differing = [n for n in wanted if n not in allowed and wanted[n] != earlier[n]]
    if not differing:
        return
    listed = "; ".join(f"{n} {earlier[n]!r}, now {wanted[n]!r}" for n in differing)
    advice = "give the same as then"
    if set(differing) <= set(config.OVERRIDABLE):
        advice += f", or --resume_override={','.join(differing)}"
    raise errors.InputError(f"the run to resume had other settings: {listed}; {advice}")


def check_progress(state, settings, data_sha256):
    """Raises InputError unless `state` is of these data, and within these epochs."""
    if state.data_sha256 != data_sha256:
        raise errors.InputError(
            f"the run to resume was trained on other data than dataset="
            f"{settings.dataset} gives now; give the same --data_dir as then"
        )
    if state.position.num_epochs > settings.epochs:
        raise errors.InputError(
            f"epochs must be at least {state.position.num_epochs}, which the run to "
            f"resume has behind it: got {settings.epochs}"
        )
