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


@pytest.mark.parametrize("num_examples", [0, 300])
def test_confusions_are_counted_at_label_and_prediction(num_examples):
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 8, (num_examples, 7)).astype(np.float32)
    labels = rng.integers(0, 7, num_examples).astype(np.int32)
    expected = np.zeros((7, 7))
    np.add.at(expected, (labels, logits.argmax(axis=1)), 1)
    found = gradients.count_confusions(labels, logits)
    np.testing.assert_array_equal(found, expected)
    assert np.trace(found) == gradients.count_correct(labels, logits)


def top5_by_sorting(labels, logits):
    """Returns how many labels are among the first five; ties: the lower class first."""
    first = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    return (first == labels[:, np.newaxis]).sum()


@pytest.mark.parametrize("num_values", [3, 8, 1000])  # few: many ties
def test_top_5_counts_labels_among_the_five_largest_logits(num_values):
    rng = np.random.default_rng(0)
    logits = rng.integers(0, num_values, (500, 12)).astype(np.float32)
    labels = rng.integers(0, 12, 500).astype(np.int32)
    expected = top5_by_sorting(labels, logits)
    assert gradients.count_top5(labels, logits) == expected
    assert 0 < gradients.count_correct(labels, logits) < expected < 500
    # Where all classes share a place, in_top_k counts every label.
    theirs = tf.math.in_top_k(labels, logits, 5).numpy().sum()
    assert theirs > expected if num_values == 3 else theirs >= expected


@pytest.mark.parametrize(
    ("logits", "counted"),
    [
        ([np.nan] * 11, []),
        ([0.0] * 11, [0, 1, 2, 3, 4]),
        ([-np.inf] * 11, [0, 1, 2, 3, 4]),
        ([0.0, 1.0, np.nan, 2.0, 3.0, np.nan, *[-np.inf] * 5], [1, 3, 4]),
        ([np.inf, *[-np.inf] * 9, np.inf], [0, 1, 2, 3, 10]),
    ],
)
def test_top_5_counts_nothing_too_many_where_logits_are_equal_or_not_finite(
    logits, counted
):
    found = [
        label
        for label in range(11)
        if gradients.count_top5(np.array([label]), np.array([logits], np.float32))
    ]
    assert found == counted
