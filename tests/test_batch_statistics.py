"""Averaged weights are evaluated and saved with statistics of their own."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
from helpers import build_optimizer, make_examples, make_strategy

from tfmirror import config, errors, metrics, models
from tfmirror.data import augmentation, datasets
from tfmirror.inference import evaluation
from tfmirror.models import variable_names
from tfmirror.parallel import (
    batch_statistics,
    devices,
    eval_step,
    microbatches,
    segments,
    step,
    step_loop,
)
from tfmirror.rundir import checkpoints, loading
from tfmirror.training import interruption, run

MOMENTUM = 0.75


def norm(**arguments):
    return keras.layers.BatchNormalization(momentum=MOMENTUM, **arguments)


def build_small(strategy):
    """Returns batch norm, a dense layer, batch norm in a nested model, logits."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    with strategy.scope():
        nested = keras.Sequential([keras.Input((3,)), norm()])
        return keras.Sequential(
            [
                keras.Input((2, 2, 1)),
                layers.Flatten(),
                norm(scale=False, center=False),
                layers.Dense(3, use_bias=False),
                nested,
                layers.Dense(10),
            ]
        )


def estimate(model, optimizer, strategy, examples, shares, *, size=8, augment=None):
    """Runs the steps before an evaluation; returns the totals of the pass."""
    plans = microbatches.plan_epoch(len(examples), size, shares, in_fixed_tree=True)
    make_steps = functools.partial(
        batch_statistics.make_statistics_steps,
        strategy,
        model,
        weights=optimizer.evaluated_variables,
        statistics=optimizer.statistics,
        augment=augment,
    )
    (segment,) = batch_statistics.make_segments(
        strategy, examples, plans, make_steps, shuffle_seed=None
    )
    return segment.run(segment.num_steps, step_loop.zero_totals())


def normalized(x, epsilon=1e-3):
    """Returns x [b, C] after batch norm, and the statistics: mean and variance."""
    mean, variance = x.mean(0), x.var(0)
    return (x - mean) / np.sqrt(variance + epsilon), [mean, variance]


@pytest.mark.parametrize("shares", [(1,), (3,), (1, 1), (2, 1)])
def test_estimates_are_the_means_of_the_microbatches_statistics(shares):
    """In float64. 20 examples are two batches of 8; the last, of 4, is not used."""
    strategy = make_strategy(len(shares))
    model = build_small(strategy)
    optimizer = build_optimizer(strategy, model, ema_decay=0.9)
    examples = make_examples(20, shape=(2, 2, 1))
    kernel = np.random.default_rng(1).normal(size=(4, 3))
    optimizer.ema[0].assign(kernel)  # differs from the model's own
    before = [v.numpy() for v in model.variables]

    expected = []
    sizes = microbatches.even_split(8, sum(shares))
    ends = np.cumsum((0, *sizes))
    for batch in range(2):
        x = examples.images[8 * batch : 8 * batch + 8].reshape(8, 4) / 255
        for begin, end in zip(ends[:-1], ends[1:], strict=True):
            y, first = normalized(x[begin:end])
            _, second = normalized(y @ kernel.astype(np.float32).astype(np.float64))
            expected.append(np.concatenate(first + second))

    for _ in range(2):  # the second estimate begins anew
        totals = estimate(model, optimizer, strategy, examples, shares)
        assert [int(total) for total in totals] == [0, 0, 2, 0, 0]
        got = np.concatenate([v.numpy() for v in optimizer.statistics])
        np.testing.assert_allclose(got, np.mean(expected, 0), rtol=2e-5, atol=2e-6)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_layer_that_is_called_twice_weighs_its_calls_as_training_does():
    """From s: m (m s + (1-m) a) + (1-m) b; that is s for s = (m a + b) / (m + 1)."""
    strategy = make_strategy(1)
    with strategy.scope():
        shared, inputs = norm(scale=False, center=False), keras.Input((2, 2, 1))
        flat = keras.layers.Flatten()(inputs)
        both = [shared(flat), shared(keras.layers.Rescaling(3.0, 1.0)(flat))]
        model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Add()(both)))
    optimizer = build_optimizer(strategy, model, ema_decay=0.9)
    examples = make_examples(8, shape=(2, 2, 1))
    estimate(model, optimizer, strategy, examples, (1,))
    x = examples.images.reshape(8, 4) / 255
    means = [x.mean(0), 3 * x.mean(0) + 1]
    variances = [x.var(0), 9 * x.var(0)]
    for variable, (first, second) in zip(
        optimizer.statistics, (means, variances), strict=True
    ):
        expected = (MOMENTUM * first + second) / (MOMENTUM + 1)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)


