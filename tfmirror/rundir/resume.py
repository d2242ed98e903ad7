"""Resuming a run: finds what there is of it, and checks that it fits the settings.

previous = find(settings, warn=print)
previous.state, previous.summary                    # None, None: starts from step 0
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from tfmirror import config, errors, files, model_source
from tfmirror.data import pipeline
from tfmirror.rundir import checkpoints, reader, workdir
from tfmirror.rundir.state import RunState
from tfmirror.settings import names_with, of_recorded

# Entries of environment.json that affect how the last bits are rounded. The number of
# threads and the models of the GPUs do too.
AFFECTS_ROUNDING = (
    "tfmirror", "tensorflow", "keras", "cpu_model", "stand_in_devices",
    "nvidia_driver", "cuda", "cudnn",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PreviousRun:
    """What there is of a run to resume."""

    directory: pathlib.Path | None = None  # to continue in; None: make a new one
    state: RunState | None = None  # None: start from step 0
    summary: dict[str, Any] | None = None  # None: the run still has to be trained
    starts: tuple[dict[str, Any], ...] = ()  # what it ran on, see reader.read_starts
    # Damaged checkpoints in `directory` that are newer than `state`.
    damaged: tuple[pathlib.Path, ...] = ()
    # Digest of the weights that it began with, if it starts from step 0 again.
    initial_weights_sha256: str | None = None


def find(settings: config.ResolvedConfig, warn: Callable[[str], object]) -> PreviousRun:
    """Returns the run that resolved `settings` ask to resume; changes nothing.

    Who holds the lock of the run directory gets what is still true later.

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
    return PreviousRun(state=state, starts=reader.read_starts(directory, warn))


def _find_in_workdir(
    settings: config.ResolvedConfig, warn: Callable[[str], object]
) -> PreviousRun:
    """Returns the run in settings.workdir, to continue there."""
    directory = errors.expand_path("workdir", settings.workdir)
    if not workdir.holds_run(directory):
        return PreviousRun()
    found = checkpoints.find(directory / checkpoints.FOLDER, warn)
    previous = found.state.settings if found.state else _read_settings(directory)
    check_settings(previous, settings)
    summary = reader.read_summary(directory, warn)
    if summary and _num_epochs(summary) == settings.epochs:
        return PreviousRun(directory, summary=summary)
    state = found.state
    if state:
        warn(f"resumed from {found.path}")
    elif summary:
        raise errors.InputError(
            f"{directory} holds a finished run without a checkpoint to resume from; "
            "choose another --workdir"
        )
    elif previous.get("resume", "never") not in ("never", "auto"):
        # It began from another run, and was killed before its first checkpoint.
        state = _read_given(errors.expand_path("resume", previous["resume"]), warn)
        warn(f"no checkpoint in {directory}: resumed from {previous['resume']} again")
    else:
        warn(f"no checkpoint in {directory}: the run starts from step 0")
    starts = reader.read_starts(directory, warn)
    return PreviousRun(
        directory,
        state,
        starts=starts,
        damaged=found.damaged,
        initial_weights_sha256=previous.get("initial_weights_sha256", ""),
    )


def _read_settings(directory: pathlib.Path) -> dict[str, Any]:
    """Returns config.json of a run directory without a complete checkpoint.

    Raises:
      InputError: it is missing or damaged, so that the run's settings are not known.
    """
    try:
        return files.read_json_object(directory / "config.json")
    except files.DamagedFileError as error:
        raise errors.InputError(
            f"{error.path} is damaged ({error.why}), and no complete checkpoint has "
            "the run's settings; choose another --workdir"
        ) from error


def _num_epochs(summary: dict[str, Any]) -> int:
    """Returns the number of epochs in a summary.json."""
    records = summary.get("epochs")
    return len(records) if isinstance(records, list) else 0


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


