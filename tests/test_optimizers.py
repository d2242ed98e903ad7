"""What follows a gradient acts on the aggregated one, once, whatever the replicas."""

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

from tfmirror.diagnostics import non_finite
from tfmirror.parallel import (
    gradients,
    microbatches,
    optimizers,
    segments,
    step,
    step_loop,
)

EXAMPLES = make_examples(12, shape=(4, 4, 1))
ALL_SHARES = [
    (1, 1),
    (5, 3),
    *(
        pytest.param(shares, marks=pytest.mark.training)
        for shares in [(1,), (4, 4), (2, 2, 4)]
    ),
]


def take_steps(shares, num_steps=1, **settings):
    """Trains softmax regression; returns (initial weights, model, optimizer)."""
    strategy = make_strategy(len(shares))
    model = build_linear(strategy)
    initial = model.get_weights()[0].astype(np.float64)
    optimizer = build_optimizer(strategy, model, **settings)
    in_tree = sum(shares) > len(shares)
    (plan,) = microbatches.plan_epoch(12, 12, shares, in_fixed_tree=in_tree)
    (segment,) = segments.make_segments(
        strategy,
        EXAMPLES,
        [plan],
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    )
    segment.run(num_steps, step_loop.zero_totals())
    for variable in [*model.variables, *optimizer.variables]:
        copies = replica_copies(strategy, variable)
        assert len(copies) == len(shares) and (copies == copies[0]).all()
    return initial, model, optimizer


def mean_gradient(weights):
    return linear_reference(weights, EXAMPLES)[2] / 12


