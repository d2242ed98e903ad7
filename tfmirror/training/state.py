"""All that decides how a run goes on, as plain values: nothing of it knows of replicas.

state = capture(job, position)                      # at any step
restore(job, state)                                 # on any number of replicas
"""

import dataclasses

import numpy as np

from tfmirror.training import loop


@dataclasses.dataclass(frozen=True)
class Position:
    """Where in a run: epochs that are over, and how far the one after them has come."""

    records: tuple[dict, ...] = ()  # of the finished epochs, as in summary.json
    point: loop.Point = loop.START

    @property
    def num_epochs(self):
        """Epochs that are over."""
        return len(self.records)

    def num_steps(self, steps_per_epoch):
        """Returns the steps taken since the run began."""
        return self.num_epochs * steps_per_epoch + self.point.num_steps


@dataclasses.dataclass(frozen=True)
class State:
    """A run, stopped between two steps."""

    settings: dict  # resolved
    data_sha256: str  # of datasets.ImageDataset.sha256
    position: Position
    num_steps: int  # since the run began
    model: dict  # what it maps to what, and the names of its variables
    variables: dict[str, np.ndarray]  # by name


def capture(job, position):
    """Returns the State of `job` at `position`, from the first replica's variables."""
    return State(
        dataclasses.asdict(job.settings),
        job.data_sha256,
        position,
        position.num_steps(job.steps_per_epoch),
        describe_model(job.model),
        {name: v.numpy() for name, v in _decided_by_training(job).items()},
    )


def describe_model(model):
    """Returns what a Keras model is built again from, beside its run's settings."""
    return {
        "input_shape": list(model.input_shape[1:]),
        "num_classes": model.output_shape[-1],
        "variables": [variable.path for variable in model.variables],
    }


def restore(job, state):
    """Gives every replica's variables of `job` the values that they have in `state`.

    Raises:
      ValueError: the variables are not those of `job`.
    """
    own = _decided_by_training(job)
    shapes = {n: (tuple(v.shape), np.dtype(v.dtype)) for n, v in own.items()}
    found = {n: (a.shape, a.dtype) for n, a in state.variables.items()}
    if shapes != found:
        differing = sorted(dict(shapes.items() ^ found.items()))
        raise ValueError(f"other variables than the model's: {', '.join(differing)}")
    for name, variable in own.items():
        variable.assign(state.variables[name])


def _decided_by_training(job):
    """Returns the variables of `job` that its settings don't decide, by name."""
    return {n: v for n, v in job.variables.items() if not n.endswith("/learning_rate")}