def environment_changes(
    starts: Sequence[dict[str, Any]], current: dict[str, Any]
) -> list[str]:
    """Returns a warning for each change that may round the last bits differently.

    Args:
      starts: what the run to resume has run on; its last start counts.
      current: what environment.describe gives now.
    """
    if not starts:
        return []
    then, now = _rounding(starts[-1]), _rounding(current)
    return [
        f"warning: {name} was {then[name]}, now {now[name]}: last bits may differ"
        for name in then
        if then[name] != now[name]
    ]


def _rounding(environment: dict[str, Any]) -> dict[str, Any]:
    """Returns what of an environment affects rounding; "" for what was not written."""
    threads = environment.get("intra_op_threads") or environment.get("num_cpus")
    models = sorted(set(environment.get("gpus") or ()))
    return {n: environment.get(n, "") for n in AFFECTS_ROUNDING} | {
        "threads": threads,
        "gpu": ", ".join(models),
    }


def check_settings(previous: dict[str, Any], settings: config.ResolvedConfig) -> None:
    """Checks that a run with the settings `previous` may be resumed with `settings`.

    The number of replicas may differ if the microbatches are fixed, since it then
    changes no bit.

    Args:
      previous: {name: value}, resolved. A setting that it lacks did not exist when the
        run began, and has had its default's effect.

    Raises:
      InputError: the run had another order of examples; or a setting differs that must
        not, and the message lists all of them.
    """
    _check_order(previous)
    previous = of_recorded(config.TrainConfig, previous)
    previous = dataclasses.asdict(config.TrainConfig()) | previous
    allowed = {*settings.resume_override, *names_with(config.TrainConfig, "free")}
    if settings.microbatches:
        allowed.add("gpus")
    if model_source.is_own(settings.model) and model_source.is_own(previous["model"]):
        _check_own_model(previous, settings)
        allowed.add("model")  # the file may have moved
    now = settings.to_json()
    differing = [n for n in now if n not in allowed and now[n] != previous[n]]
    if not differing:
        return
    listed = "; ".join(f"{n} {previous[n]!r}, now {now[n]!r}" for n in differing)
    advice = "give the same values as then"
    if set(differing) <= set(names_with(config.TrainConfig, "override")):
        advice += f", or --resume_override={','.join(differing)}"
    raise errors.InputError(f"the run to resume had other settings: {listed}; {advice}")


def _check_own_model(previous: dict[str, Any], settings: config.ResolvedConfig) -> None:
    """Raises InputError if another function, or another file, gives the own model."""
    then, now = previous["model"], settings.model
    names = model_source.function_name(then), model_source.function_name(now)
    digests = previous.get("model_sha256", ""), settings.model_sha256
    if names[0] != names[1] or digests[0] != digests[1]:
        raise errors.InputError(
            f"the run to resume has the model {then} of a file with the SHA-256 "
            f"{digests[0][:12] or 'unknown'}, now {now} of one with "
            f"{digests[1][:12] or 'unknown'}: give the same function of the same file "
            "as then, or start a new run in another --workdir"
        )


def _check_order(previous: dict[str, Any]) -> None:
    """Raises InputError if a run with these settings had another order of examples.

    The rest of its epoch would repeat some examples and leave out others.
    """
    version = previous.get("order_version", 1)  # the first one was not recorded
    if version != pipeline.ORDER_VERSION:
        raise errors.InputError(
            f"the run to resume shuffles with version {version!r} of the order of "
            f"examples, this tfmirror has version {pipeline.ORDER_VERSION}: start a "
            "new run in another --workdir, or resume with the tfmirror that began it"
        )


def check_initial_weights(previous: PreviousRun, sha256: str) -> None:
    """Checks that a run that starts again from step 0 begins with the same weights.

    Args:
      sha256: digest of the initial weights now; empty: none were given.

    Raises:
      InputError: the run began with others.
    """
    then = previous.initial_weights_sha256
    if then is not None and not previous.state and then != sha256:
        raise errors.InputError(
            f"{previous.directory} has no checkpoint to resume from, and its "
            "initial_weights have changed since it began; give the same weights as "
            "then, or choose another --workdir"
        )


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
