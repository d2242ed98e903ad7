"""All that decides how a run goes on, as plain values: nothing of it knows of replicas.

state = capture(training_setup, position)           # at any step
restore(training_setup, state)                      # on any number of replicas
"""

import dataclasses

import numpy as np

from tfmirror import metrics


@dataclasses.dataclass(frozen=True)
class PassProgress:
    """How far a pass over examples has come."""

    num_steps: int = 0
    totals: metrics.Totals = metrics.Totals(0.0, 0, 0)
    seconds: float = 0.0


START_OF_PASS = PassProgress()


@dataclasses.dataclass(frozen=True)
class RunProgress:
    """Where in a run: epochs that are over, and how far the one after them has come."""

    records: tuple[dict, ...] = ()  # of the finished epochs, as in summary.json
    point: PassProgress = START_OF_PASS

    @property
    def num_epochs(self):
        """Epochs that are over."""
        return len(self.records)

    def num_steps(self, steps_per_epoch):
        """Returns the steps taken since the run began."""
        return self.num_epochs * steps_per_epoch + self.point.num_steps


@dataclasses.dataclass(frozen=True)
class RunState:
    """A run, stopped between two steps."""

    settings: dict  # resolved
    data_sha256: str  # of datasets.ImageDataset.sha256
    position: RunProgress
    num_steps: int  # since the run began
    model: dict  # what it maps to what, and the names of its variables
    variables: dict[str, np.ndarray]  # by name


def capture(training_setup, position):
    """Returns the RunState of `training_setup` at `position`, from replica 0."""
    return RunState(
        dataclasses.asdict(training_setup.settings),
        training_setup.data_sha256,
        position,
        position.num_steps(training_setup.steps_per_epoch),
        describe_model(training_setup.model),
        {name: v.numpy() for name, v in _decided_by_training(training_setup).items()},
    )


def describe_model(model):
    """Returns what a Keras model is built again from, beside its run's settings."""
    return {
        "input_shape": list(model.input_shape[1:]),
        "num_classes": model.output_shape[-1],
        "variables": [variable.path for variable in model.variables],
    }


def restore(training_setup, state):
    """Assigns the values in `state` to every replica's variables.

    Raises:
      ValueError: the variables are not those of `training_setup`.
    """
    own = _decided_by_training(training_setup)
    shapes = {n: (tuple(v.shape), np.dtype(v.dtype)) for n, v in own.items()}
    found = {n: (a.shape, a.dtype) for n, a in state.variables.items()}
    if shapes != found:
        differing = sorted(dict(shapes.items() ^ found.items()))
        raise ValueError(f"other variables than the model's: {', '.join(differing)}")
    for name, variable in own.items():
        variable.assign(state.variables[name])


def _decided_by_training(training_setup):
    """Returns the variables that the settings don't decide, by name."""
    return {
        n: v
        for n, v in training_setup.variables.items()
        if not n.endswith("/learning_rate")
    }