def test_frozen_fixed_and_other_state_stays_as_training_left_it():
    strategy = make_strategy(1)
    with strategy.scope():
        frozen, fixed = norm(name="frozen"), norm(name="fixed")
        frozen.trainable, fixed.momentum = False, 1.0
        layers = [
            keras.Input((2, 2, 1)),
            keras.layers.Flatten(),
            frozen,
            fixed,
            norm(renorm=True, name="renorm"),
            keras.layers.SpectralNormalization(keras.layers.Dense(10)),
            norm(name="plain"),
        ]
        model = keras.Sequential(layers)
    optimizer = build_optimizer(strategy, model, ema_decay=0.9)
    state = model.non_trainable_variables
    paths = [state[k].path for k in batch_statistics.indices(model)]
    assert [path.split("/")[-2:] for path in paths] == [
        ["plain", "moving_mean"],
        ["plain", "moving_variance"],
    ]
    evaluated = optimizer.evaluated_state
    changed = [k for k, v in enumerate(evaluated) if v is not state[k]]
    assert changed == batch_statistics.indices(model)


def test_statistics_that_are_not_finite_stop_the_pass():
    strategy = make_strategy(2)
    model = build_small(strategy)
    optimizer = build_optimizer(strategy, model, ema_decay=0.9)
    optimizer.ema[0].assign(np.full((4, 3), np.nan, np.float32))
    totals = estimate(
        model, optimizer, strategy, make_examples(16, shape=(2, 2, 1)), (1, 1)
    )
    assert int(totals.num_steps) == 0


@pytest.mark.parametrize(("model", "decay"), [("cnn", 0.9), ("probe", 0.0)])
def test_without_batch_norm_or_averages_nothing_is_estimated(model, decay):
    strategy = make_strategy(1)
    with strategy.scope():
        built = models.build(model, (28, 28, 1), 10)
    optimizer = build_optimizer(strategy, built, ema_decay=decay)
    assert not optimizer.statistics
    state = built.non_trainable_variables
    pairs = zip(optimizer.evaluated_state, state, strict=True)
    assert all(evaluated is own for evaluated, own in pairs)


def build_convolutions(input_shape, num_classes, initializer=None, dropout=0.0):
    """Returns convolution, batch norm, perhaps dropout, and again, and logits."""
    layers = keras.layers
    drop = [layers.Dropout(dropout)] if dropout else []
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(4, 5, strides=4, name="conv1"),
            layers.BatchNormalization(name="norm1"),
            layers.ReLU(name="relu"),
            *drop,
            layers.Conv2D(4, 3, strides=2, name="conv2"),
            layers.BatchNormalization(name="norm2"),
            layers.Flatten(name="flatten"),
            layers.Dense(num_classes, name="logits"),
        ],
        name="convolutions",
    )


def train_twice(shares, evaluates=True):
    """Returns digests of what training goes on with and of the estimates."""
    strategy = make_strategy(len(shares))
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build_convolutions((16, 16, 1), 10, dropout=0.25)
    optimizer = build_optimizer(strategy, model, momentum=0.9, ema_decay=0.9)
    examples = make_examples(40, shape=(16, 16, 1))
    plans = microbatches.plan_epoch(40, 20, shares, in_fixed_tree=True)
    augment = augmentation.make_augment(flips=True, seed=0)
    make_steps = functools.partial(
        step.make_train_steps, strategy, model, optimizer, augment=augment
    )
    (training,) = segments.make_segments(
        strategy, examples, plans, make_steps, shuffle_seed=0
    )
    for _ in range(2):
        training.run(training.num_steps, step_loop.zero_totals())
        if evaluates:
            estimate(
                model, optimizer, strategy, examples, shares, size=20, augment=augment
            )
    of_training = [*model.variables, *optimizer.keras_optimizer.variables]
    return (
        metrics.weights_sha256([*of_training, *optimizer.ema]),
        metrics.weights_sha256(optimizer.statistics),
    )


@pytest.mark.training
def test_the_estimates_have_the_same_bits_on_1_and_3_replicas():
    """With dropout and random crops, and other examples on each replica."""
    on_one = train_twice((3,))
    assert train_twice((1, 1, 1)) == on_one
    # Training does not know of them.
    without = train_twice((3,), evaluates=False)
    assert without[0] == on_one[0] and without[1] != on_one[1]


SETTINGS = config.TrainConfig(
    gpus=2,
    microbatches=4,
    global_batch_size=32,
    limit_train_examples=100,
    limit_eval_examples=50,
    epochs=2,
    learning_rate=0.1,
    momentum=0.9,
    ema_decay=0.9,
    augment="crop",
    steps_per_loop=1,
    resume="auto",
)