@pytest.mark.parametrize("shares", ALL_SHARES)
def test_clipping_acts_on_the_norm_of_the_aggregated_gradient(shares):
    weights, model, _ = take_steps(shares, learning_rate=0.5, clip_norm=0.1)
    gradient = mean_gradient(weights)
    norm = np.linalg.norm(gradient)
    assert norm > 0.2  # it does clip
    expected = weights - 0.5 * gradient * 0.1 / norm
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shares", ALL_SHARES)
def test_weight_decay_is_taken_off_once(shares):
    weights, model, _ = take_steps(shares, learning_rate=0.5, weight_decay=0.1)
    expected = weights - 0.5 * 0.1 * weights
    expected -= 0.5 * mean_gradient(weights)  # of the weights before the decay
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shares", ALL_SHARES)
def test_momentum_over_three_steps(shares):
    """Keras: v = 0.9 v - lr g; w = w + v."""
    weights, model, optimizer = take_steps(shares, 3, learning_rate=0.5, momentum=0.9)
    velocity = 0
    for _ in range(3):
        velocity = 0.9 * velocity - 0.5 * mean_gradient(weights)
        weights = weights + velocity
    np.testing.assert_allclose(model.get_weights()[0], weights, rtol=1e-4, atol=1e-6)
    assert optimizer.keras_optimizer.iterations.numpy() == 3


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("shares", [(1, 1), (5, 3)])
def test_adams_first_step_is_close_to_the_sign_of_the_gradient(shares, name):
    """With m = 0.1 g and v = 0.001 g^2, both corrected, and Keras' epsilon of 1e-7:

    lr m / (sqrt(v) + eps) becomes lr g / (|g| + eps / sqrt(0.001)).
    """
    weights, model, _ = take_steps(shares, name=name, learning_rate=0.01)
    gradient = mean_gradient(weights)
    expected = -0.01 * gradient / (np.abs(gradient) + 1e-7 / np.sqrt(0.001))
    step_taken = model.get_weights()[0] - weights
    np.testing.assert_allclose(step_taken, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("shares", [(1,), (5, 3)])
def test_ema_follows_the_weights_and_becomes_them_at_the_end(shares):
    """After t steps its decay is min(0.75, (1 + t) / (10 + t)): 2/11, then 3/12."""
    weights, model, optimizer = take_steps(shares, 2, learning_rate=0.5, ema_decay=0.75)
    average = weights
    for decay in (2 / 11, 3 / 12):
        weights = weights - 0.5 * mean_gradient(weights)
        average = decay * average + (1 - decay) * weights
    np.testing.assert_allclose(model.get_weights()[0], weights, rtol=1e-5, atol=1e-7)
    (variable,) = optimizer.evaluated_variables
    np.testing.assert_allclose(variable.numpy(), average, rtol=1e-5, atol=1e-7)
    optimizer.finish()
    np.testing.assert_array_equal(model.get_weights()[0], variable.numpy())


def test_the_decay_of_the_average_rises_to_the_one_asked_for():
    steps = np.array([1, 2, 8, 80, 81, 1000])
    got = [float(optimizers.averaging_decay(0.9, int(step))) for step in steps]
    expected = [2 / 11, 3 / 12, 9 / 18, 81 / 90, 0.9, 0.9]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert float(optimizers.averaging_decay(0.1, 1)) == np.float32(0.1)


def test_without_ema_the_weights_themselves_are_evaluated():
    _, model, optimizer = take_steps((1, 1))
    assert optimizer.evaluated_variables is optimizer.trainable_variables
    before = model.get_weights()[0]
    optimizer.finish()
    np.testing.assert_array_equal(model.get_weights()[0], before)


@pytest.mark.training
@pytest.mark.parametrize("shares", [(1, 1), (5, 3)])
def test_loss_scaling_changes_nothing_but_what_float16_can_hold(shares):
    weights, model, optimizer = take_steps(
        shares, 2, learning_rate=0.5, scales_loss=True
    )
    for _ in range(2):
        weights = weights - 0.5 * mean_gradient(weights)
    np.testing.assert_allclose(model.get_weights()[0], weights, rtol=1e-4, atol=1e-6)
    assert optimizer.loss_scaler.scale.numpy() == optimizers.INITIAL_LOSS_SCALE
    assert optimizer.loss_scaler.good_steps.numpy() == 2


@pytest.mark.training
def test_the_loss_scale_doubles_after_many_good_steps(monkeypatch):
    monkeypatch.setattr(optimizers, "STEPS_TO_GROW_LOSS_SCALE", 3)
    _, _, optimizer = take_steps((1, 1), 7, learning_rate=0.01, scales_loss=True)
    assert optimizer.loss_scaler.scale.numpy() == 4 * optimizers.INITIAL_LOSS_SCALE
    assert optimizer.loss_scaler.good_steps.numpy() == 1


class PoisonGradient(keras.layers.Layer):
    """The identity, whose gradient is infinite for images with a white first pixel."""

    def call(self, x):
        @tf.custom_gradient
        def identity(x):
            is_white = tf.reshape(x, [tf.shape(x)[0], -1])[:, :1] == 1
            factor = tf.where(is_white, tf.constant(np.inf, x.dtype), 1)
            return tf.identity(x), lambda dy: dy * factor[..., tf.newaxis, tf.newaxis]

        return identity(x)


def build_poisoned(strategy):
    """Returns a float16 model whose gradient PoisonGradient can make infinite."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with strategy.scope():
            return keras.Sequential(
                [
                    keras.Input((4, 4, 1)),
                    keras.layers.Conv2D(2, 1, name="first"),
                    PoisonGradient(),
                    keras.layers.Flatten(),
                    keras.layers.BatchNormalization(),
                    keras.layers.Dense(10, dtype="float32"),
                ]
            )
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.training
@pytest.mark.parametrize("shares", [(4,), (2, 2), (3, 1), (1, 1, 1, 1)])
def test_an_overflow_in_one_microbatch_skips_the_step_everywhere(shares, monkeypatch):
    """Batch 1 of 3 has the poison, in its third microbatch of four only."""
    monkeypatch.setattr(optimizers, "INITIAL_LOSS_SCALE", 64.0)  # no other overflow
    strategy = make_strategy(len(shares))
    model = build_poisoned(strategy)
    # The poison sits behind the convolution: let that be the identity on channel 0.
    model.layers[0].set_weights([np.array([[[[1, 1]]]], np.float32), np.zeros(2)])
    optimizer = build_optimizer(
        strategy, model, momentum=0.9, scales_loss=True, ema_decay=0.5
    )
    examples = make_examples(24, shape=(4, 4, 1))
    images = np.minimum(examples.images, 254)
    images[8 + 5, 0, 0] = 255
    plans = microbatches.plan_epoch(24, 8, shares, in_fixed_tree=True)
    (segment,) = segments.make_segments(
        strategy,
        type(examples)(images, examples.labels),
        plans,
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    )
    variables = [*model.variables, *optimizer.variables]

    def values():
        return [
            v.numpy()
            for v in variables
            if "scale" not in v.path and "good" not in v.path
        ]

    segment.run(1, step_loop.zero_totals())
    model.layers[0].set_weights([np.array([[[[1, 1]]]], np.float32), np.zeros(2)])
    before = values()
    segment.run(1, step_loop.zero_totals())  # the poisoned one
    for value, expected in zip(values(), before, strict=True):
        np.testing.assert_array_equal(value, expected)
    assert optimizer.loss_scaler.scale.numpy() == optimizers.INITIAL_LOSS_SCALE / 2
    assert (
        optimizer.loss_scaler.good_steps.numpy() == 0
        and optimizer.keras_optimizer.iterations.numpy() == 1
    )
    segment.run(1, step_loop.zero_totals())
    assert optimizer.keras_optimizer.iterations.numpy() == 2
    assert any((a != b).any() for a, b in zip(values(), before, strict=True))
    for variable in variables:
        copies = replica_copies(strategy, variable)
        assert np.isfinite(copies).all() and (copies == copies[0]).all(), variable.path


def scale_sequence(overflows, scale, to_grow, largest):
    """Returns (scale, steps skipped) after each step, as dynamic scaling is defined."""
    good, skipped, found = 0, 0, []
    for is_overflow in overflows:
        if is_overflow:
            scale, good, skipped = max(scale / 2, 1.0), 0, skipped + 1
        elif (good := good + 1) >= to_grow:
            scale, good = min(2 * scale, largest), 0
        found.append((scale, skipped))
    return found


def poisoned_segment(shares, overflows):
    """Returns (strategy, segment, model, optimizer, examples, plan), batches of 8.

    A batch whose flag is set has an infinite gradient in its third microbatch of four.
    The learning rate is so small that the model stays as it is.
    """
    strategy = make_strategy(len(shares))
    model = build_poisoned(strategy)
    model.layers[0].set_weights([np.array([[[[1, 1]]]], np.float32), np.zeros(2)])
    optimizer = build_optimizer(strategy, model, 1e-30, scales_loss=True)
    examples = make_examples(8 * len(overflows), shape=(4, 4, 1))
    np.minimum(examples.images, 254, out=examples.images)
    for k, is_overflow in enumerate(overflows):
        if is_overflow:
            examples.images[8 * k + 5, 0, 0] = 255
    (plan,) = microbatches.plan_epoch(len(examples), 8, shares, in_fixed_tree=True)
    (segment,) = segments.make_segments(
        strategy,
        examples,
        [plan],
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    )
    return strategy, segment, model, optimizer, examples, plan


@pytest.mark.training
@pytest.mark.parametrize("shares", [(4,), (2, 1, 1)])
def test_the_loss_scale_follows_its_definition_and_skips_are_counted(
    shares, monkeypatch
):
    monkeypatch.setattr(optimizers, "INITIAL_LOSS_SCALE", 8.0)
    monkeypatch.setattr(optimizers, "LARGEST_LOSS_SCALE", 16.0)
    monkeypatch.setattr(optimizers, "STEPS_TO_GROW_LOSS_SCALE", 3)
    overflows = [0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1]
    _, segment, _, optimizer, _, _ = poisoned_segment(shares, overflows)
    totals, found = step_loop.zero_totals(), []
    for _ in overflows:
        totals = segment.run(1, totals)
        scale = float(optimizer.loss_scaler.scale.numpy())
        found.append((scale, int(totals.num_skipped)))
    assert found == scale_sequence(overflows, 8.0, 3, 16.0)
    assert int(totals.num_steps) == len(overflows)
    assert optimizer.keras_optimizer.iterations.numpy() == overflows.count(0)


@pytest.mark.training
@pytest.mark.parametrize("shares", [(4,), (2, 1, 1)])
def test_a_gradient_that_is_never_finite_stops_at_a_scale_of_1(shares, monkeypatch):
    """From 8 three steps are skipped, at 4, 2 and 1 left; the fourth is not taken."""
    monkeypatch.setattr(optimizers, "INITIAL_LOSS_SCALE", 8.0)
    made = poisoned_segment(shares, [1] * 6)
    strategy, segment, model, optimizer, examples, plan = made
    before = model.get_weights()
    totals = segment.run(6, step_loop.zero_totals())
    assert (int(totals.num_steps), int(totals.num_skipped)) == (3, 3)
    assert optimizer.loss_scaler.scale.numpy() == 1
    for value, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, expected)
    find = non_finite.make_finder(strategy, model, optimizer, plan)
    (finding,) = find(examples.images[24:32], examples.labels[24:32])
    assert (finding.replica_id, finding.microbatch) == (0 if shares == (4,) else 1, 2)
    assert finding.is_loss_finite and finding.variables[0].endswith("first/kernel")


@pytest.mark.training
@pytest.mark.parametrize("num_examples", [8, 4096])
def test_the_size_of_a_microbatch_does_not_overflow_float16(num_examples):
    strategy = make_strategy(2)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = build_linear(strategy)
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = build_optimizer(strategy, model, 0.5, scales_loss=True)
    (weights,) = model.get_weights()
    examples = make_examples(num_examples, shape=(4, 4, 1))
    np.copyto(examples.labels, 3)  # gradients of one sign, which add up
    (plan,) = microbatches.plan_epoch(num_examples, num_examples, (1, 1))
    (segment,) = segments.make_segments(
        strategy,
        examples,
        [plan],
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    )
    totals = segment.run(1, step_loop.zero_totals())
    assert int(totals.num_skipped) == 0
    _, _, gradient = linear_reference(weights, examples)
    np.testing.assert_allclose(
        model.get_weights()[0], weights - 0.5 * gradient / num_examples, atol=2e-3
    )


def test_scaling_by_the_size_of_a_microbatch_changes_no_bit():
    """In float32, whose exponents have room; 12 examples are divided by 16."""
    model = build_linear(make_strategy(1))
    weights = [tf.convert_to_tensor(w) for w in model.get_weights()]
    plain, scaled = (
        gradients.microbatch_gradients(
            model, weights, [], tf.constant(EXAMPLES.images), EXAMPLES.labels,
            scales_loss=scales_loss,
        )
        for scales_loss in (False, True)
    )  # fmt: skip
    np.testing.assert_array_equal(plain.gradients[0], scaled.gradients[0])
    assert [gradients.power_of_two(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
