"""Batch norm over the global batch is what one device does with the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    build_optimizer,
    make_examples,
    make_plan,
    make_strategy,
    replica_copies,
)

from tfmirror import config, errors
from tfmirror.parallel import replicas, segments, step, step_loop, sync_batch_norm
from tfmirror.training import run

pytestmark = pytest.mark.training


class Block(keras.layers.Layer):
    """A layer of one's own that holds a batch norm."""

    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization(momentum=0.5)

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x, training=False):
        return self.norm(x, training=training)


def nested():
    """Returns a model whose only layer is a batch norm."""
    inputs = keras.Input((4, 4, 4))
    return keras.Model(inputs, keras.layers.BatchNormalization(momentum=0.5)(inputs))


KINDS = {
    "direct": lambda: keras.layers.BatchNormalization(momentum=0.5),
    "in a layer": Block,
    "in a model": nested,
}


def build(strategy, kind="direct"):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    with strategy.scope():
        return keras.Sequential(
            [
                keras.Input((6, 6, 1)),
                layers.Conv2D(4, 3),
                KINDS[kind](),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dense(10),
                layers.BatchNormalization(momentum=0.5),
            ]
        )


def test_the_private_method_of_batch_norm_is_there():
    assert callable(keras.layers.BatchNormalization._moments)


@pytest.mark.parametrize(
    ("per_replica_batch_sizes", "kind"),
    [
        ((9,), "direct"),
        ((5, 4), "direct"),
        ((7, 2), "in a layer"),
        ((7, 2), "in a model"),
        ((3, 3, 2, 1), "direct"),
    ],
)
def test_a_step_is_keras_own_on_the_whole_batch(per_replica_batch_sizes, kind):
    examples = make_examples(9, shape=(6, 6, 1))
    plain = build(make_strategy(1), kind)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = tf.constant(examples.images / 255.0, tf.float32)
    with tf.GradientTape() as tape:
        loss = loss_function(examples.labels, plain(images, training=True))
    variables = plain.trainable_variables
    gradients = tape.gradient(loss, [v.value for v in variables])
    expected = [v.numpy() - 0.5 * g for v, g in zip(variables, gradients, strict=True)]

    strategy = make_strategy(len(per_replica_batch_sizes))
    model = build(strategy, kind)
    sync_batch_norm.synchronize(model)
    optimizer = build_optimizer(strategy, model, learning_rate=0.5)
    (segment,) = segments.make_segments(
        strategy,
        examples,
        [make_plan(per_replica_batch_sizes)],
        lambda plan: step.make_train_steps(
            strategy, model, optimizer, plan, has_cross_replica_ops=True
        ),
    )
    totals = segment.run(1, step_loop.zero_totals())
    np.testing.assert_allclose(totals.loss_sum / 9, loss, rtol=1e-5)
    for variable, value in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-4, atol=1e-6)
    states = zip(
        model.non_trainable_variables, plain.non_trainable_variables, strict=True
    )
    for variable, reference in states:
        for copy in replica_copies(strategy, variable):
            np.testing.assert_allclose(copy, reference.numpy(), rtol=1e-5, atol=1e-6)


def test_a_large_mean_does_not_swallow_the_variance():
    """NumPy in float64; E[x^2] - E[x]^2 in float32 is off by more than the variance."""
    rng = np.random.default_rng(0)
    values = (1000 + 0.01 * rng.standard_normal((12, 3))).astype(np.float32)
    values[:, 1] += np.arange(12)  # parts with means of their own
    strategy = make_strategy(2)
    parts = replicas.split(strategy, values, (8, 4))

    @tf.function
    def moments(parts):
        return strategy.run(sync_batch_norm.global_moments, (parts, [0]))

    mean, variance = map(strategy.experimental_local_results, moments(parts))
    for replica in range(2):
        exact = values.astype(np.float64)
        np.testing.assert_allclose(mean[replica], exact.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(variance[replica], exact.var(axis=0), rtol=0.02)
    naive = (values**2).mean(axis=0) - values.mean(axis=0) ** 2
    assert abs(naive - exact.var(axis=0))[0] > exact.var(axis=0)[0]


def test_a_replica_without_examples_is_refused_before_it_hangs():
    sync_batch_norm.check_plans([make_plan((3, 2)), make_plan((1, 1))])
    with pytest.raises(
        errors.InputError, match="a batch of 1 leaves one of 2 replicas without"
    ):
        sync_batch_norm.check_plans([make_plan((3, 2)), make_plan((1, 0))])


def test_sync_with_microbatches_is_refused():
    settings = config.TrainConfig(batch_norm="sync", microbatches=4)
    with pytest.raises(errors.InputError, match="can't be combined with microbatches"):
        config.check(settings)


def test_a_saved_model_is_plain_keras(tmp_path):
    model = build(make_strategy(2))
    sync_batch_norm.synchronize(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    norms = [x for x in loaded.layers if isinstance(x, keras.layers.BatchNormalization)]
    assert len(norms) == 2 and not norms[0].synchronized
    np.testing.assert_array_equal(norms[0].gamma, model.layers[1].gamma)


@pytest.mark.slow
def test_a_run_of_resnet18_with_sync(tmp_path):
    settings = config.TrainConfig(
        model="resnet18",
        gpus=2,
        batch_norm="sync",
        epochs=1,
        global_batch_size=8,
        limit_train_examples=8,
        limit_eval_examples=4,
        workdir=str(tmp_path / "run"),
    )
    assert np.isfinite(run.train(settings)["epochs"][0]["train_loss"])


def test_the_fused_kernel_gives_way():
    """It takes statistics of one microbatch, whatever `_moments` would give."""
    from tfmirror import models

    model = models.build("probe", (28, 28, 1), 10)
    norms = [x for x in model.layers if isinstance(x, keras.layers.BatchNormalization)]
    assert len(norms) == 2 and all("call" in vars(norm) for norm in norms)
    sync_batch_norm.synchronize(model)
    assert not any("call" in vars(norm) for norm in norms)
