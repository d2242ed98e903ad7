"""Loads a trained model from a run directory or from a checkpoint.

trained = find("runs/first", warn=print)
model = build(trained, strategy)                   # mirrored, with the trained weights
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfmirror import errors, files, metrics, model_source, models
from tfmirror.model_source import ModelSource
from tfmirror.models import keras_defaults, variable_names, weight_files
from tfmirror.models.variable_shapes import variable_shapes
from tfmirror.rundir import checkpoints, directory, reader
from tfmirror.rundir.reader import RunRecord
from tfmirror.rundir.state import START_OF_PASS, RunState, class_names_of

# How paths of batch norm's variables end that it updates in training.
MOVING_STATISTICS = ("/moving_mean", "/moving_variance")


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a trained model is built from, as plain values."""

    source: str  # the file that holds the weights, for people
    settings: dict[str, Any]  # of its run, resolved
    input_shape: tuple[int, ...]  # (H, W, C)
    num_classes: int  # K
    # Of the whole model, in its order, with the weights that are evaluated.
    variables: tuple[np.ndarray, ...]
    class_names: tuple[str, ...] = ()  # [K]; (): not known
    # How a model of the user's own is built again: by its function, or else from the
    # file that Keras wrote.
    own_model: ModelSource | None = None
    keras_file: pathlib.Path | None = None


def find(
    path: str | pathlib.Path,
    warn: Callable[[str], object],
    own_model: ModelSource | None = None,
) -> Trained:
    """Returns the Trained model at `path`.

    For a finished run it is the final model, for another run the newest complete
    checkpoint. If the run kept a moving average of its weights, the weights are that
    average, as in the run's own evaluation; see `_evaluated_names` for checkpoints that
    were written within an epoch.

    Args:
      path: a run directory or a checkpoint.
      warn: called with one line for each damaged checkpoint that is skipped, and one
        if the weights are not the average that was kept.
      own_model: the function that made the run's model. Without it a model of the
        user's own is read from the file of a finished run, if Keras can do so without
        the user's code.

    Raises:
      InputError: there is no model, a file of it is damaged, or another or no
        `own_model` is given where it is needed.
    """
    model_path = errors.expand_path("the model", path)
    if model_path.is_dir():
        found = _find_in_run(model_path, warn, own_model)
    else:
        state = read_checkpoint(model_path)
        found = _from_state(state, model_path, warn, own_model)
    reader.check_settings(model_path, found.settings, reader.NEEDED_TO_EVALUATE)
    return found


def check_own_model(settings: dict[str, Any], own_model: ModelSource | None) -> None:
    """Checks that a function is the one that made a run's model.

    Args:
      settings: of the run.
      own_model: the function; None: none is given, which is not checked.

    Raises:
      InputError: the run's model is built in, or of another function or file.
    """
    if own_model is None:
        return
    of_run = settings.get("model", "")
    if not model_source.is_own(of_run):
        raise errors.InputError(
            f"the run's model is {of_run}, which is built in: remove "
            f"--model={own_model.name}"
        )
    names = [model_source.function_name(name) for name in (of_run, own_model.name)]
    digest = settings.get("model_sha256", "")
    if names[0] != names[1] or digest != own_model.sha256:
        raise errors.InputError(
            f"the run's model is {of_run} of a file with the SHA-256 {digest[:12]}: "
            f"got --model={own_model.name} of one with {own_model.sha256[:12]}; give "
            "the same function of the file as it was then"
        )


def read_settings(path: str | pathlib.Path) -> dict[str, Any]:
    """Returns the settings of the run whose model is at `path`.

    Unlike `find` it does not start TensorFlow's runtime, so that the number of threads
    can still be set.

    Raises:
      InputError: there is no model, or a file of it is damaged.
    """
    model_path = errors.expand_path("the model", path)
    if model_path.is_dir():
        settings = reader.read(model_path).settings
    else:
        settings = read_checkpoint(model_path).settings
    reader.check_settings(model_path, settings, reader.NEEDED_TO_EVALUATE)
    return settings


def _find_in_run(
    folder: pathlib.Path,
    warn: Callable[[str], object],
    own_model: ModelSource | None,
) -> Trained:
    """Returns the Trained model of a run directory."""
    run = reader.read(folder, warn)
    if run.summary is not None:
        return _from_finished(folder, run, run.summary, own_model)
    state, file = checkpoints.latest(folder / "checkpoints", warn)
    if state is None or file is None:
        raise errors.InputError(
            f"{folder} holds neither a finished run nor a complete checkpoint"
        )
    return _from_state(state, file, warn, own_model)


def read_checkpoint(path: pathlib.Path) -> RunState:
    """Returns the RunState in a checkpoint.

    Raises:
      InputError: there is no complete checkpoint at `path`.
    """
    try:
        return checkpoints.read(path)
    except checkpoints.DamagedError as error:
        raise errors.InputError(
            f"a run directory or a checkpoint is expected: {str(path)!r} can't be "
            f"used: {error}"
        ) from error


def _from_state(
    state: RunState,
    file: pathlib.Path,
    warn: Callable[[str], object],
    own_model: ModelSource | None,
) -> Trained:
    """Returns the Trained model in the RunState that was read from `file`."""
    check_own_model(state.settings, own_model)
    of_run = state.settings.get("model", "")
    if model_source.is_own(of_run) and own_model is None:
        raise errors.InputError(
            f"{file} has weights of a model that tfmirror does not have: give "
            f"--model={of_run}, whose code then runs"
        )
    return Trained(
        source=str(file),
        settings=state.settings,
        input_shape=state.model.input_shape,
        num_classes=state.model.num_classes,
        variables=tuple(
            state.variables[name] for name in _evaluated_names(state, file, warn)
        ),
        own_model=own_model,
        class_names=_of_number(state.model.class_names, state.model.num_classes),
    )


