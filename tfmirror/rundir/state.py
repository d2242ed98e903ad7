"""The state of a run as plain values that do not depend on the number of replicas.

state = capture(training_setup, position)           # between any two steps
restore(training_setup, state)                      # on any number of replicas
"""

import dataclasses
from typing import Any, Protocol

import keras
import numpy as np

from tfmirror import config, metrics, model_source
from tfmirror.data import pipeline
from tfmirror.models import variable_names


@dataclasses.dataclass(frozen=True)
class PassProgress:
    """How far a pass over the training or evaluation examples has come."""

    num_steps: int = 0  # taken in this pass
    totals: metrics.Totals = metrics.Totals(0.0, 0, 0)  # over their examples
    seconds: float = 0.0  # that they took
    num_skipped: int = 0  # of the steps, those without an update; 0 in old checkpoints


START_OF_PASS = PassProgress()


@dataclasses.dataclass(frozen=True)
class RunProgress:
    """How far a run has come: its finished epochs, and its pass through the next one.

    A record of an epoch is an entry of summary.json's "epochs": "epoch", a whole number
    from 1, and a number for each key of metrics.NAMES; those of earlier versions
    may lack the keys in metrics.ADDED.
    """

    records: tuple[dict[str, Any], ...] = ()  # one for each finished epoch
    point: PassProgress = START_OF_PASS  # within the training pass of the next epoch

    @property
    def num_epochs(self) -> int:
        """Finished epochs."""
        return len(self.records)

    def num_steps(self, steps_per_epoch: int) -> int:
        """Returns the number of training steps taken since the run began."""
        return self.num_epochs * steps_per_epoch + self.point.num_steps


START_OF_RUN = RunProgress()


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """What is needed, besides a run's settings, to build its model again."""

    input_shape: tuple[int, ...]  # (H, W, C)
    num_classes: int  # K
    variables: tuple[str, ...]  # paths of all variables, in the model's order
    class_names: tuple[str, ...] = ()  # [K]; (): not known, as in old checkpoints

    def to_json(self) -> dict[str, Any]:
        """Returns the description as a value for JSON."""
        return {
            "input_shape": list(self.input_shape),
            "num_classes": self.num_classes,
            "variables": list(self.variables),
            "class_names": list(self.class_names),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ModelDescription":
        """Returns the description that `to_json` gave as `value`.

        Raises:
          KeyError, TypeError: `value` is something else.
        """
        return cls(
            tuple(value["input_shape"]),
            value["num_classes"],
            tuple(value["variables"]),
            class_names_of(value),
        )


def class_names_of(value: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names of the classes in a summary or the description of a model.

    Raises:
      TypeError: they are no texts. Without any the result is empty.
    """
    names = value.get("class_names", [])
    if not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        raise TypeError("class_names is not a list of texts")
    return tuple(names)


@dataclasses.dataclass(frozen=True)
class RunState:
    """A run, stopped between two steps."""

    settings: dict[str, Any]  # of settings_to_record, as in config.json
    data_sha256: str  # datasets.ImageDataset.sha256 of its data
    position: RunProgress
    num_steps: int  # since the run began
    model: ModelDescription
    variables: dict[str, np.ndarray]  # by name; the same on every replica


class TrainingSetup(Protocol):
    """The part of training.setup.TrainingSetup that a RunState is taken from."""

    @property
    def settings(self) -> config.ResolvedConfig: ...
    @property
    def data_sha256(self) -> str: ...
    @property
    def initial_weights_sha256(self) -> str: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def model(self) -> keras.Model: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def variables(self) -> dict[str, keras.Variable]: ...


def capture(training_setup: TrainingSetup, position: RunProgress) -> RunState:
    """Returns the RunState of `training_setup` at `position`, from replica 0."""
    return RunState(
        settings=settings_to_record(
            training_setup.settings, training_setup.initial_weights_sha256
        ),
        data_sha256=training_setup.data_sha256,
        position=position,
        num_steps=position.num_steps(training_setup.steps_per_epoch),
        model=describe_model(training_setup.model, training_setup.class_names),
        variables={
            name: variable.numpy()
            for name, variable in _trained_variables(training_setup).items()
        },
    )


def settings_to_record(
    settings: config.ResolvedConfig, initial_weights_sha256: str = ""
) -> dict[str, Any]:
    """Returns {name: value} of the settings, and what else a run can't change.

    That is the version of the order of examples, the digest of the file of the user's
    own model, and that of the weights that the run began with, if it was given any.
    """
    record = settings.to_json() | {"order_version": pipeline.ORDER_VERSION}
    if model_source.is_own(settings.model):
        record["model_sha256"] = settings.model_sha256
    if initial_weights_sha256:
        record["initial_weights_sha256"] = initial_weights_sha256
    return record


def describe_model(
    model: keras.Model, class_names: tuple[str, ...] = ()
) -> ModelDescription:
    """Returns the description of a model from images [b, H, W, C] to logits [b, K]."""
    return ModelDescription(
        input_shape=tuple(model.input_shape[1:]),
        num_classes=model.output_shape[-1],
        variables=tuple(variable_names.names_of(model)),
        class_names=class_names,
    )


def restore(training_setup: TrainingSetup, state: RunState) -> None:
    """Assigns the values in `state` to the variables of every replica.

    Raises:
      ValueError: the names, shapes or dtypes differ from those of `training_setup`.
    """
    own = _trained_variables(training_setup)
    expected = {n: (tuple(v.shape), np.dtype(v.dtype)) for n, v in own.items()}
    got = {n: (a.shape, a.dtype) for n, a in state.variables.items()}
    if expected != got:
        differing = sorted(dict(expected.items() ^ got.items()))
        raise ValueError(
            f"variables that differ from the model's: {', '.join(differing)}"
        )
    for name, variable in own.items():
        variable.assign(state.variables[name])


def _trained_variables(training_setup: TrainingSetup) -> dict[str, keras.Variable]:
    """Returns the variables by name, without those that only the settings decide."""
    return {
        name: variable
        for name, variable in training_setup.variables.items()
        if not name.endswith("/learning_rate")
    }
