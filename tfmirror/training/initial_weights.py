"""Weights that a new run starts from: those of another run, or of a file of Keras.

source = read("runs/first", new_head=True)
initial = source.assign(model)          # or one line says what does not fit
"""

import dataclasses
import pathlib
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfmirror import errors, metrics, model_source
from tfmirror.model_source import ModelSource
from tfmirror.models import layer_weights, weight_files, weight_matching
from tfmirror.models.layer_weights import SavedWeights
from tfmirror.models.own_thread import in_own_thread
from tfmirror.models.weight_matching import Match
from tfmirror.rundir import loading

KERAS_FILE, WEIGHTS_FILE, CHECKPOINT = ".keras", ".weights.h5", ".npz"  # endings
EXPECTED = (
    f"an existing {KERAS_FILE} or {WEIGHTS_FILE} file, run directory or checkpoint "
    f"({CHECKPOINT})"
)


class InitialWeights(NamedTuple):
    """What a run says and records of the weights that it started from."""

    sha256: str = ""  # of what was taken, in the model's order; empty: nothing was
    lines: tuple[str, ...] = ()  # for people


@dataclasses.dataclass(frozen=True)
class Source:
    """Weights that were read, as plain values."""

    path: str  # where they were read, for people
    saved: SavedWeights
    new_head: bool  # whether the model keeps the head that it has
    warnings: tuple[str, ...]  # for people

    def assign(self, model: keras.Model) -> InitialWeights:
        """Assigns the weights to a model, mirrored or not, whose optimizer is not made.

        Seeds of random layers keep their values; so does the head with `new_head`.

        Raises:
          InputError: the weights do not fit, or are not finite. The model is unchanged.
        """
        found = weight_matching.match(self.saved, model, new_head=self.new_head)
        if problems := found.problems():
            raise errors.InputError(
                f"initial_weights={self.path} do not fit the model {model.name}: "
                f"{'; '.join(problems)}; {self._advice(model)}"
            )
        for name, (_, value) in found.taken.items():
            is_met = np.isfinite(value).all()
            errors.require(is_met, "initial_weights", self.path, f"finite in {name}")
        for variable, value in found.taken.values():
            variable.assign(value)
        sha256 = metrics.weights_sha256(
            variable for variable, _ in found.taken.values()
        )
        return InitialWeights(sha256, (*self.warnings, _line(found, self.path)))

    def _advice(self, model: keras.Model) -> str:
        """Returns what to do if the weights do not fit."""
        head = layer_weights.head_of(model)
        if self.new_head:
            return (
                f"give weights of the same layers; with new_head only {head} may differ"
            )
        if weight_matching.match(self.saved, model, new_head=True).problems():
            return "give weights of the same layers"
        return f"with new_head {head} is made anew, and the rest is taken"


def read(
    text: str, *, new_head: bool = False, own_model: ModelSource | None = None
) -> Source:
    """Returns the Source at a path: a file of Keras, a run directory or a checkpoint.

    Of a run and of a checkpoint it has the weights that are evaluated: the averages, if
    they were kept; see `loading.find`.

    Args:
      text: the path.
      new_head: whether the model keeps the head that it has.
      own_model: the function of the new run's model; the other run's, if that is of
        the user's own, must be the same.

    Raises:
      InputError: there are no weights, or their file is damaged or hostile.
    """
    path = errors.expand_path("initial_weights", text)
    endings = (KERAS_FILE, WEIGHTS_FILE, CHECKPOINT)
    is_met = path.is_dir() or (path.exists() and path.name.endswith(endings))
    errors.require(is_met, "initial_weights", text, EXPECTED)
    warnings: list[str] = []
    try:
        source, saved = in_own_thread(lambda: _read(path, warnings, own_model))
    except weight_files.UnusableFileError as error:
        raise errors.InputError(
            f"initial_weights={path} can't be used ({error}); give {EXPECTED}"
        ) from error
    return Source(source, saved, new_head, tuple(warnings))


def _read(
    path: pathlib.Path, warnings: list[str], own_model: ModelSource | None
) -> tuple[str, SavedWeights]:
    """Returns (the file that holds the weights, the weights); adds to `warnings`."""
    source = str(path)
    with tf.device("CPU"):  # a GPU's memory is for the model that is trained
        if path.is_dir() or path.name.endswith(CHECKPOINT):
            of_run = loading.read_settings(path)["model"]
            own = own_model if model_source.is_own(of_run) else None
            found = loading.find(path, warnings.append, own)
            source, model = found.source, loading.build(found)
        elif path.name.endswith(KERAS_FILE):
            model = weight_files.load_model(path)
        else:
            return source, weight_files.read_weights(path)
        return source, layer_weights.saved_weights(model)


def _line(found: Match, path: str) -> str:
    """Returns what was taken, for people."""
    if not found.new_head:
        return f"initial weights: all {len(found.taken)} variables from {path}"
    line = f"initial weights: {len(found.taken)} variables from {path}; new head: "
    others = [layer for layer in found.left_out if layer != found.new_head]
    return (
        line + found.new_head + (f" in place of {', '.join(others)}" if others else "")
    )
