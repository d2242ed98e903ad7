"""No variable is lost to another one of the same name."""

import keras
import pytest

from tfmirror import config
from tfmirror.models import BUILDERS, variable_names
from tfmirror.rundir import state as states
from tfmirror.rundir.state import RunProgress
from tfmirror.training import setup


def two_of_the_same(input_shape, num_classes, initializer):
    """Returns a model of two models whose layers have the same names."""
    parts = []
    for shape in (input_shape, (*input_shape[:2], 1)):
        inputs = keras.Input(shape)
        outputs = keras.layers.Conv2D(1, 3, padding="same", name="conv")(inputs)
        outputs = keras.layers.BatchNormalization(name="norm")(outputs)
        parts.append(keras.Model(inputs, outputs))
    logits = keras.layers.Dense(num_classes, dtype="float32", name="conv")
    return keras.Sequential(
        [keras.Input(input_shape), *parts, keras.layers.Flatten(), logits]
    )


def test_a_repeated_name_gets_a_number():
    names = variable_names.unique(["a/b", "c", "a/b", "a/b"])
    assert names == ["a/b", "c", "a/b#2", "a/b#3"]


@pytest.mark.training
def test_variables_of_the_same_name_are_all_kept(monkeypatch):
    monkeypatch.setitem(BUILDERS, "cnn", two_of_the_same)
    chosen, settings = setup.choose(
        config.TrainConfig(
            gpus=2, dataset="synthetic", momentum=0.9, ema_decay=0.5, init="glorot"
        )
    )
    built = setup.prepare(settings, chosen)
    model, optimizer = built.model, built.optimizer
    paths = {variable.path for variable in model.variables}
    assert len(paths) < len(model.variables)  # or the test would show nothing
    variables = built.variables
    assert len(variables) == len(model.variables) + len(optimizer.variables)
    expected = [*model.variables, *optimizer.variables]
    assert {id(v) for v in variables.values()} == {id(v) for v in expected}
    # What is captured comes back into the same variables.
    for k, variable in enumerate(expected):
        variable.assign(keras.ops.full(variable.shape, k % 100, variable.dtype))
    state = states.capture(built, RunProgress())
    for variable in expected:
        variable.assign(keras.ops.zeros(variable.shape, variable.dtype))
    states.restore(built, state)
    for k, variable in enumerate(expected):
        if variable.name == "learning_rate":  # it follows from the settings
            continue
        assert (variable.numpy() == k % 100).all()
