"""Totals and digests."""

import dataclasses
import hashlib

import keras
import numpy as np

from tfmirror import metrics


def test_totals_divide_once():
    totals = metrics.Totals(loss_sum=30.0, num_correct=3, num_examples=12)
    assert (totals.mean_loss, totals.accuracy) == (2.5, 0.25)
    assert dataclasses.replace(totals, num_top5=9).top5_accuracy == 0.75


def test_the_five_likeliest_are_counted_with_more_than_ten_classes():
    assert [k for k in (2, 10, 11, 1000) if metrics.counts_top5(k)] == [11, 1000]


def test_weights_sha256_is_over_the_bytes_in_order():
    a, b = np.arange(3, dtype=np.float32), np.ones((2, 2), np.float32)
    variables = [keras.Variable(a), keras.Variable(b)]
    expected = hashlib.sha256(a.tobytes() + b.tobytes()).hexdigest()
    assert metrics.weights_sha256(variables) == expected
    assert metrics.weights_sha256(variables[::-1]) != expected


def test_weights_sha256_is_that_of_the_saved_model_which_has_no_seeds(tmp_path):
    layers = [keras.layers.Dense(2), keras.layers.Dropout(0.5, seed=3)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    model.layers[1].seed_generator.state.assign([5, 6])
    seeds = [m.layers[1].seed_generator.state.numpy() for m in (model, loaded)]
    assert (seeds[0] != seeds[1]).any()
    digests = [metrics.weights_sha256(m.variables) for m in (model, loaded)]
    assert digests[0] == digests[1]
