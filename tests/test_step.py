"""The training step: N replicas do what one device does, whatever the split."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    build_cnn,
    build_linear,
    build_sgd,
    linear_reference,
    make_examples,
    make_strategy,
    replica_copies,
)

from tfmirror import config, metrics
from tfmirror.parallel import inspection, microbatches, step
from tfmirror.training import loop

RTOL = 1e-5  # float32, sums of up to 64 terms in another order


def keras_gradients(model, examples):
    """Returns the gradients of Keras' own mean loss of the batch on one device."""
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = tf.constant(examples.images / 255.0, tf.float32)
    with tf.GradientTape() as tape:
        loss = loss_function(examples.labels, model(images, training=True))
    return [
        g.numpy()
        for g in tape.gradient(loss, [v.value for v in model.trainable_variables])
    ]


def train(strategy, model, optimizer, examples, part_sizes, num_steps=1):
    """Takes steps over the first examples, in stored order; returns the Totals."""
    plan = microbatches.BatchSequence(0, num_steps, part_sizes)
    segment = step._make_segment(
        strategy,
        examples,
        plan,
        lambda sizes: step.make_train_steps(strategy, model, optimizer, sizes),
        shuffle_seed=None,
    )
    return segment.run(num_steps, step.zero_totals())


@pytest.mark.parametrize(
    ("part_sizes", "what"),
    [
        ((16, 16), "even"),
        ((8, 8, 8, 8), "even"),
        ((5, 4), "uneven last batch"),
        ((3, 3, 2, 2), "uneven last batch"),
        ((1, 1, 1, 0), "a replica without examples"),
        ((3, 0), "a replica without examples"),
        ((7, 1, 2), "unequal shares"),
    ],
)
def test_the_aggregated_gradient_is_that_of_the_whole_batch(part_sizes, what):
    strategy = make_strategy(len(part_sizes))
    assert strategy.num_replicas_in_sync >= 2
    model = build_cnn(strategy)
    examples = make_examples(sum(part_sizes))
    view = inspection.inspect(
        strategy, model, examples.images, examples.labels, part_sizes
    )
    for variable, expected in zip(
        view.variables, keras_gradients(model, examples), strict=True
    ):
        scale = np.abs(expected).max()
        for aggregated in variable.aggregated_gradients:
            np.testing.assert_allclose(
                aggregated, expected, rtol=RTOL, atol=RTOL * scale
            )
        if 0 not in part_sizes:  # the replicas did have different data
            for a, b in itertools.combinations(variable.local_gradients, 2):
                assert np.abs(a - b).max() > 100 * RTOL * scale


@pytest.mark.parametrize(
    "part_sizes", [(12,), (6, 6), (4, 5, 3), (3, 3, 3, 3), (12, 0)]
)
def test_one_step_is_gradient_descent_on_the_mean_loss(part_sizes):
    """NumPy in float64 takes the same step: w - lr (1/B) x^T (p - onehot)."""
    strategy = make_strategy(len(part_sizes))
    model = build_linear(strategy)
    optimizer = build_sgd(strategy, model, learning_rate=0.5)
    examples = make_examples(12, shape=(4, 4, 1))
    (weights,) = model.get_weights()
    loss_sum, num_correct, gradient = linear_reference(weights, examples)
    totals = train(strategy, model, optimizer, examples, part_sizes)
    np.testing.assert_allclose(totals.loss_sum, loss_sum, rtol=1e-6)
    assert int(totals.num_correct) == num_correct
    np.testing.assert_allclose(
        model.get_weights()[0], weights - 0.5 * gradient / 12, rtol=RTOL, atol=1e-7
    )


def test_optimizer_applies_aggregated_gradients_once():
    """The private hook works: gradients are not summed over replicas a second time."""
    strategy = make_strategy(4)
    model = build_linear(strategy)
    optimizer = build_sgd(strategy, model, learning_rate=1.0)
    step.applies_aggregated_gradients(optimizer)
    before = model.get_weights()[0]
    gradient = tf.random.stateless_normal(before.shape, seed=(0, 0))

    def replica_apply():  # a tensor of each replica's own, as in a step
        optimizer.apply([tf.identity(gradient)], model.trainable_variables)

    tf.function(lambda: strategy.run(replica_apply))()
    np.testing.assert_array_equal(model.get_weights()[0], before - gradient.numpy())


def test_an_optimizer_without_the_hook_is_refused():
    with pytest.raises(TypeError, match="not an optimizer that tfmirror knows"):
        step.applies_aggregated_gradients(object())


def test_replicas_stay_equal_to_the_bit_while_their_data_differ():
    strategy = make_strategy(4)
    model = build_cnn(strategy)
    optimizer = build_sgd(strategy, model)
    train(strategy, model, optimizer, make_examples(80), (5, 5, 5, 5), num_steps=4)
    for variable in model.variables:
        copies = replica_copies(strategy, variable)
        assert len(copies) == 4
        assert (copies == copies[0]).all(), variable.path


