"""A trained model, found in a run directory or in a checkpoint.

trained = find("runs/first", warn=print)
model = build(trained, strategy)                   # mirrored, with the trained weights
"""

import contextlib
import dataclasses
import zipfile

import keras
import numpy as np

from tfmirror import errors, metrics, models
from tfmirror.parallel import optimizers
from tfmirror.rundir import checkpoints, directory, reader

# What must be known of a run to build its model and to evaluate it as it did.
NEEDED_SETTINGS = (
    "model", "precision", "microbatches", "gpus", "global_batch_size", "dataset",
    "data_dir", "limit_eval_examples",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a model is built from, as plain values."""

    source: str  # for people: the file that it is from
    settings: dict  # of its run, resolved
    input_shape: tuple[int, int, int]  # H, W, C
    num_classes: int  # K
    variables: tuple[np.ndarray, ...]  # all of the model's, in its order, as evaluated


def find(path, warn):
    """Returns the Trained model at `path`.

    Of a finished run directory it is the model at its end, of another one its last
    whole checkpoint. Weights of which a moving average was kept are that average, as
    in the run's own evaluation.

    Args:
      path: a run directory, or a checkpoint.
      warn: called with a line for each damaged checkpoint that is passed over.

    Raises:
      InputError: neither is there, or it is damaged.
    """
    path = errors.expand_path("the model", path)
    found = _in_folder(path, warn) if path.is_dir() else None
    found = found or _of_state(read_checkpoint(path), path)
    _check_settings(path, found.settings)
    return found


def read_settings(path):
    """Returns the settings of the run whose model is at `path`, a dict.

    Unlike `find` it lets TensorFlow's threads still be chosen.

    Raises:
      InputError: as `find` does.
    """
    path = errors.expand_path("the model", path)
    found = reader.read(path) if path.is_dir() else read_checkpoint(path)
    _check_settings(path, found.settings)
    return found.settings


def _check_settings(path, settings):
    """Raises InputError if of a run's `settings` one is missing that is needed."""
    missing = [name for name in NEEDED_SETTINGS if name not in settings]
    if missing:
        raise errors.InputError(f"{path}: its settings lack {', '.join(missing)}")


def _in_folder(folder, warn):
    """Returns the Trained model of a run directory."""
    run = reader.read(folder)
    if run.is_finished:
        return _of_finished(run, folder)
    state, file = checkpoints.latest(folder / "checkpoints", warn)
    if not state:
        raise errors.InputError(
            f"{folder} holds neither a finished run nor a whole checkpoint"
        )
    return _of_state(state, file)


def read_checkpoint(path):
    """Returns the RunState in a checkpoint; raises InputError if there is none."""
    try:
        return checkpoints.read(path)
    except checkpoints.DamagedError as error:
        raise errors.InputError(
            f"a run directory or a checkpoint is expected: {str(path)!r} can't be "
            f"used: {error}"
        ) from error


def _of_state(state, file):
    """Returns the Trained model of a checkpoint's RunState."""
    found = state.variables
    variables = tuple(
        found.get(optimizers.ema_name(path), found[path])
        for path in state.model["variables"]
    )
    shape, num_classes = state.model["input_shape"], state.model["num_classes"]
    return Trained(str(file), state.settings, tuple(shape), num_classes, variables)


def _of_finished(run, folder):
    """Returns the Trained model of a finished run."""
    file = folder / directory.MODEL
    model = _load_keras(file)
    if metrics.weights_sha256(model.variables) != run.summary.get("weights_sha256"):
        raise _damaged(file, "its weights are not those in summary.json")
    return Trained(
        str(file),
        run.settings,
        tuple(model.input_shape[1:]),
        model.output_shape[-1],
        tuple(variable.numpy() for variable in model.variables),
    )


def _load_keras(file):
    """Returns the Keras model in `file`, which may not bring code along (safe mode)."""
    try:
        with zipfile.ZipFile(file) as archive:
            if broken := archive.testzip():
                raise zipfile.BadZipFile(f"bad checksum of {broken}")
        return keras.models.load_model(file, compile=False, safe_mode=True)
    # On what is damaged or hostile, Keras, HDF5 and zipfile each raise their own.
    except Exception as error:
        raise _damaged(file, str(error).strip().split("\n")[0]) from error


def _damaged(file, why):
    """Returns the InputError of a model that can't be used."""
    return errors.InputError(
        f"{file} can't be used ({why}); the run's checkpoints can be given in its place"
    )


def build(trained, strategy=None):
    """Returns the Keras model of a Trained, mirrored on the strategy's devices.

    Args:
      strategy: None: a plain model on one device.

    Raises:
      InputError: its variables are not those of the model that its settings name.
    """
    settings = trained.settings
    try:
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = models.build(
                settings["model"],
                trained.input_shape,
                trained.num_classes,
                settings["precision"],
            )
        for variable, value in zip(model.variables, trained.variables, strict=True):
            variable.assign(value)
    except (KeyError, ValueError) as error:
        raise errors.InputError(
            f"{trained.source} does not fit the model {settings['model']}: {error}"
        ) from error
    return model