def _evaluated_names(
    state: RunState, file: pathlib.Path, warn: Callable[[str], object]
) -> list[str]:
    """Returns the names in `state` of the model's variables, in the model's order.

    They name averages where these are kept. But batch norm's statistics are estimated
    for the averages only when an epoch ends. A checkpoint from within an epoch has none
    that fit, so its raw weights are taken, with their own statistics.
    """
    saved, paths = state.variables, state.model.variables
    name_functions = (
        variable_names.averaged_name,
        variable_names.earlier_averaged_name,
    )
    averages = {
        path: name
        for path in paths
        for name_of in name_functions
        if (name := name_of(path)) in saved
    }
    # Those of frozen layers, of which nothing is averaged, belong to any weights.
    changing = {path.rpartition("/")[0] for path in averages}
    statistics = [
        path
        for path in paths
        if path.partition("#")[0].endswith(MOVING_STATISTICS)  # of layers of one name
        and path.rpartition("/")[0] in changing
    ]
    if any(path in averages for path in statistics):
        if state.position.point != START_OF_PASS:
            warn(
                f"warning: {file} is from within an epoch, when batch norm has no "
                "statistics for the averaged weights: the raw weights are used"
            )
            averages = {}
    elif statistics and averages:
        warn(
            f"warning: {file} has batch norm's statistics for the raw weights alone; "
            "the averaged weights are used with them"
        )
    return [averages.get(path, path) for path in paths]


def _from_finished(
    folder: pathlib.Path,
    run: RunRecord,
    summary: dict[str, Any],
    own_model: ModelSource | None,
) -> Trained:
    """Returns the Trained model of a finished run."""
    file = folder / directory.MODEL
    check_own_model(run.settings, own_model)
    if own_model:
        model = _load_weights(file, own_model, run.settings, summary)
    else:
        model = _load_keras(file, run.settings.get("model", ""))
    try:
        class_names = class_names_of(summary)
    except TypeError as error:
        raise files.damaged(folder / "summary.json", error) from error
    if metrics.weights_sha256(model.variables) != summary.get("weights_sha256"):
        raise _damaged(file, "its weights are not those in summary.json")
    return Trained(
        source=str(file),
        settings=run.settings,
        input_shape=tuple(model.input_shape[1:]),
        num_classes=model.output_shape[-1],
        variables=tuple(variable.numpy() for variable in model.variables),
        own_model=own_model,
        keras_file=file,
        class_names=_of_number(class_names, model.output_shape[-1]),
    )


def _of_number(class_names: tuple[str, ...], num_classes: int) -> tuple[str, ...]:
    """Returns the names of the classes if there are as many; else none."""
    return class_names if len(class_names) == num_classes else ()


@keras_defaults.scope()
def _load_weights(
    file: pathlib.Path,
    own_model: ModelSource,
    settings: dict[str, Any],
    summary: dict[str, Any],
) -> keras.Model:
    """Returns the model that the user's function makes, with the weights in `file`."""
    try:
        shape, num_classes = tuple(summary["input_shape"]), summary["num_classes"]
        model = models.build(
            own_model, shape, num_classes, precision=settings["precision"]
        )
        weight_files.load_weights(file, model)
    except (KeyError, TypeError, weight_files.UnusableFileError) as error:
        raise _damaged(file, str(error)) from error
    return model


def _load_keras(file: pathlib.Path, model: str = "") -> keras.Model:
    """Returns the Keras model in `file`; refuses a file that holds code (safe mode).

    Args:
      model: setting of the run; empty: a built-in one.
    """
    try:
        return weight_files.load_model(file)
    except weight_files.UnusableFileError as error:
        if model_source.is_own(model):
            raise errors.InputError(
                f"{file} can't be read without the code of its model ({error}): give "
                f"--model={model}, whose code then runs"
            ) from error
        raise _damaged(file, str(error)) from error


def _damaged(file: pathlib.Path, why: str) -> errors.InputError:
    """Returns the error of a model file that can't be used."""
    return errors.InputError(
        f"{file} can't be used ({why}); give one of the run's checkpoints instead"
    )


def build(
    trained: Trained, strategy: tf.distribute.Strategy | None = None
) -> keras.Model:
    """Returns the Keras model of a Trained, with its weights.

    The model maps images [b, H, W, C] float32 in [0, 1] to logits [b, K].

    Args:
      strategy: mirrors the model on its devices; None: a plain model on one device.

    Raises:
      InputError: the variables do not fit the model that the settings name.
    """
    settings = trained.settings

    def build_new() -> keras.Model:
        if trained.keras_file and model_source.is_own(settings["model"]):
            if trained.own_model is None:
                return _load_keras(trained.keras_file, settings["model"])
        return models.build(
            trained.own_model or settings["model"],
            trained.input_shape,
            trained.num_classes,
            precision=settings["precision"],
        )

    try:
        _check_shapes(trained, variable_shapes(build_new))
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = build_new()
        for variable, value in zip(model.variables, trained.variables, strict=True):
            variable.assign(value)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise errors.InputError(
            f"{trained.source} does not fit the model {settings['model']}: {error}"
        ) from error
    return model


def _check_shapes(trained: Trained, expected: list[tuple[int, ...]]) -> None:
    """Raises ValueError unless the variables have the expected shapes."""
    got = [np.shape(value) for value in trained.variables]
    if len(got) != len(expected):
        raise ValueError(f"expected {len(expected)} variables, got {len(got)}")
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        if one != other:
            raise ValueError(
                f"expected variable {number} of shape {list(other)}, got {list(one)}"
            )
