"""Frozen layers keep their bits; the others are trained as plain Keras trains them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import build_optimizer, make_examples, make_strategy

from tfmirror import errors
from tfmirror.models import freezing, fused_batch_norm
from tfmirror.parallel import (
    gradients,
    microbatches,
    replicas,
    segments,
    step,
    step_loop,
)

layers = keras.layers
BATCH, NUM_STEPS, RATE, DECAY, CLIP = 12, 3, 0.5, 0.1, 0.05


def build():
    """Returns a model with batch norm and a model within; weights of no two values."""
    inner = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(4, 3, name="conv1"),
            layers.BatchNormalization(name="norm1"),
        ],
        name="backbone",
    )
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            inner,
            layers.Conv2D(4, 3, activation="relu", name="conv2"),
            layers.BatchNormalization(name="norm2"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, name="logits"),
        ],
        name="whole",
    )
    rng = np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(rng.uniform(0.1, 0.3, variable.shape))
    return model


PATTERNS = ("backbone", "norm*")


def train(shares, patterns=PATTERNS, **settings):
    """Returns (model, its weights before) after steps of batches cut into 4."""
    strategy = make_strategy(len(shares))
    with strategy.scope():
        model = build()
        fused_batch_norm.fuse(model)
        freezing.freeze(model, patterns)
    before = model.get_weights()
    optimizer = build_optimizer(
        strategy,
        model,
        learning_rate=RATE,
        momentum=0.9,
        weight_decay=DECAY,
        clip_norm=CLIP,
        **settings,
    )
    examples = make_examples(BATCH * NUM_STEPS, shape=(12, 12, 1))
    (plan,) = microbatches.plan_epoch(len(examples), BATCH, shares, in_fixed_tree=True)
    (segment,) = segments.make_segments(
        strategy,
        examples,
        [plan],
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    )
    totals = segment.run(NUM_STEPS, step_loop.zero_totals())
    assert int(totals.num_steps) == NUM_STEPS
    return model, before, optimizer


def train_plainly():
    """Returns the same model after the same steps on one device, in plain Keras."""
    model = build()
    model.get_layer("backbone").trainable = False
    model.get_layer("norm2").trainable = False
    optimizer = keras.optimizers.SGD(
        RATE, 0.9, weight_decay=DECAY, global_clipnorm=CLIP
    )
    examples = make_examples(BATCH * NUM_STEPS, shape=(12, 12, 1))
    for k in range(NUM_STEPS):
        batch = slice(k * BATCH, (k + 1) * BATCH)
        images = examples.images[batch] / np.float32(255)
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                examples.labels[batch], model(images, training=True), from_logits=True
            )
            loss = tf.reduce_mean(losses)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
    return model


@pytest.mark.training
@pytest.mark.parametrize("shares", [(4,), (3, 1)])
def test_frozen_layers_keep_their_bits_and_the_others_step_as_in_plain_keras(shares):
    model, before, optimizer = train(shares, ema_decay=0.9)
    plain = train_plainly()
    trained = {"conv2", "logits"}
    for variable, mine, start, theirs in zip(
        model.weights, model.get_weights(), before, plain.get_weights(), strict=True
    ):
        if trained & set(variable.path.split("/")):
            assert np.abs(mine - start).max() > 1e-3
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
        else:
            np.testing.assert_array_equal(mine, start)
            np.testing.assert_array_equal(theirs, start)
    optimizer.finish()  # averages: of what is trained alone
    assert len(optimizer.ema) == 4 and optimizer.statistics == []
    for variable, now, start in zip(
        model.weights, model.get_weights(), before, strict=True
    ):
        assert (now == start).all() != bool(trained & set(variable.path.split("/")))


def test_frozen_weights_have_no_gradient_no_slot_and_no_place_in_the_reduction():
    strategy = make_strategy(2)
    with strategy.scope():
        model = build()
        freezing.freeze(model, PATTERNS)
    optimizer = build_optimizer(strategy, model, momentum=0.9)
    structure = gradients.sums_structure(model)
    names = [v.path for v in structure.gradients]
    assert [n.split("/")[-2] for n in names] == ["conv2", "conv2", "logits", "logits"]
    assert structure.state == []  # no moving statistics to average
    slots = [n for n in optimizer.named_variables if "momentum" in n]
    assert len(slots) == 4
    weights, _ = strategy.run(lambda: replicas.weights_and_state(model))
    assert len(weights) == 4


def test_a_saved_model_has_the_same_frozen_layers_in_plain_keras(tmp_path):
    model = build()
    freezing.freeze(model, PATTERNS)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    names = [v.path.split("/")[-2:] for v in loaded.trainable_variables]
    assert names == [v.path.split("/")[-2:] for v in model.trainable_variables]
    assert len(names) == 4
    # Of a model within a model Keras saves the flags of its layers, not its own.
    for name in ("norm2", "conv2", "logits"):
        assert loaded.get_layer(name).trainable == model.get_layer(name).trainable
    inner = loaded.get_layer("backbone").layers
    assert [layer.trainable for layer in inner] == [False] * len(inner)


@pytest.mark.parametrize(
    ("patterns", "trained"),
    [
        (["conv2"], "conv1 conv1 norm1 norm1 norm2 norm2 logits logits"),
        (["*conv?"], "norm1 norm1 norm2 norm2 logits logits"),
        (["conv?"], "conv1 conv1 norm1 norm1 norm2 norm2 logits logits"),
        (["backbone/norm1", "log*"], "conv1 conv1 conv2 conv2 norm2 norm2"),
        (["backbone/*"], "conv2 conv2 norm2 norm2 logits logits"),
        ([], "conv1 conv1 norm1 norm1 conv2 conv2 norm2 norm2 logits logits"),
    ],
)
def test_patterns_match_the_paths_of_layers(patterns, trained):
    model = build()
    freezing.freeze(model, patterns)
    found = [v.path.split("/")[-2] for v in model.trainable_variables]
    assert found == trained.split()


LAYERS = "backbone, backbone/conv1, backbone/norm1, conv2, norm2, logits"


@pytest.mark.parametrize(
    ("patterns", "says"),
    [
        (["conv2", "convv"], f"layers with weights, which are {LAYERS}: got 'convv'"),
        (["global*"], "layers with weights, which are .*: got 'global"),
        ([""], "got ''"),
        (["*"], f"freeze must leave weights to train: got '\\*', .* all of {LAYERS}"),
        (["backbone", "conv2", "norm2", "l*"], "must leave weights to train"),
    ],
)
def test_patterns_that_match_nothing_or_everything_are_refused(patterns, says):
    with pytest.raises(errors.InputError, match=says) as error:
        freezing.freeze(build(), patterns)
    assert "\n" not in str(error.value)


def test_how_much_is_frozen_is_told_in_variables_and_numbers():
    model = build()
    assert freezing.frozen_text(model) == ""
    freezing.freeze(model, PATTERNS)
    # conv1 3*3*4+4, norms 4*4 each; conv2 3*3*4*4+4, logits 4*10+10.
    assert freezing.frozen_text(model) == "10 of 14 variables, 72 of 270 numbers"
