"""Well-known networks: the same bits on 1, 2 and 4 replicas, and plain Keras' steps.

Each takes minutes to compile; the vision transformer stands for them in quick runs.
"""

import applications
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import build_optimizer, make_examples, make_strategy

from tfmirror import model_source, models
from tfmirror.models import nested_layers
from tfmirror.parallel import microbatches, segments, step, step_loop

SHAPE = (32, 32, 3)
NUM_CLASSES, BATCH, NUM_STEPS = 10, 8, 2
RATE = 0.01

MARKS = {"vit": [pytest.mark.training]}
CASES = [
    pytest.param(
        function,
        id=function.__name__,
        marks=MARKS.get(function.__name__, [pytest.mark.training, pytest.mark.hours]),
    )
    for function in applications.ALL
]


def train(function, shares, *, without_dropout=False):
    """Returns the model's variables after some steps, by their names.

    Args:
      shares: microbatches of each replica.
    """
    strategy = make_strategy(len(shares))
    keras.utils.set_random_seed(0)
    with strategy.scope():
        source = model_source.of_function(function)
        model = models.build(source, SHAPE, NUM_CLASSES)
    if without_dropout:
        remove_dropout(model)
    optimizer = build_optimizer(strategy, model, learning_rate=RATE)
    examples = make_examples(BATCH * NUM_STEPS, shape=SHAPE)
    (plan,) = microbatches.plan_epoch(len(examples), BATCH, shares, in_fixed_tree=True)
    (segment,) = segments.make_segments(
        strategy,
        examples,
        [plan],
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    )
    totals = segment.run(NUM_STEPS, step_loop.zero_totals())
    assert int(totals.num_steps) == NUM_STEPS
    return {v.path: v.numpy() for v in model.variables}


def remove_dropout(model):
    """Makes random layers pass everything on, in place."""
    for layer in nested_layers.all_layers(model):
        for name in ("rate", "drop_path_rate", "_dropout"):
            if hasattr(layer, name):
                setattr(layer, name, 0.0)


@pytest.mark.parametrize("function", CASES)
def test_the_bits_are_the_same_on_1_2_and_4_replicas(function):
    on_one = train(function, (4,))
    for shares in ((2, 2), (1, 1, 1, 1)):
        found = train(function, shares)
        assert list(found) == list(on_one)
        for name, value in on_one.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("function", CASES)
def test_steps_are_those_of_plain_keras(function):
    """On whole batches, since batch norm takes the statistics of a microbatch."""
    keras.utils.set_random_seed(0)
    model = function(SHAPE, NUM_CLASSES)
    remove_dropout(model)
    before = [v.numpy() for v in model.variables]
    examples = make_examples(BATCH * NUM_STEPS, shape=SHAPE)
    for k in range(NUM_STEPS):
        part = slice(k * BATCH, (k + 1) * BATCH)
        with tf.GradientTape() as tape:
            logits = model(examples.images[part] / np.float32(255), training=True)
            losses = keras.losses.sparse_categorical_crossentropy(
                examples.labels[part], logits, from_logits=True
            )
            loss = tf.reduce_mean(losses) + sum(model.losses)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        for variable, gradient in zip(
            model.trainable_variables, gradients, strict=True
        ):
            variable.assign(variable.value - RATE * gradient)
    found = train(function, (1,), without_dropout=True)
    names, after = zip(*((v.path, v.numpy()) for v in model.variables), strict=True)
    for name, start, expected, value in zip(
        names, before, after, found.values(), strict=True
    ):
        if "seed_generator" in name:
            continue
        moved = np.abs(expected - start).max()
        np.testing.assert_allclose(
            value, expected, atol=1e-5 + 1e-3 * moved, err_msg=name
        )
