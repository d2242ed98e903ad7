"""Every kind of state and loss of a model is trained as one device would train it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import build_optimizer, make_examples, make_strategy

from tfmirror import errors
from tfmirror.parallel import microbatches, model_state, segments, step, step_loop

layers, regularizers = keras.layers, keras.regularizers
SHAPE, BATCH, NUM_STEPS = (12, 12, 1), 12, 3


class Penalty(layers.Layer):
    """The identity; adds the mean square of its inputs to the loss."""

    def call(self, x):
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x


class Counter(layers.Layer):
    """The identity; counts its calls in a variable that it says is not trained."""

    def __init__(self, dtype_of_count, **options):
        super().__init__(**options)
        self.dtype_of_count = dtype_of_count

    def build(self, shape):
        self.count = self.add_weight(
            (), "zeros", dtype=self.dtype_of_count, trainable=False, name="count"
        )

    def call(self, x, training=False):
        if training:
            self.count.assign(self.count + 1)
        return x


class Constants(layers.Layer):
    """Adds a third of one, and keeps constants of several dtypes."""

    def build(self, shape):
        for dtype in ("int32", "bool", "float32"):
            weight = self.add_weight((3,), "ones", dtype=dtype, trainable=False)
            weight.assign(np.ones(3) / 3)
        self.third = weight

    def call(self, x):
        return x + self.third[0]


class GlobalNoise(layers.Layer):
    """Adds noise of Keras' global generator."""

    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x))


def build(*extra, frozen=False, **dense):
    """Returns a small model; `extra` makes layers after its convolution."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            layers.Conv2D(4, 3, activation="relu", trainable=not frozen, name="conv"),
            *[make() for make in extra],
            layers.GlobalAveragePooling2D(),
            layers.Dense(4, name="logits", **dense),
        ]
    )


class Pixels(layers.Layer):
    """Adds a vector for the brightness of each pixel, from a table of 8."""

    def build(self, shape):
        self.table = layers.Embedding(8, shape[-1], name="table")

    def call(self, x):
        brightness = keras.ops.cast(keras.ops.abs(x[..., 0]) * 8 % 8, "int32")
        return x + self.table(brightness)


MODELS = {
    "an embedding, whose gradient is sparse": lambda: build(Pixels),
    "a regularizer of a kernel": lambda: build(kernel_regularizer=regularizers.L2(0.5)),
    "a regularizer of activities": lambda: build(
        activity_regularizer=regularizers.L1(0.1)
    ),
    "add_loss": lambda: build(Penalty),
    "a frozen layer": lambda: build(frozen=True),
    "constants of any dtype": lambda: build(Constants),
    "a count of steps": lambda: build(lambda: Counter("float32")),
    "a frozen batch norm": lambda: build(
        lambda: layers.BatchNormalization(trainable=False)
    ),
}


def examples_of_classes():
    examples = make_examples(BATCH * NUM_STEPS, shape=SHAPE)
    np.mod(examples.labels, 4, out=examples.labels)
    return examples


def train(make_model, shares):
    """Returns the model after some steps of batches that are cut into 4."""
    strategy = make_strategy(len(shares))
    with strategy.scope():
        model = make_model()
    optimizer = build_optimizer(strategy, model, learning_rate=0.5, momentum=0.9)
    examples = examples_of_classes()
    (plan,) = microbatches.plan_epoch(len(examples), BATCH, shares, in_fixed_tree=True)
    (segment,) = segments.make_segments(
        strategy,
        examples,
        [plan],
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    )
    totals = segment.run(NUM_STEPS, step_loop.zero_totals())
    assert int(totals.num_steps) == NUM_STEPS
    return values(model)


def values(model):
    return [v.numpy() for v in model.variables]


def train_plainly(make_model):
    """Returns the model after the same steps of plain Keras, on whole batches."""
    model = make_model()
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    optimizer.build(model.trainable_variables)
    examples = examples_of_classes()
    for k in range(NUM_STEPS):
        part = slice(k * BATCH, (k + 1) * BATCH)
        with tf.GradientTape() as tape:
            logits = model(examples.images[part] / np.float32(255), training=True)
            loss = keras.losses.sparse_categorical_crossentropy(
                examples.labels[part], logits, from_logits=True
            )
            objective = tf.reduce_mean(loss) + sum(model.losses)
        weights = model.trainable_variables
        values_of_weights = [w.value for w in weights]
        optimizer.apply(tape.gradient(objective, values_of_weights), weights)
    return values(model)


@pytest.mark.parametrize("kind", MODELS)
def test_steps_are_those_of_plain_keras_and_the_same_bits_on_1_2_and_3(kind):
    expected = train_plainly(MODELS[kind])
    on_one = train(MODELS[kind], (4,))
    for value, right in zip(on_one, expected, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)
    for shares in ((1, 3), (2, 1, 1)):
        for value, same in zip(train(MODELS[kind], shares), on_one, strict=True):
            np.testing.assert_array_equal(value, same)


@pytest.mark.parametrize("num_microbatches", [3, 5, 6, 7])
def test_what_is_not_assigned_keeps_its_bits(num_microbatches):
    """A mean of 3 equal numbers is another number."""
    before = values(MODELS["a frozen layer"]())[:2]
    after = train(MODELS["a frozen layer"], (num_microbatches - 1, 1))[:2]
    for value, same in zip(after, before, strict=True):
        np.testing.assert_array_equal(value, same)


REFUSED = {
    "spectral norm": (
        lambda: build(lambda: layers.SpectralNormalization(layers.Conv2D(4, 3))),
        "kernel is trained, and its layer assigns it",
    ),
    "a whole number": (
        lambda: build(lambda: Counter("int32")),
        "count is int32, and its layer changes it",
    ),
    "the global generator": (
        lambda: build(GlobalNoise),
        "give each of them a keras.random.SeedGenerator",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_rule_fits_is_refused_by_name(kind):
    make_model, says = REFUSED[kind]
    with pytest.raises(errors.InputError, match=says):
        model_state.rules_of(make_model())


def test_rules_follow_what_is_frozen():
    model = build(layers.BatchNormalization, lambda: layers.Dropout(0.5))
    rules = model_state.rules_of(model)
    assert len(rules.averaged) == 2 and len(rules.seeds) == 1
    model.layers[1].trainable = False
    assert model_state.rules_of(model).averaged == ()


@pytest.mark.parametrize("when", ["before a step", "before its trace"])
@pytest.mark.parametrize("is_frozen", [True, False])
def test_what_is_trained_can_not_change_when_the_optimizer_is_made(is_frozen, when):
    strategy = make_strategy(2)
    with strategy.scope():
        model = build(frozen=not is_frozen)
    optimizer = build_optimizer(strategy, model)
    plan = microbatches.BatchPlan(0, 1, (2, 2), (1, 1))

    def change():
        model.get_layer("conv").trainable = not is_frozen

    def make(plan):
        return step.make_train_steps(strategy, model, optimizer, plan)

    def take(steps):
        examples = make_examples(4, shape=SHAPE)
        np.mod(examples.labels, 4, out=examples.labels)
        (segment,) = segments.make_segments(
            strategy, examples, [plan], lambda plan: steps
        )
        segment.run(1, step_loop.zero_totals())

    says = "frozen or unfrozen since then: .*conv/bias, .*conv/kernel; set layer.train"
    if when == "before its trace":
        steps = make(plan)
        change()
        # TensorFlow wraps what is raised while it traces.
        with pytest.raises(Exception, match=says):
            take(steps)
    else:
        take(make(plan))
        change()
        with pytest.raises(errors.InputError, match=says):
            make(plan)