@pytest.fixture(scope="module")
def builder():
    """Lets runs train a small model with batch norm."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.BUILDERS, "cnn", build_convolutions)
        yield


@pytest.fixture(scope="module")
def finished(builder, tmp_path_factory):
    """Summary of a whole run, and its run directory."""
    folder = tmp_path_factory.mktemp("averaged") / "run"
    settings = dataclasses.replace(SETTINGS, workdir=str(folder))
    return run.train(settings), folder


def evaluate(path, warn=pytest.fail):
    """Returns loss and accuracy of the model at `path`, on two replicas."""
    digits = datasets.load("digits", limit_train_examples=100, limit_eval_examples=50)
    trained = loading.find(path, warn)
    totals = evaluation.evaluate(trained, digits, devices.set_up(2, "cpu")).totals
    return totals.mean_loss, totals.accuracy


@pytest.mark.slow
@pytest.mark.training
def test_what_is_saved_is_what_was_evaluated(finished):
    summary, folder = finished
    recorded = [(e["eval_loss"], e["eval_accuracy"]) for e in summary["epochs"]]
    of_epochs = sorted(folder.glob("checkpoints/step-*.npz"))
    assert [evaluate(path) for path in of_epochs] == recorded
    assert evaluate(folder) == recorded[-1]  # model.keras
    assert evaluate(folder / "checkpoints/best.npz") == max(
        recorded, key=lambda r: r[1]
    )
    # It is not what the raw weights and their statistics would give.
    variables = checkpoints.read(of_epochs[-1]).variables
    for name in ("convolutions/conv1/kernel", "convolutions/norm2/moving_variance"):
        average = variables["averaged/" + name]
        assert np.abs(average - variables[name]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.training
# Calls: 4 training steps, 3 to estimate, 2 to evaluate.
@pytest.mark.parametrize("num_calls", [4, 6, 8])
def test_a_stop_within_the_evaluation_changes_no_bit(
    finished, tmp_path, monkeypatch, num_calls
):
    summary, _ = finished

    class Asked(interruption.Watch):
        calls = 0

        @property
        def is_asked(self):
            self.calls += 1
            return self.calls >= num_calls

    monkeypatch.setattr(interruption, "Watch", Asked)
    settings = dataclasses.replace(SETTINGS, workdir=str(tmp_path / "run"))
    with pytest.raises(errors.InterruptedRunError, match="after step 4 of epoch 1"):
        run.train(settings)
    monkeypatch.undo()
    # Its averages have no statistics yet: the raw weights are used, and it is said.
    said = []
    trained = loading.find(tmp_path / "run", said.append)
    assert len(said) == 1 and "raw weights are used" in said[0]
    (path,) = (tmp_path / "run/checkpoints").glob("step-*.npz")
    state = checkpoints.read(path)
    for value, name in zip(trained.variables, state.model.variables, strict=True):
        np.testing.assert_array_equal(value, state.variables[name])

    resumed = run.train(dataclasses.replace(settings, gpus=1))
    assert resumed["weights_sha256"] == summary["weights_sha256"]
    for mine, whole in zip(resumed["epochs"], summary["epochs"], strict=True):
        assert mine["eval_loss"] == whole["eval_loss"]


@pytest.mark.training
def test_a_checkpoint_of_an_earlier_version_is_evaluated_but_not_resumed(
    finished, tmp_path
):
    """Its averages had no warm-up, and the raw weights' statistics."""
    state = checkpoints.read(max(finished[1].glob("checkpoints/step-*.npz")))
    earlier = {
        variable_names.earlier_averaged_name(name.removeprefix("averaged/"))
        if name.startswith("averaged/")
        else name: value
        for name, value in state.variables.items()
        if not (name.startswith("averaged/") and "moving" in name)
    }
    path = checkpoints.write(
        tmp_path / "checkpoints", dataclasses.replace(state, variables=earlier)
    )
    said = []
    trained = loading.find(path, said.append)
    assert len(said) == 1 and "raw weights alone" in said[0]
    for value, name in zip(trained.variables, state.model.variables, strict=True):
        average = "ema_" + name.replace("/", "_")
        np.testing.assert_array_equal(value, earlier.get(average, earlier[name]))
    settings = dataclasses.replace(
        SETTINGS, workdir=str(tmp_path / "new"), resume=str(path)
    )
    with pytest.raises(errors.InputError, match="had no warm-up"):
        run.train(settings)
    assert not (tmp_path / "new").exists()


@pytest.mark.training
def test_evaluation_reads_the_given_weights_and_state():
    """What is evaluated is what `finish` puts into the model."""
    strategy = make_strategy(2)
    with strategy.scope():
        model = build_convolutions((16, 16, 1), 10)
    optimizer = build_optimizer(strategy, model, ema_decay=0.9)
    rng = np.random.default_rng(0)
    for variable in (*optimizer.ema, *optimizer.statistics):
        variable.assign(rng.uniform(0.5, 1.5, variable.shape))
    examples = make_examples(16, shape=(16, 16, 1))
    plans = microbatches.plan_epoch(16, 16, (1, 1))

    def evaluated(**arguments):
        (segment,) = segments.make_segments(
            strategy,
            examples,
            plans,
            lambda plan: eval_step.make_eval_steps(strategy, model, plan, **arguments),
        )
        return float(segment.run(1, step_loop.zero_totals()).loss_sum)

    own = evaluated()
    averaged = evaluated(
        weights=optimizer.evaluated_variables, state=optimizer.evaluated_state
    )
    assert averaged != own
    optimizer.finish()
    assert evaluated() == averaged