def test_one_two_and_four_replicas_train_alike():
    """Ten steps of the cnn; rounding differs, and grows a little with every step."""
    examples = make_examples(160)
    weights = {}
    for n in (1, 2, 4):
        strategy = make_strategy(n)
        model = build_cnn(strategy)
        optimizer = build_sgd(strategy, model)
        train(strategy, model, optimizer, examples, microbatches.even_split(16, n), 10)
        weights[n] = model.get_weights()
    for n in (2, 4):
        for value, expected in zip(weights[n], weights[1], strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-5)
    initial = build_cnn(make_strategy(1)).get_weights()
    assert (
        max(np.abs(a - b).max() for a, b in zip(initial, weights[1], strict=True))
        > 1e-2
    )


@pytest.mark.parametrize("part_sizes", [(4, 4), (6, 2), (8, 0)])
def test_batch_norm_state_is_the_mean_over_replicas_and_on_all_of_them(part_sizes):
    """moving = 0.5 initial + 0.5 the mean over replicas that have examples."""
    strategy = make_strategy(2)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4, 4, 1)),
                keras.layers.Flatten(),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dense(10),
            ]
        )
    optimizer = build_sgd(strategy, model)
    examples = make_examples(8, shape=(4, 4, 1))
    train(strategy, model, optimizer, examples, part_sizes)
    x = examples.images.reshape(8, 16) / 255.0
    parts = [part for part in np.split(x, [part_sizes[0]]) if len(part)]
    mean = 0.5 * np.mean([part.mean(axis=0) for part in parts], axis=0)
    variance = 0.5 * 1 + 0.5 * np.mean([part.var(axis=0) for part in parts], axis=0)
    for variable, expected in (
        (model.layers[1].moving_mean, mean),
        (model.layers[1].moving_variance, variance),
    ):
        for copy in replica_copies(strategy, variable):
            np.testing.assert_allclose(copy, expected, rtol=1e-5)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_evaluation_counts_every_example_exactly_once(num_replicas):
    """NumPy in float64 counts the same, twice in a row; 43 = 5 x 8 + 3."""
    strategy = make_strategy(num_replicas)
    model = build_linear(strategy)
    examples = make_examples(43, shape=(4, 4, 1))
    loss_sum, num_correct, _ = linear_reference(model.get_weights()[0], examples)
    segments = step.make_segments(
        strategy,
        examples,
        8,
        lambda sizes: step.make_eval_steps(strategy, model, sizes),
    )
    for _ in range(2):
        totals, _ = loop.run_pass(segments, step.zero_totals())
        assert totals == metrics.Totals(totals.loss_sum, num_correct, 43)
        np.testing.assert_allclose(totals.loss_sum, loss_sum, rtol=1e-6)


def test_steps_are_traced_once_for_any_number_of_steps_and_zero_steps_do_nothing():
    strategy = make_strategy(2)
    model = build_linear(strategy)
    optimizer = build_sgd(strategy, model)
    examples = make_examples(40, shape=(4, 4, 1))
    made = []

    def make_steps(sizes):
        made.append(step.make_train_steps(strategy, model, optimizer, sizes))
        return made[-1]

    full, last = step.make_segments(strategy, examples, 16, make_steps, shuffle_seed=0)
    before = model.get_weights()[0]
    loop.trace([full, last], step.zero_totals())
    np.testing.assert_array_equal(model.get_weights()[0], before)
    for num_steps in (1, 0, 2, 7):
        full.run(num_steps, step.zero_totals())
    last.run(1, step.zero_totals())
    assert [steps.experimental_get_tracing_count() for steps in made] == [1, 1]
    assert optimizer.iterations.numpy() == 11


def test_how_many_steps_a_call_takes_does_not_change_what_is_computed():
    digests, losses = set(), set()
    for steps_per_loop in (1, 3, 100):
        strategy = make_strategy(2)
        model = build_linear(strategy)
        optimizer = build_sgd(strategy, model)
        segments = step.make_segments(
            strategy,
            make_examples(43, shape=(4, 4, 1)),
            8,
            lambda sizes: step.make_train_steps(strategy, model, optimizer, sizes),  # noqa: B023
            shuffle_seed=0,
        )
        totals, _ = loop.run_pass(
            segments, step.zero_totals(), steps_per_loop=steps_per_loop
        )
        digests.add(metrics.weights_sha256(model.variables))
        losses.add(totals.loss_sum)
    assert len(digests) == len(losses) == 1


def test_layers_with_random_numbers_are_refused():
    strategy = make_strategy(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5)])
    with pytest.raises(config.InputError, match="Dropout, are not supported yet"):
        step.check_state_can_be_averaged(model)
