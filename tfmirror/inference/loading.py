"""Loads a trained model from a run directory or from a checkpoint.

trained = find("runs/first", warn=print)
model = build(trained, strategy)                   # mirrored, with the trained weights
"""

import contextlib
import dataclasses
import json
import math
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from tfmirror import archives, errors, files, metrics, models
from tfmirror.models import keras_defaults
from tfmirror.models.variable_shapes import variable_shapes
from tfmirror.parallel import optimizers
from tfmirror.rundir import checkpoints, directory, reader
from tfmirror.rundir.reader import RunRecord
from tfmirror.rundir.state import START_OF_PASS, RunState, class_names_of

# How paths of batch norm's variables end that it updates in training.
MOVING_STATISTICS = ("/moving_mean", "/moving_variance")

KERAS_CONFIG, KERAS_WEIGHTS = "config.json", "model.weights.h5"  # in a .keras file
MAX_UNSAVED_VALUES = 1000  # such as the seeds of dropout layers


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


def find(path: str | pathlib.Path, warn: Callable[[str], object]) -> Trained:
    """Returns the Trained model at `path`.

    For a finished run it is the final model, for another run the newest complete
    checkpoint. If the run kept a moving average of its weights, the weights are that
    average, as in the run's own evaluation; see `_evaluated_names` for checkpoints that
    were written within an epoch.

    Args:
      path: a run directory or a checkpoint.
      warn: called with one line for each damaged checkpoint that is skipped, and one
        if the weights are not the average that was kept.

    Raises:
      InputError: there is no model, or a file of it is damaged.
    """
    model_path = errors.expand_path("the model", path)
    if model_path.is_dir():
        found = _find_in_run(model_path, warn)
    else:
        found = _from_state(read_checkpoint(model_path), model_path, warn)
    reader.check_settings(model_path, found.settings, reader.NEEDED_TO_EVALUATE)
    return found


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


def _find_in_run(folder: pathlib.Path, warn: Callable[[str], object]) -> Trained:
    """Returns the Trained model of a run directory."""
    run = reader.read(folder, warn)
    if run.summary is not None:
        return _from_finished(folder, run, run.summary)
    state, file = checkpoints.latest(folder / "checkpoints", warn)
    if state is None or file is None:
        raise errors.InputError(
            f"{folder} holds neither a finished run nor a complete checkpoint"
        )
    return _from_state(state, file, warn)


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
    state: RunState, file: pathlib.Path, warn: Callable[[str], object]
) -> Trained:
    """Returns the Trained model in the RunState that was read from `file`."""
    return Trained(
        source=str(file),
        settings=state.settings,
        input_shape=state.model.input_shape,
        num_classes=state.model.num_classes,
        variables=tuple(
            state.variables[name] for name in _evaluated_names(state, file, warn)
        ),
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
    name_functions = (optimizers.averaged_name, optimizers.earlier_averaged_name)
    averages = {
        path: name
        for path in paths
        for name_of in name_functions
        if (name := name_of(path)) in saved
    }
    statistics = [path for path in paths if path.endswith(MOVING_STATISTICS)]
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
    folder: pathlib.Path, run: RunRecord, summary: dict[str, Any]
) -> Trained:
    """Returns the Trained model of a finished run."""
    file = folder / directory.MODEL
    model = _load_keras(file)
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
        class_names=_of_number(class_names, model.output_shape[-1]),
    )


def _of_number(class_names: tuple[str, ...], num_classes: int) -> tuple[str, ...]:
    """Returns the names of the classes if there are as many; else none."""
    return class_names if len(class_names) == num_classes else ()


@keras_defaults.scope()
def _load_keras(file: pathlib.Path) -> keras.Model:
    """Returns the Keras model in `file`; refuses a file that holds code (safe mode)."""
    try:
        size = files.check_size(file, files.memory_bytes())
        with zipfile.ZipFile(file) as archive:
            archives.check_stored(archive, size)
            if broken := archive.testzip():
                raise zipfile.BadZipFile(f"bad checksum of {broken}")
            _check_variables(archive)
        return keras.models.load_model(file, compile=False, safe_mode=True)
    # Keras, HDF5 and zipfile raise many kinds of errors for damaged and hostile files.
    except Exception as error:
        raise _damaged(file, str(error).strip().split("\n")[0]) from error


def _check_variables(archive: zipfile.ZipFile) -> None:
    """Raises ValueError if the model in a `.keras` file is larger than the file.

    Keras gives memory to all variables that the model's description asks for, and to
    all values that the file of weights announces, before it compares the two.
    """
    if archive.getinfo(KERAS_CONFIG).file_size > files.MAX_JSON_BYTES:
        raise ValueError(f"{KERAS_CONFIG} in it is too large")
    description = json.loads(archive.read(KERAS_CONFIG))
    shapes = variable_shapes(
        lambda: keras.saving.deserialize_keras_object(description, safe_mode=True)
    )
    num_values = sum(math.prod(shape) for shape in shapes)
    with archive.open(KERAS_WEIGHTS) as file, h5py.File(file, "r") as weights:
        num_stored = sum(_stored_values(weights))
    if num_values > num_stored + MAX_UNSAVED_VALUES:
        raise ValueError(
            f"its model has {num_values:,} values, its weights are {num_stored:,}"
        )


def _stored_values(weights: h5py.File) -> list[int]:
    """Returns how many values each array in an HDF5 file has.

    Raises:
      ValueError: the values of an array are packed, elsewhere, or not there at all.
    """
    counts = []

    def note(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.chunks or item.is_virtual or item.external:
            raise ValueError(f"{name} is not stored plainly")
        if item.nbytes != item.id.get_storage_size():
            raise ValueError(f"{name} announces {item.nbytes:,} bytes, but has fewer")
        counts.append(item.size)

    weights.visititems(note)
    return counts


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
        return models.build(
            settings["model"],
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
