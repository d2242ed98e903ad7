"""Batch norm by the fused kernel has the results of Keras', and the same saved file."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfmirror import models
from tfmirror.models import fused_batch_norm, layer_override

# Relative to the largest entry: float32 sums are in another order, and bfloat16 keeps 8
# bits.
TOLERANCES = {"float32": 2e-6, "mixed_bfloat16": 2e-2}


def build_pair(policy, shape=(5, 7, 3)):
    """Returns the same layer in two models: Keras' own, and with the fused kernel."""
    pair = []
    for _ in range(2):
        rng = np.random.default_rng(0)
        layer = keras.layers.BatchNormalization(
            momentum=0.9, epsilon=1e-2, dtype=policy
        )
        model = keras.Sequential([keras.Input(shape), layer])
        channels = shape[-1]
        layer.set_weights(
            [
                rng.uniform(0.5, 2, channels),
                rng.normal(size=channels),
                rng.normal(size=channels),
                rng.uniform(0.5, 2, channels),
            ]
        )
        pair.append(model)
    fused_batch_norm.fuse(pair[1])
    return pair


@layer_override.faster_calls()
def results(model, images, training):
    """Returns outputs, gradients of inputs and parameters, and moving statistics."""
    images = tf.constant(images)
    factors = tf.random.stateless_normal(images.shape, [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(images)
        outputs = model(images, training=training)
        scalar = tf.reduce_sum(tf.cast(outputs, tf.float32) * factors)
    gradients = tape.gradient(scalar, [images, *model.trainable_variables])
    assert outputs.dtype == model.layers[-1].compute_dtype
    moving = [v.numpy() for v in model.non_trainable_variables]
    return [np.float32(outputs), *(g.numpy() for g in gradients), *moving]


@pytest.mark.parametrize("policy", TOLERANCES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_size", [1, 6])
def test_results_are_those_of_keras(policy, training, batch_size):
    rng = np.random.default_rng(1)
    images = rng.normal(3, 2, (batch_size, 5, 7, 3)).astype(np.float32)
    own, fused = (results(m, images, training) for m in build_pair(policy))
    assert len(own) == 6
    for expected, found in zip(own, fused, strict=True):
        assert not np.allclose(expected, 0)
        np.testing.assert_allclose(
            found, expected, atol=TOLERANCES[policy] * np.abs(expected).max()
        )


def test_moving_statistics_are_the_closed_form():
    """One example of 1 x 2 pixels tells the biased variance from the unbiased one."""
    model = build_pair("float32", shape=(1, 2, 1))[1]
    layer = model.layers[-1]
    layer.set_weights(np.float32([[1.0], [0.0], [10.0], [4.0]]))
    with layer_override.faster_calls():
        model(tf.constant([1.0, 5.0], shape=[1, 1, 2, 1]), training=True)
    assert layer.moving_mean.numpy() == pytest.approx([0.9 * 10 + 0.1 * 3])
    assert layer.moving_variance.numpy() == pytest.approx([0.9 * 4 + 0.1 * 4])


def test_a_single_value_leaves_finite_statistics():
    own, fused = (
        results(m, np.full((1, 1, 1, 2), 3.0, np.float32), True)
        for m in build_pair("float32", shape=(1, 1, 2))
    )
    for expected, found in zip(own, fused, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_frozen_layer_keeps_its_statistics():
    own, fused = build_pair("float32")
    images = tf.random.stateless_normal([4, 5, 7, 3], [3, 4])
    for model in (own, fused):
        model.trainable = False
    before = [v.numpy() for v in fused.variables]
    with layer_override.faster_calls():
        outputs = [model(images, training=True).numpy() for model in (own, fused)]
    np.testing.assert_allclose(*outputs, atol=1e-5)
    np.testing.assert_array_equal(before, [v.numpy() for v in fused.variables])


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.BatchNormalization(axis=1),
        keras.layers.BatchNormalization(scale=False),
        keras.layers.BatchNormalization(center=False),
        keras.layers.BatchNormalization(synchronized=True),
        keras.layers.BatchNormalization(renorm=True),
    ],
)
def test_layers_that_the_kernel_does_not_support_stay_with_keras(layer):
    model = keras.Sequential([keras.Input((4, 4, 3)), layer])
    fused_batch_norm.fuse(model)
    assert "call" not in vars(layer)


@pytest.mark.training
def test_resnet18_is_saved_as_plain_keras(tmp_path):
    model = models.build("resnet18", (8, 8, 1), 10)
    norms = [x for x in model.layers if type(x).__name__ == "BatchNormalization"]
    assert len(norms) == 17
    assert all("call" in vars(norm) for norm in norms)
    images = tf.random.stateless_uniform([2, 8, 8, 1], [5, 6])
    model(images, training=True)
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert not any("call" in vars(layer) for layer in plain.layers)
    for mine, theirs in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(
        model(images, training=False), plain(images, training=False), rtol=1e-4
    )
