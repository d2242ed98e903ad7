"""Totals and digests."""

import hashlib

import keras
import numpy as np

from tfmirror import metrics


def test_totals_divide_once():
    totals = metrics.Totals(loss_sum=30.0, num_correct=3, num_examples=12)
    assert (totals.mean_loss, totals.accuracy) == (2.5, 0.25)


def test_weights_sha256_is_over_the_bytes_in_order():
    a, b = np.arange(3, dtype=np.float32), np.ones((2, 2), np.float32)
    variables = [keras.Variable(a), keras.Variable(b)]
    expected = hashlib.sha256(a.tobytes() + b.tobytes()).hexdigest()
    assert metrics.weights_sha256(variables) == expected
    assert metrics.weights_sha256(variables[::-1]) != expected
