"""What Keras' fit gets wrong under MirroredStrategy, and these steps get right.

One test for each case. Keras 3.15.1 with TensorFlow 2.21: batch norm keeps one state a
replica and saves the first; a second strategy of another size fails; gradient
accumulation fails; an example of an uneven last batch counts for more; clipping acts on
each replica's own gradient; replicas drop out the same.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    build_linear,
    build_optimizer,
    linear_reference,
    make_examples,
    make_strategy,
    replica_copies,
)

from tfmirror.data import datasets
from tfmirror.inference import prediction
from tfmirror.parallel import gradients, microbatches, segments, step, step_loop

pytestmark = pytest.mark.training

SHAPE = (4, 4, 1)


def take_steps(model_of, examples, shares, num_steps=1, batch_size=None, **settings):
    """Trains a model that `model_of` builds; returns (strategy, model, first weights).

    Args:
      shares: microbatches of each replica; more than one a replica accumulates.
      batch_size: None: all examples are one batch.
    """
    strategy = make_strategy(len(shares))
    model = model_of(strategy)
    first = [weights.copy() for weights in model.get_weights()]
    optimizer = build_optimizer(strategy, model, **settings)
    plans = microbatches.plan_epoch(
        len(examples),
        batch_size or len(examples),
        shares,
        in_fixed_tree=sum(shares) > len(shares),
    )
    for segment in segments.make_segments(
        strategy,
        examples,
        plans,
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    ):
        segment.run(num_steps, step_loop.zero_totals())
    return strategy, model, first


def assert_is(model, expected):
    """Asserts that softmax regression has these weights."""
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-5, atol=1e-7)


def test_batch_norm_state_is_one_and_all_of_it_is_saved(tmp_path):
    """Replica 0 sees zeros, replica 1 ones: the moving mean goes to a half on both."""

    def model_of(strategy):
        with strategy.scope():
            norm = keras.layers.BatchNormalization(momentum=0.5)
            layers = [keras.layers.Flatten(), norm, keras.layers.Dense(10)]
            return keras.Sequential([keras.Input(SHAPE), *layers])

    images = np.repeat(np.uint8([0, 255]), 8)[:, None, None, None]
    examples = datasets.Examples(
        np.broadcast_to(images, (16, *SHAPE)), np.zeros(16, np.int32)
    )
    strategy, model, _ = take_steps(model_of, examples, (1, 1), num_steps=10)
    expected = 0.5 * (1 - 0.5**10)
    mean = model.layers[1].moving_mean
    copies = replica_copies(strategy, mean)
    assert len(copies) == 2
    np.testing.assert_allclose(copies, expected, rtol=1e-5)
    model.save(tmp_path / "model.keras")
    saved = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(saved.layers[1].moving_mean, copies[1])


def test_two_strategies_of_other_sizes_serve_in_one_process():
    examples = make_examples(12, shape=SHAPE)
    for shares in ((1, 1, 1), (1, 1)):
        _, model, first = take_steps(build_linear, examples, shares)
        gradient = linear_reference(first[0], examples)[2] / 12
        assert_is(model, first[0] - 0.1 * gradient)


@pytest.mark.parametrize("shares", [(4,), (2, 2), (3, 1)])
def test_gradients_accumulate(shares):
    examples = make_examples(16, shape=SHAPE)
    _, model, first = take_steps(build_linear, examples, shares)
    gradient = linear_reference(first[0], examples)[2] / 16
    assert_is(model, first[0] - 0.1 * gradient)


@pytest.mark.parametrize("shares", [(1,), (1, 1)])
def test_an_example_of_an_uneven_last_batch_counts_as_any_other(shares):
    """Eight examples and then three, of which replicas get two and one."""
    examples = make_examples(11, shape=SHAPE)
    _, model, first = take_steps(build_linear, examples, shares, batch_size=8)
    weights = first[0].astype(np.float64)
    for part in (slice(0, 8), slice(8, 11)):
        of_batch = datasets.Examples(examples.images[part], examples.labels[part])
        weights -= 0.1 * linear_reference(weights, of_batch)[2] / len(of_batch)
    assert_is(model, weights)


@pytest.mark.parametrize("shares", [(1,), (1, 1), (2, 2)])
def test_clipping_acts_on_the_aggregated_gradient(shares):
    examples = make_examples(16, shape=SHAPE)
    _, model, first = take_steps(build_linear, examples, shares, clip_norm=0.1)
    gradient = linear_reference(first[0], examples)[2] / 16
    norm = np.linalg.norm(gradient)
    assert norm > 0.2  # it does clip
    assert_is(model, first[0] - 0.1 * gradient * 0.1 / norm)


def test_replicas_drop_out_otherwise_and_inference_not_at_all():
    """All examples are alike: only dropout can tell two replicas' losses apart."""
    strategy = make_strategy(2)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Flatten(), keras.layers.Dropout(0.5, seed=1)]
        model = keras.Sequential(
            [keras.Input(SHAPE), *layers, keras.layers.Dense(10, use_bias=False)]
        )
    images, labels = np.full((4, *SHAPE), 255, np.uint8), np.zeros(4, np.int32)
    weights, state = (
        [tf.constant(v.numpy()) for v in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    losses = {
        float(
            gradients.microbatch_gradients(
                model, weights, state, images, labels, draw
            ).loss
        )
        for draw in (0, 1)  # of the two replicas' microbatches
    }
    assert len(losses) == 2
    assert len(np.unique(prediction.predict(strategy, model, images), axis=0)) == 1
