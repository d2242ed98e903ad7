"""Loss and counts of a microbatch, against Keras' own losses and NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfmirror.parallel import gradients

LABELS = np.array([2, 0, 4, 1], np.int32)


def random_logits(num_classes=5):
    """Returns [4, K] float32, some of them far from 0."""
    rng = np.random.default_rng(0)
    return rng.normal(0, 10, (len(LABELS), num_classes)).astype(np.float32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_the_loss_and_its_gradient_are_those_of_keras(smoothing):
    theirs = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction="none"
    )
    targets = np.eye(5, dtype=np.float32)[LABELS]
    found = []
    for loss_of in (
        lambda logits: gradients.per_example_loss(LABELS, logits, smoothing),
        lambda logits: theirs(targets, logits),
    ):
        logits = tf.constant(random_logits())
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = loss_of(logits)
        found.append((losses, tape.gradient(losses, logits)))
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)


def test_a_smoothed_loss_is_of_float32_logits_whatever_the_model_computes_in():
    logits = random_logits()
    half = gradients.per_example_loss(LABELS, tf.cast(logits, tf.float16), 0.1)
    assert half.dtype == tf.float32
    np.testing.assert_allclose(
        half, gradients.per_example_loss(LABELS, logits, 0.1), rtol=1e-2
    )
