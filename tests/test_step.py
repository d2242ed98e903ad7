"""The training step: N replicas do what one device does, whatever the split."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    build_cnn,
    build_linear,
    build_optimizer,
    linear_reference,
    make_examples,
    make_plan,
    make_strategy,
    replica_copies,
)

from tfmirror import metrics
from tfmirror.diagnostics import inspection
from tfmirror.parallel import (
    eval_step,
    gradients,
    microbatches,
    optimizers,
    segments,
    step,
    step_loop,
)
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


def train(strategy, model, optimizer, examples, per_replica_batch_sizes, num_steps=1):
    """Takes steps over the first examples, in stored order; returns the Totals."""
    (segment,) = segments.make_segments(
        strategy,
        examples,
        [make_plan(per_replica_batch_sizes, num_steps)],
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    )
    return segment.run(num_steps, step_loop.zero_totals())


def make_plans(num_examples, global_batch_size, num_replicas):
    """Returns the plans of an epoch with one microbatch a replica."""
    return microbatches.plan_epoch(num_examples, global_batch_size, (1,) * num_replicas)


@pytest.mark.parametrize(
    ("per_replica_batch_sizes", "what"),
    [
        ((16, 16), "even"),
        pytest.param((8, 8, 8, 8), "even", marks=pytest.mark.training),
        ((5, 4), "uneven last batch"),
        pytest.param((3, 3, 2, 2), "uneven last batch", marks=pytest.mark.training),
        pytest.param(
            (1, 1, 1, 0), "a replica without examples", marks=pytest.mark.training
        ),
        ((3, 0), "a replica without examples"),
        pytest.param((7, 1, 2), "unequal shares", marks=pytest.mark.training),
    ],
)
def test_the_aggregated_gradient_is_that_of_the_whole_batch(
    per_replica_batch_sizes, what
):
    strategy = make_strategy(len(per_replica_batch_sizes))
    assert strategy.num_replicas_in_sync >= 2
    model = build_cnn(strategy)
    examples = make_examples(sum(per_replica_batch_sizes))
    view = inspection.inspect(
        strategy, model, examples.images, examples.labels, per_replica_batch_sizes
    )
    for variable, expected in zip(
        view.variables, keras_gradients(model, examples), strict=True
    ):
        scale = np.abs(expected).max()
        for aggregated in variable.aggregated_gradients:
            np.testing.assert_allclose(
                aggregated, expected, rtol=RTOL, atol=RTOL * scale
            )
        if 0 not in per_replica_batch_sizes:  # the replicas did have different data
            for a, b in itertools.combinations(variable.local_gradients, 2):
                assert np.abs(a - b).max() > 100 * RTOL * scale


@pytest.mark.parametrize(
    "per_replica_batch_sizes", [(12,), (6, 6), (4, 5, 3), (3, 3, 3, 3), (12, 0)]
)
def test_one_step_is_gradient_descent_on_the_mean_loss(per_replica_batch_sizes):
    """NumPy in float64 takes the same step: w - lr (1/B) x^T (p - onehot)."""
    strategy = make_strategy(len(per_replica_batch_sizes))
    model = build_linear(strategy)
    optimizer = build_optimizer(strategy, model, learning_rate=0.5)
    examples = make_examples(12, shape=(4, 4, 1))
    (weights,) = model.get_weights()
    loss_sum, num_correct, gradient = linear_reference(weights, examples)
    totals = train(strategy, model, optimizer, examples, per_replica_batch_sizes)
    np.testing.assert_allclose(totals.loss_sum, loss_sum, rtol=1e-6)
    assert int(totals.num_correct) == num_correct
    np.testing.assert_allclose(
        model.get_weights()[0], weights - 0.5 * gradient / 12, rtol=RTOL, atol=1e-7
    )


def test_optimizer_applies_aggregated_gradients_once():
    """The private hook works: gradients are not summed over replicas a second time."""
    strategy = make_strategy(4)
    model = build_linear(strategy)
    optimizer = build_optimizer(strategy, model, learning_rate=1.0).keras_optimizer
    before = model.get_weights()[0]
    gradient = tf.random.stateless_normal(before.shape, seed=(0, 0))

    def replica_apply():  # a tensor of each replica's own, as in a step
        optimizer.apply([tf.identity(gradient)], model.trainable_variables)

    tf.function(lambda: strategy.run(replica_apply))()
    np.testing.assert_array_equal(model.get_weights()[0], before - gradient.numpy())


def test_an_optimizer_without_the_hook_is_refused():
    with pytest.raises(TypeError, match="not an optimizer that tfmirror knows"):
        optimizers.disable_gradient_all_reduce(object())


@pytest.mark.training
def test_replicas_stay_equal_to_the_bit_while_their_data_differ():
    strategy = make_strategy(4)
    model = build_cnn(strategy)
    optimizer = build_optimizer(strategy, model)
    train(strategy, model, optimizer, make_examples(80), (5, 5, 5, 5), num_steps=4)
    for variable in model.variables:
        copies = replica_copies(strategy, variable)
        assert len(copies) == 4
        assert (copies == copies[0]).all(), variable.path


@pytest.mark.training
def test_one_two_and_four_replicas_train_alike():
    """Ten steps of the cnn; rounding differs, and grows a little with every step."""
    examples = make_examples(160)
    weights = {}
    for n in (1, 2, 4):
        strategy = make_strategy(n)
        model = build_cnn(strategy)
        optimizer = build_optimizer(strategy, model)
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


@pytest.mark.parametrize("per_replica_batch_sizes", [(4, 4), (6, 2), (8, 0)])
def test_batch_norm_state_is_the_mean_over_replicas_and_on_all_of_them(
    per_replica_batch_sizes,
):
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
    optimizer = build_optimizer(strategy, model)
    examples = make_examples(8, shape=(4, 4, 1))
    train(strategy, model, optimizer, examples, per_replica_batch_sizes)
    x = examples.images.reshape(8, 16) / 255.0
    parts = [part for part in np.split(x, [per_replica_batch_sizes[0]]) if len(part)]
    mean = 0.5 * np.mean([part.mean(axis=0) for part in parts], axis=0)
    variance = 0.5 * 1 + 0.5 * np.mean([part.var(axis=0) for part in parts], axis=0)
    for variable, expected in (
        (model.layers[1].moving_mean, mean),
        (model.layers[1].moving_variance, variance),
    ):
        for copy in replica_copies(strategy, variable):
            np.testing.assert_allclose(copy, expected, rtol=1e-5)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "num_replicas",
    [
        pytest.param(1, marks=pytest.mark.training),
        2,
        pytest.param(4, marks=pytest.mark.training),
    ],
)
def test_evaluation_counts_every_example_exactly_once(num_replicas):
    """NumPy in float64 counts the same, twice in a row; 43 = 5 x 8 + 3."""
    strategy = make_strategy(num_replicas)
    model = build_linear(strategy)
    examples = make_examples(43, shape=(4, 4, 1))
    loss_sum, num_correct, _ = linear_reference(model.get_weights()[0], examples)
    passes = segments.make_segments(
        strategy,
        examples,
        make_plans(43, 8, num_replicas),
        lambda plan: eval_step.make_eval_steps(strategy, model, plan),
    )
    for _ in range(2):
        totals = loop.run_pass(passes, step_loop.zero_totals()).totals
        assert totals == metrics.Totals(totals.loss_sum, num_correct, 43)
        np.testing.assert_allclose(totals.loss_sum, loss_sum, rtol=1e-6)


@pytest.mark.parametrize(
    ("shares", "in_fixed_tree"),
    [((4,), True), ((2, 2), True), ((1, 0, 3), True), ((1, 1), False)],
)
def test_evaluation_counts_the_five_likeliest_of_more_than_ten_classes(
    shares, in_fixed_tree
):
    """NumPy counts the same over 43 examples, on any replicas."""
    strategy = make_strategy(len(shares))
    model = build_linear(strategy, num_classes=12)
    examples = make_examples(43, shape=(4, 4, 1), num_classes=12)
    logits = examples.images.reshape(43, -1) / 255.0 @ model.get_weights()[0]
    first = np.argsort(-logits, axis=1)[:, :5] == examples.labels[:, np.newaxis]
    passes = segments.make_segments(
        strategy,
        examples,
        microbatches.plan_epoch(43, 8, shares, in_fixed_tree=in_fixed_tree),
        lambda plan: eval_step.make_eval_steps(strategy, model, plan),
    )
    totals = loop.run_pass(passes, step_loop.zero_totals()).totals
    assert (totals.num_correct, totals.num_top5) == (first[:, 0].sum(), first.sum())
    assert 0 < totals.num_correct < totals.num_top5 < totals.num_examples == 43


def test_steps_are_traced_once_for_any_number_of_steps_and_zero_steps_do_nothing():
    strategy = make_strategy(2)
    model = build_linear(strategy)
    optimizer = build_optimizer(strategy, model)
    examples = make_examples(40, shape=(4, 4, 1))
    made = []

    def make_steps(plan):
        made.append(step.make_train_steps(strategy, model, optimizer, plan))
        return made[-1]

    plans = make_plans(40, 16, 2)
    full, last = segments.make_segments(
        strategy, examples, plans, make_steps, shuffle_seed=0
    )
    before = model.get_weights()[0]
    loop.trace([full, last], step_loop.zero_totals())
    np.testing.assert_array_equal(model.get_weights()[0], before)
    for num_steps in (1, 0, 2, 7):
        full.run(num_steps, step_loop.zero_totals())
    last.run(1, step_loop.zero_totals())
    assert [steps.compiled.experimental_get_tracing_count() for steps in made] == [1, 1]
    assert optimizer.keras_optimizer.iterations.numpy() == 11


@pytest.mark.training
def test_how_many_steps_a_call_takes_does_not_change_what_is_computed():
    digests, losses = set(), set()
    for steps_per_loop in (1, 3, 100):
        strategy = make_strategy(2)
        model = build_linear(strategy)
        optimizer = build_optimizer(strategy, model)
        make_steps = functools.partial(
            step.make_train_steps, strategy, model, optimizer
        )
        examples = make_examples(43, shape=(4, 4, 1))
        plans = make_plans(43, 8, 2)
        passes = segments.make_segments(
            strategy, examples, plans, make_steps, shuffle_seed=0
        )
        totals = loop.run_pass(
            passes, step_loop.zero_totals(), steps_per_loop=steps_per_loop
        ).totals
        digests.add(metrics.weights_sha256(model.variables))
        losses.add(totals.loss_sum)
    assert len(digests) == len(losses) == 1


def dropout_masks(model, draw, num_examples=64):
    """Returns which of the ones a Dropout model leaves, [b, 12] bool."""
    seeds = [v.value for v in model.non_trainable_variables]
    state = [gradients.seeds_of_microbatch(seed, draw) for seed in seeds]
    ones = tf.ones((num_examples, 12))
    return model.stateless_call([], state, ones, training=True)[0].numpy() > 0


def test_dropout_differs_between_microbatches_and_calls_of_one_layer():
    """Masks of independent fair coins agree in half of their places."""
    half = pytest.approx(0.5, abs=0.07)
    dropout = keras.layers.Dropout(0.5, seed=1)
    once = keras.Sequential([keras.Input((12,)), dropout])
    first = dropout_masks(once, 0)
    np.testing.assert_array_equal(first, dropout_masks(once, 0))
    for other in (1, 2, 8, 1000):
        assert (first == dropout_masks(once, other)).mean() == half
    inputs = keras.Input((12,))
    twice = keras.Model(inputs, dropout(inputs) + 2 * dropout(inputs))
    seed = dropout.seed_generator.state.value
    state = [gradients.seeds_of_microbatch(seed, 0)]
    both = twice.stateless_call([], state, tf.ones((64, 12)), training=True)[0].numpy()
    a, b = both % 4 == 2, both >= 4  # each kept one is 2, the second times 2
    assert (a == b).mean() == half
    # The second draw in one microbatch is not the first draw of the next.
    assert (b == dropout_masks(once, 1)).mean() == half


@pytest.mark.training
def test_every_microbatch_of_every_step_draws_anew():
    """With all inputs alike, what dropout leaves shows whether a mask came twice."""
    strategy = make_strategy(2)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4, 4, 1)),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(10, use_bias=False),
            ]
        )
    optimizer = build_optimizer(strategy, model, learning_rate=1e-9)  # weights stay
    white = make_examples(8, shape=(4, 4, 1))
    white = type(white)(np.full_like(white.images, 255), np.zeros_like(white.labels))
    losses = [
        float(
            train(strategy, model, optimizer, white, per_replica_batch_sizes).loss_sum
        )
        for per_replica_batch_sizes in ((1, 0), (0, 1), (1, 0), (0, 1))
    ]
    assert len(set(losses)) == 4
