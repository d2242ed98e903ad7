"""Every setting has its effect, all the way from its flag to a step or a file.

A test says with `effect_of` which settings it is the test of. Each gives them values
that are not the defaults, and fails when they are ignored. The models are tiny: softmax
regression, whose steps NumPy can take, and the same with batch norm.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib

import image_files
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    NUM_CLASSES,
    linear_reference,
    make_examples,
    replica_copies,
    write_idx_folder,
)

from tfmirror import config, errors, files, flags, hardware, models
from tfmirror.data import augmentation, datasets, pipeline, streaming
from tfmirror.diagnostics import drift
from tfmirror.parallel import step, step_loop
from tfmirror.rundir import checkpoints
from tfmirror.training import run, setup, watchdog

# Two replicas; one batch an epoch, of all examples, unless a flag says otherwise.
NUM_EXAMPLES, RATE, EPOCHS = 12, 0.5, 4
BASE = (
    "--gpus=2",
    "--device_type=cpu",
    f"--limit_train_examples={NUM_EXAMPLES}",
    f"--global_batch_size={NUM_EXAMPLES}",
    "--limit_eval_examples=7",
    f"--learning_rate={RATE}",
    f"--epochs={EPOCHS}",
)
pytestmark = pytest.mark.training

FIELDS = {field.name: field for field in dataclasses.fields(config.TrainConfig)}

TESTS = {}  # setting -> the tests here of its effect


def effect_of(*names):
    """Marks a test as one that fails when any of these settings is ignored."""

    def mark(test):
        for name in names:
            TESTS.setdefault(name, []).append(test.__name__)
        return test

    return mark


def test_every_setting_has_a_test_of_its_effect():
    assert set(FIELDS) - set(TESTS) == set(), "settings without a test in this file"


def test_every_name_here_is_that_of_a_setting():
    assert set(TESTS) - set(FIELDS) == set(), "tests of settings that are gone"


def build_linear(input_shape, num_classes, initializer):
    """Returns softmax regression without bias."""
    kernel = {"kernel_initializer": initializer(), "use_bias": False}
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(num_classes, name="logits", **kernel),
        ],
        name="linear",
    )


def build_normalized(input_shape, num_classes, initializer):
    """Returns softmax regression of pixels that batch norm has normalized."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.BatchNormalization(momentum=0.5, name="norm"),
            layers.Dense(num_classes, kernel_initializer=initializer(), name="logits"),
        ],
        name="normalized",
    )


@pytest.fixture(autouse=True, scope="module")
def tiny_models():
    """Puts the tiny models in the place of the real ones; TensorFlow stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.BUILDERS, "cnn", build_linear)
        patch.setitem(models.BUILDERS, "resnet18", build_normalized)
        patch.setattr(
            tf.config.experimental,
            "enable_op_determinism",
            lambda: pytest.fail("deterministic was not asked for"),
        )
        yield


def parse(*arguments):
    """Returns the checked settings of a command line."""
    settings = flags.parse(arguments, config.TrainConfig)
    config.check(settings)
    return settings


def build(*arguments):
    """Returns what BASE and these arguments make: built, and not traced."""
    chosen, settings = setup.choose(parse(*BASE, *arguments))
    built = setup.prepare(settings, chosen)
    assert built.strategy.num_replicas_in_sync >= 2
    return built


def take_steps(num_steps, *arguments):
    """Takes steps of a model; returns (its kernel before, what was built)."""
    built = build(*arguments)
    before = kernel_of(built)
    built.train_segments[0].run(num_steps, step_loop.zero_totals())
    return before, built


def kernel_of(built):
    """Returns the kernel of the logits, float64."""
    return built.model.get_layer("logits").kernel.numpy().astype(np.float64)


def first_batch(built):
    """Returns Examples: the first global batch, in its order."""
    plan, seed = built.train_plans[0], built.settings.seed
    return datasets.Examples(
        *pipeline.global_batch(
            built.dataset.train,
            first=plan.first,
            global_batch_size=plan.global_batch_size,
            epoch=0,
            batch=0,
            shuffle_seed=seed,
        )
    )


def next_parts(built):
    """Returns the Examples that each replica is given next."""
    images, labels = next(built.train_segments[0].iterator)
    local = built.strategy.experimental_local_results
    return [
        datasets.Examples(x.numpy(), y.numpy())
        for x, y in zip(local(images), local(labels), strict=True)
    ]


def sizes_of(parts):
    return [len(part) for part in parts]


def descend(weights, examples, rates, momentum=0.0, decay=0.0, clip=math.inf):
    """Returns the weights after a step at each of `rates`, in NumPy and float64."""
    velocity = 0.0
    for rate in rates:
        gradient = linear_reference(weights, examples)[2] / len(examples)
        gradient *= min(1, clip / np.linalg.norm(gradient))
        velocity = momentum * velocity - rate * gradient
        weights = weights - rate * decay * weights + velocity
    return weights


# Setting -> (flags, what NumPy takes three steps with).
COSINE = [RATE * (1 + math.cos(math.pi * t / EPOCHS)) / 2 for t in range(3)]
DESCENTS = {
    "learning_rate": (["--learning_rate=0.25"], {"rates": [0.25] * 3}),
    "momentum": (["--momentum=0.9"], {"momentum": 0.9}),
    "weight_decay": (["--weight_decay=0.1"], {"decay": 0.1}),
    "clip_norm": (["--clip_norm=0.1"], {"clip": 0.1}),
    "schedule": (["--schedule=cosine"], {"rates": COSINE}),
    "warmup_epochs": (["--warmup_epochs=2"], {"rates": [0, RATE / 2, RATE]}),
    # The recipe's rate is for 64 examples.
    "lr_scaling": (["--lr_scaling=linear"], {"rates": [RATE * 12 / 64] * 3}),
}


@effect_of(*DESCENTS)
@pytest.mark.parametrize("name", DESCENTS)
def test_three_steps_are_those_that_numpy_takes(name):
    arguments, how = DESCENTS[name]
    before, built = take_steps(3, *arguments)
    plain = descend(before, built.dataset.train, [RATE] * 3)
    expected = descend(before, built.dataset.train, **{"rates": [RATE] * 3} | how)
    assert np.abs(expected - plain).max() > 1e-3  # it makes a difference
    np.testing.assert_allclose(kernel_of(built), expected, rtol=1e-4, atol=1e-6)


def rates_of(built, num_steps):
    """Returns the optimizer's learning rate at each of the first steps."""
    rates, optimizer = [], built.optimizer.keras_optimizer
    for k in range(num_steps):
        optimizer.iterations.assign(k)
        rates.append(float(tf.convert_to_tensor(optimizer.learning_rate)))
    return rates


@effect_of("schedule", "epochs", "lr_scaling")
def test_one_cycle_goes_up_for_three_of_ten_steps_and_then_down():
    """From 1/25 of the peak, to 1/10000 of that; with the root of the batch's size."""
    arguments = ("--schedule=one_cycle", "--epochs=10", "--lr_scaling=sqrt")
    rates = rates_of(build(*arguments), 10)
    peak = RATE * math.sqrt(12 / 64)
    up = [peak * (1 / 25 + (1 - 1 / 25) * t / 3) for t in range(3)]
    end = 1 / 250_000
    half_cosine = [(1 + math.cos(math.pi * t / 7)) / 2 for t in range(7)]
    down = [peak * (end + (1 - end) * share) for share in half_cosine]
    np.testing.assert_allclose(rates, up + down, rtol=1e-5)


@effect_of("optimizer")
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("adam", keras.optimizers.Adam), ("adamw", keras.optimizers.AdamW)],
)
def test_the_optimizer_is_the_one_asked_for(name, optimizer):
    """Its first step is lr g / (|g| + eps / sqrt(0.001)), eps being 1e-7."""
    before, built = take_steps(1, f"--optimizer={name}", "--learning_rate=0.01")
    assert type(built.optimizer.keras_optimizer) is optimizer
    gradient = linear_reference(before, built.dataset.train)[2] / NUM_EXAMPLES
    expected = -0.01 * gradient / (np.abs(gradient) + 1e-7 / np.sqrt(0.001))
    np.testing.assert_allclose(kernel_of(built) - before, expected, rtol=0, atol=2e-5)


@effect_of("ema_decay")
def test_the_average_of_the_weights_is_what_is_evaluated_and_kept():
    """With 0.2 the decay is 2/11 in the first step, and 0.2 in the second."""
    before, built = take_steps(2, "--ema_decay=0.2")
    average = weights = before
    for decay in (2 / 11, 0.2):
        weights = descend(weights, built.dataset.train, [RATE])
        average = decay * average + (1 - decay) * weights
    totals = step_loop.zero_totals()
    for segment in built.eval_segments:
        totals = segment.run(segment.num_steps, totals)
    loss_sum, _, _ = linear_reference(average, built.dataset.eval)
    np.testing.assert_allclose(totals.loss_sum, loss_sum, rtol=1e-5)
    built.optimizer.finish()
    np.testing.assert_allclose(kernel_of(built), average, rtol=1e-4, atol=1e-6)


@effect_of("precision")
@pytest.mark.parametrize(
    ("precision", "epsilon"), [("bfloat16", 2**-8), ("float16", 2**-11)]
)
def test_layers_compute_in_the_precision_and_the_loss_of_float16_is_scaled(
    precision, epsilon
):
    built = build(f"--precision={precision}")
    assert {layer.compute_dtype for layer in built.model.layers} == {precision}
    assert {v.dtype for v in built.model.variables} == {"float32"}
    assert built.optimizer.scales_loss == (precision == "float16")
    before = kernel_of(built)
    built.train_segments[0].run(4, step_loop.zero_totals())
    num_taken = int(built.optimizer.keras_optimizer.iterations.numpy())
    assert num_taken >= 1  # the others overflowed, each of which halves the scale
    if precision == "float16":
        assert built.optimizer.loss_scaler.scale.numpy() == 2.0 ** (
            15 - (4 - num_taken)
        )
    exact = descend(before, built.dataset.train, [RATE] * num_taken)
    error = np.abs(kernel_of(built) - exact).max() / np.abs(exact - before).max()
    assert epsilon / 100 < error < 10 * epsilon  # float32 has 2**-24


@effect_of("init")
@pytest.mark.parametrize(
    ("init", "deviation", "largest"),
    [
        ("normal", 0.01, 0.06),
        # He et al.: sqrt(2 / inputs), of a normal distribution cut at two of its own
        # deviations, which are larger by 1 / 0.8796.
        ("he", math.sqrt(2 / 784), 2 * math.sqrt(2 / 784) / 0.8796),
    ],
)
def test_kernels_are_drawn_as_asked_for(init, deviation, largest):
    kernel = kernel_of(build(f"--init={init}"))
    assert kernel.shape == (784, NUM_CLASSES)
    assert kernel.std() == pytest.approx(deviation, rel=0.03)  # of 7,840 numbers
    assert 0.6 * largest < np.abs(kernel).max() <= largest * 1.001
    if init != "normal":  # a tail has no largest number
        assert np.abs(kernel).max() > 0.97 * largest


@effect_of("model")
def test_the_model_is_the_one_asked_for_with_its_recipe():
    chosen, settings = setup.choose(parse("--model=resnet18", *BASE[:3]))
    built = setup.prepare(settings, chosen)
    assert built.model.name == "normalized"
    # 0.1 for 256 examples: 512 on two replicas.
    assert rates_of(built, 1) == [pytest.approx(0.2)]


@effect_of("seed")
def test_weights_and_order_are_those_of_the_seed():
    built = build("--seed=7")
    keras.utils.set_random_seed(7)
    expected = models.build("cnn", (28, 28, 1), NUM_CLASSES)
    np.testing.assert_array_equal(kernel_of(built), expected.get_weights()[0])
    order = pipeline.order(
        tf.range(12, dtype=tf.int64),
        shuffle_seed=7,
        epoch=tf.constant(0, tf.int64),
        num_examples=12,
    ).numpy()
    labels = np.concatenate([part.labels for part in next_parts(built)])
    np.testing.assert_array_equal(labels, built.dataset.train.labels[order])
    assert (order != np.arange(12)).any()


@effect_of("augment", "seed")
@pytest.mark.parametrize(
    ("argument", "kind"),
    [("--augment", "crop"), ("--augment=resized_crop", "resized_crop")],
)
def test_a_step_takes_the_gradient_of_augmented_images(argument, kind):
    """Replica r draws from (seed, r) in the first step."""
    before, built = take_steps(1, argument, "--seed=3")
    batch = first_batch(built)
    augment = augmentation.make_augment(flips=False, seed=3, kind=kind)
    halves = [augment(batch.images[6 * r : 6 * r + 6], r).numpy() for r in (0, 1)]
    augmented = datasets.Examples(np.concatenate(halves), batch.labels)
    expected = descend(before, augmented, [RATE])
    assert np.abs(expected - descend(before, batch, [RATE])).max() > 1e-3
    np.testing.assert_allclose(kernel_of(built), expected, rtol=1e-4, atol=1e-6)


def write_weights(folder, build_model):
    """Returns (path of a .keras file, {name of a layer: its arrays}), drawn anew."""
    model = build_model((28, 28, 1), NUM_CLASSES, keras.initializers.GlorotUniform)
    rng = np.random.default_rng(5)
    for variable in model.variables:
        variable.assign(rng.uniform(0.1, 0.2, variable.shape))
    model.save(folder / "given.keras")
    return folder / "given.keras", {x.name: x.get_weights() for x in model.layers}


def layer_copies(built, name):
    """Returns the copies [N, ...] of each weight of a layer."""
    (layer,) = (x for x in built.model.layers if x.name == name)
    return [replica_copies(built.strategy, weight) for weight in layer.weights]


def assert_all_copies_are(built, name, expected):
    for copies, value in zip(layer_copies(built, name), expected, strict=True):
        assert len(copies) == 2
        for copy in copies:
            np.testing.assert_array_equal(copy, value)


@effect_of("initial_weights")
def test_a_run_starts_with_the_weights_that_it_is_given(tmp_path):
    path, given = write_weights(tmp_path, build_linear)
    before, built = take_steps(1, f"--initial_weights={path}")
    np.testing.assert_array_equal(before, given["logits"][0])
    expected = descend(before, built.dataset.train, [RATE])
    np.testing.assert_allclose(kernel_of(built), expected, rtol=1e-4, atol=1e-6)


@effect_of("new_head")
def test_a_new_head_has_the_weights_of_the_seed_and_the_rest_is_taken(tmp_path):
    path, given = write_weights(tmp_path, build_normalized)
    new = build("--model=resnet18")
    arguments = ("--model=resnet18", f"--initial_weights={path}", "--new_head")
    built = build(*arguments)
    assert_all_copies_are(built, "norm", given["norm"])
    drawn = [copies[0] for copies in layer_copies(new, "logits")]
    assert np.abs(drawn[0] - given["logits"][0]).max() > 0.05
    assert_all_copies_are(built, "logits", drawn)


@effect_of("freeze")
def test_a_frozen_layer_keeps_its_bits_and_the_others_learn():
    _, built = take_steps(0, "--model=resnet18", "--freeze=nor*", "--momentum=0.9")
    before = {name: layer_copies(built, name) for name in ("norm", "logits")}
    built.train_segments[0].run(2, step_loop.zero_totals())
    assert_all_copies_are(built, "norm", [copies[0] for copies in before["norm"]])
    kernel = layer_copies(built, "logits")[0]
    assert np.abs(kernel - before["logits"][0]).max() > 1e-3
    # Momentum is kept for the kernel and the bias of the logits alone.
    assert len([name for name in built.variables if "momentum" in name]) == 2


@effect_of("label_smoothing")
def test_smoothing_mixes_the_loss_of_all_classes_into_the_loss_of_training():
    """And into its gradient, p - targets; the evaluation has the plain loss."""
    built = build("--label_smoothing=0.1")
    batch, before = first_batch(built), kernel_of(built)
    pixels = batch.images.reshape(NUM_EXAMPLES, -1) / 255
    logits = pixels @ before
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    targets = 0.9 * np.eye(NUM_CLASSES)[batch.labels] + 0.1 / NUM_CLASSES
    totals = step_loop.zero_totals()
    for segment in built.eval_segments:
        totals = segment.run(segment.num_steps, totals)
    plain, _, _ = linear_reference(before, built.dataset.eval)
    np.testing.assert_allclose(totals.loss_sum, plain, rtol=1e-5)
    totals = built.train_segments[0].run(1, step_loop.zero_totals())
    np.testing.assert_allclose(totals.loss_sum, -(targets * log_p).sum(), rtol=1e-5)
    expected = before - RATE * pixels.T @ (np.exp(log_p) - targets) / NUM_EXAMPLES
    assert np.abs(expected - descend(before, batch, [RATE])).max() > 1e-3
    np.testing.assert_allclose(kernel_of(built), expected, rtol=1e-4, atol=1e-6)


@effect_of("label_smoothing")
def test_a_loss_that_only_smoothing_makes_infinite_is_found(tmp_path):
    """Class 0 is the label of no example, and as good as impossible everywhere."""
    examples = make_examples(80)
    examples = datasets.Examples(examples.images, np.maximum(examples.labels, 1))
    folder = write_idx_folder(tmp_path / "own", examples, examples)
    own = ("--dataset=own", f"--data_dir={folder}", "--limit_train_examples=80")
    built = build(*own, "--global_batch_size=80", "--label_smoothing=0.9")
    most = (examples.images / 255.0).sum(axis=(1, 2, 3)).max()
    kernel = np.zeros((784, NUM_CLASSES))
    kernel[:, 0] = -3e38 / most
    built.model.get_layer("logits").kernel.assign(kernel)
    assert np.isfinite(linear_reference(kernel, examples)[0])
    totals = built.train_segments[0].run(1, step_loop.zero_totals())
    assert int(totals.num_steps) == 0
    found = built.find_non_finite(0, 0)
    assert [finding.is_loss_finite for finding in found] == [False, False]


def moving_variance(parts):
    """Returns batch norm's: 0.5 of the 1 before, and 0.5 of the mean of the parts'."""
    pixels = [part.reshape(len(part), -1) / 255.0 for part in parts]
    return 0.5 + 0.5 * np.mean([x.var(axis=0) for x in pixels], axis=0)


def assert_variance_is_the_mean_of(parts, built):
    """Asserts that every replica has the `moving_variance` of these parts."""
    (layer,) = (x for x in built.model.layers if x.name == "norm")
    for copy in replica_copies(built.strategy, layer.moving_variance):
        np.testing.assert_allclose(copy, moving_variance(parts), rtol=1e-5)


@effect_of("batch_norm")
def test_batch_norm_takes_the_moments_of_the_global_batch():
    _, built = take_steps(1, "--model=resnet18", "--batch_norm=sync")
    images = first_batch(built).images
    assert_variance_is_the_mean_of([images], built)
    apart = moving_variance(np.split(images, 2))
    assert np.abs(moving_variance([images]) - apart).max() > 1e-2


@effect_of("microbatches")
def test_a_step_takes_so_many_microbatches_whatever_the_replicas():
    _, built = take_steps(1, "--model=resnet18", "--microbatches=4")
    quarters = np.split(first_batch(built).images, 4)
    assert_variance_is_the_mean_of(quarters, built)


@effect_of("microbatches_per_replica")
def test_replicas_take_the_microbatches_that_they_are_given():
    arguments = ("--model=resnet18", "--microbatches_per_replica=3,1")
    _, built = take_steps(1, *arguments)
    assert_variance_is_the_mean_of(np.split(first_batch(built).images, 4), built)
    assert sizes_of(next_parts(built)) == [9, 3]


@effect_of("gpus")
def test_there_are_so_many_replicas():
    _, built = take_steps(1, "--gpus=3")
    copies = replica_copies(built.strategy, built.model.get_layer("logits").kernel)
    assert len(copies) == 3 and (copies == copies[0]).all()
    assert sizes_of(next_parts(built)) == [4, 4, 4]
    assert built.devices.names == ("CPU:0", "CPU:1", "CPU:2")


@effect_of("global_batch_size")
def test_a_global_batch_has_so_many_examples():
    built = build("--global_batch_size=5", "--limit_train_examples=10")
    assert sizes_of(next_parts(built)) == [3, 2]
    (segment,) = built.train_segments
    assert (segment.num_steps, segment.global_batch_size) == (2, 5)


@effect_of("per_replica_batch_size")
def test_each_replica_gets_so_many_examples():
    arguments = [a for a in BASE if "batch_size" not in a]
    chosen, settings = setup.choose(parse(*arguments, "--per_replica_batch_size=3"))
    built = setup.prepare(settings, chosen)
    assert sizes_of(next_parts(built)) == [3, 3]


@effect_of("device_type")
@pytest.mark.parametrize(
    ("device_type", "expected"),
    [("auto", ("GPU:0", "GPU:1")), ("cpu", ("CPU:0", "CPU:1"))],
)
def test_cpus_are_taken_where_there_are_gpus_if_asked_for(
    monkeypatch, device_type, expected
):
    real = tf.config.list_physical_devices

    def with_two_gpus(kind=None):
        return ["gpu"] * 2 if kind == "GPU" else real(kind)

    monkeypatch.setattr(tf.config, "list_physical_devices", with_two_gpus)
    chosen, _ = setup.choose(parse("--gpus=2", f"--device_type={device_type}"))
    assert chosen.names == expected


@effect_of("intra_op_threads", "inter_op_threads")
def test_threads_are_those_asked_for_before_tensorflow_starts(monkeypatch):
    calls = []
    for kind in ("intra", "inter"):
        name = f"{kind}_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, f"get_{name}", lambda: 0)
        monkeypatch.setattr(
            tf.config.threading,
            f"set_{name}",
            lambda number, kind=kind: calls.append((kind, number)),
        )
    monkeypatch.setattr(hardware, "num_cores", lambda: 1)  # else: one, on two replicas
    make = tf.config.set_logical_device_configuration

    def make_and_note(*args):
        calls.append("devices")
        return make(*args)

    monkeypatch.setattr(tf.config, "set_logical_device_configuration", make_and_note)
    settings = parse(*BASE, "--intra_op_threads=3", "--inter_op_threads=2")
    setup.choose(settings)
    assert calls == ["devices", ("intra", 3), ("inter", 2)]


@effect_of("all_reduce")
def test_the_strategy_adds_as_asked_for():
    """GPUs alone have it: the logical CPU devices are said to stand in for none."""
    chosen, settings = setup.choose(parse(*BASE, "--all_reduce=hierarchical"))
    built = setup.prepare(settings, dataclasses.replace(chosen, are_stand_ins=False))
    operations = built.strategy.extended._cross_device_ops
    assert type(operations) is tf.distribute.HierarchicalCopyAllReduce


@effect_of("pack_mb")
@pytest.mark.parametrize(
    ("arguments", "message_sizes"),
    [
        # The loss and how many are right, but not the kernel's gradient: 31,360 bytes.
        (["--pack_mb=0.001"], [2, 7840]),
        (["--pack_mb=1"], [7842]),
    ],
)
def test_what_replicas_found_travels_in_packs(monkeypatch, arguments, message_sizes):
    messages = []
    reduction = tf.distribute.ReductionToOneDevice
    batch_reduce = reduction.batch_reduce

    def note_and_reduce(self, op, pairs, *args, **kwargs):
        local = [value.values[0] for value, _ in pairs]
        messages.extend(tensor.shape.num_elements() for tensor in local)
        return batch_reduce(self, op, pairs, *args, **kwargs)

    monkeypatch.setattr(reduction, "batch_reduce", note_and_reduce)
    before, built = take_steps(1, *arguments)
    assert messages == message_sizes
    expected = descend(before, built.dataset.train, [RATE])
    np.testing.assert_allclose(kernel_of(built), expected, rtol=1e-4, atol=1e-6)


@effect_of("limit_train_examples", "limit_eval_examples")
def test_only_the_first_examples_are_used():
    built = build("--limit_train_examples=10", "--limit_eval_examples=9")
    whole = datasets.load_digits()
    (segment,) = built.train_segments  # one batch, of fewer than there could be
    assert segment.global_batch_size == 10 and segment.num_steps == 1
    images = np.concatenate([part.images for part in next_parts(built)])
    expected = whole.train.images[:10]
    assert sorted(x.tobytes() for x in images) == sorted(x.tobytes() for x in expected)
    totals = step_loop.zero_totals()
    for segment in built.eval_segments:
        totals = segment.run(segment.num_steps, totals)
    first = datasets.Examples(whole.eval.images[:9], whole.eval.labels[:9])
    loss_sum, num_correct, _ = linear_reference(kernel_of(built), first)
    np.testing.assert_allclose(totals.loss_sum, loss_sum, rtol=1e-5)
    assert int(totals.num_correct) == num_correct


@effect_of("dataset")
def test_the_data_are_those_of_the_name():
    """Each synthetic image is the pattern of its class, and as much noise."""
    built = build("--dataset=synthetic")
    parts = next_parts(built)
    images = np.concatenate([part.images for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    patterns = np.random.RandomState(0).randint(0, 128, (NUM_CLASSES, 28, 28, 1))
    noise = images.astype(int) - patterns[labels]
    assert noise.min() >= 0 and noise.max() < 128


@effect_of("data_dir", "dataset")
def test_the_data_are_those_in_the_folder(tmp_path):
    train, evaluation = make_examples(12, seed=1), make_examples(7, seed=2)
    folder = write_idx_folder(tmp_path / "own", train, evaluation)
    built = build("--dataset=own", f"--data_dir={folder}")
    images = np.concatenate([part.images for part in next_parts(built)])
    assert sorted(x.tobytes() for x in images) == sorted(
        x.tobytes() for x in train.images
    )


def folder_of_stripes(folder):
    """Writes 40 images of two classes in colour, 30 x 20 pixels; returns the folder."""
    image_files.write_folder(folder, 40, sides=(20, 30))
    return f"--data_dir={folder}"


def images_of(built):
    return np.concatenate([part.images for part in next_parts(built)])


@effect_of("dataset", "data_dir", "image_size", "channels", "eval_fraction")
def test_images_of_a_folder_are_resized_converted_and_shared_out(tmp_path):
    data = folder_of_stripes(tmp_path / "images")
    shares = {}
    for fraction in (0.2, 0.5):
        built = build(
            "--dataset=folder", data, "--image_size=16x24", "--channels=1",
            f"--eval_fraction={fraction}", "--limit_train_examples=0",
            "--limit_eval_examples=0",
        )  # fmt: skip
        assert images_of(built).shape == (12, 16, 24, 1)
        shares[fraction] = {len(built.dataset.train), len(built.dataset.eval)}
        assert sum(shares[fraction]) == 40
        assert len(built.dataset.eval) / 40 == pytest.approx(fraction, abs=0.2)
    assert shares[0.2] != shares[0.5]
    folder = ("--dataset=folder", data, "--image_size=16x24", "--eval_fraction=0.5")
    assert images_of(build(*folder)).shape == (12, 16, 24, 3)


@effect_of("data_in_memory")
@pytest.mark.parametrize(
    ("value", "kind"),
    [("yes", datasets.Examples), ("no", streaming.StreamedExamples)],
)
def test_images_of_a_folder_are_held_or_read(tmp_path, value, kind):
    arguments = ("--dataset=folder", folder_of_stripes(tmp_path / "images"))
    arguments += ("--image_size=16x24", "--eval_fraction=0.5")
    built = build(*arguments, f"--data_in_memory={value}")
    assert type(built.dataset.train) is kind


# Runs: what is called and written, in its order.


@contextlib.contextmanager
def noting_files(events):
    """Notes ("fsync", path, bytes) and ("replace", from, to, bytes) in `events`."""
    fsync = os.fsync

    def noting_fsync(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        events.append(("fsync", path, os.fstat(descriptor).st_size))
        fsync(descriptor)

    def noting(move):
        def note_and_move(source, target, **kwargs):
            size = os.path.getsize(source)
            events.append(("replace", str(source), str(target), size))
            move(source, target, **kwargs)

        return note_and_move

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", noting_fsync)
        for name in ("replace", "rename"):
            patch.setattr(os, name, noting(getattr(os, name)))
        yield


@contextlib.contextmanager
def noting_calls(events):
    """Notes what a run calls in `events`; TensorFlow stays as it is afterwards."""
    make_train_steps, make_check = step.make_train_steps, drift.make_check

    def make_noted_steps(*args, **kwargs):
        steps = make_train_steps(*args, **kwargs)

        compiled = steps.compiled

        def noted(iterator, num_steps, totals):
            events.append(("train", int(num_steps)))
            return compiled(iterator, num_steps, totals)

        steps.compiled = noted
        return steps

    def make_noted_check(*args):
        check = make_check(*args)

        def noted():
            events.append(("check of drift",))
            return check()

        return noted

    class NotedWatchdog(watchdog.Watchdog):
        def __init__(self, seconds, describe):
            events.append(("watchdog", seconds, list(describe())))
            super().__init__(seconds, describe)

        @contextlib.contextmanager
        def guard(self, num_finished):
            before = num_finished()
            events.append(("guard",))
            with super().guard(num_finished):
                yield
            events.append(("end of guard", num_finished() - before))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tf.config.experimental,
            "enable_op_determinism",
            lambda: events.append(("deterministic",)),
        )
        patch.setattr(step, "make_train_steps", make_noted_steps)
        patch.setattr(drift, "make_check", make_noted_check)
        patch.setattr(watchdog, "Watchdog", NotedWatchdog)
        yield


# Three epochs of eight batches of six.
RUN = (
    *BASE[:2],
    "--limit_train_examples=48",
    "--limit_eval_examples=6",
    "--global_batch_size=6",
    "--learning_rate=0.05",
    "--epochs=3",
    "--deterministic",
    "--steps_per_loop=3",
    "--check_drift_every=12",
    "--checkpoint_every=4steps",
    "--keep=2",
    "--step_timeout=77",
)


def train(*arguments):
    """Trains as RUN and these arguments say; returns (summary, what was noted)."""
    events = []
    with noting_calls(events), noting_files(events):
        summary = run.train(parse(*RUN, *arguments))
    return summary, events


def named(events, *names):
    return [event for event in events if event[0] in names]


def steps_called(events):
    """Returns how many steps each call took, without the one that only traces."""
    return [event[1] for event in named(events, "train") if event[1]]


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    """(run directory, summary, what was noted) of one run."""
    folder = tmp_path_factory.mktemp("noted") / "run"
    return folder, *train(f"--workdir={folder}")


@effect_of("workdir")
def test_the_files_are_in_the_folder_asked_for(noted):
    folder, summary, _ = noted
    assert summary["workdir"] == str(folder)
    written = json.loads((folder / "config.json").read_text())
    assert written["workdir"] == str(folder)
    assert (folder / "summary.json").exists()


@effect_of("epochs")
def test_a_run_has_so_many_epochs(noted):
    _, summary, events = noted
    assert [record["epoch"] for record in summary["epochs"]] == [1, 2, 3]
    assert sum(steps_called(events)) == 3 * 8


@effect_of("steps_per_loop")
def test_a_call_takes_so_many_steps_unless_something_is_due(noted):
    """A checkpoint is due after every four."""
    assert steps_called(noted[2]) == [3, 1] * 6


@effect_of("deterministic")
def test_tensorflow_is_made_deterministic_before_steps_are_traced(noted):
    first = named(noted[2], "deterministic", "train")[:3]
    assert first == [("deterministic",), ("train", 0), ("train", 3)]


@effect_of("step_timeout")
def test_the_watchdog_guards_every_call_of_training_steps(noted):
    events = named(noted[2], "watchdog", "guard", "train", "end of guard")
    assert events[:3] == [
        ("train", 0),  # traces
        (
            "watchdog",
            77.0,
            [f"replica {r} on CPU:{r}: 0 steps taken" for r in (0, 1)],
        ),
        ("guard",),
    ]
    assert {event[1] for event in named(events, "watchdog")} == {77.0}
    for before, call, after in zip(events[1:], events[2:], events[3:], strict=False):
        if call[0] == "train":
            num_steps = call[1]
            assert (before, after) == (
                ("guard",),
                ("end of guard", num_steps),
            )


@effect_of("check_drift_every")
def test_drift_is_looked_for_after_so_many_steps(noted):
    steps, checked_after = 0, []
    for event in named(noted[2], "train", "check of drift"):
        if event[0] == "train":
            steps += event[1]
        else:
            checked_after.append(steps)
    assert checked_after == [12, 24]


@effect_of("checkpoint_every")
def test_checkpoints_are_written_after_so_many_steps(noted):
    written = [pathlib.Path(e[2]).name for e in named(noted[2], "replace")]
    expected = [f"step-{k:09}.npz" for k in range(4, 25, 4)]
    assert sorted({n for n in written if n.startswith("step-")}) == expected


@effect_of("keep")
def test_so_many_of_the_last_checkpoints_are_kept(noted):
    found = {path.name for path in (noted[0] / "checkpoints").iterdir()}
    assert found == {"best.npz", "step-000000020.npz", "step-000000024.npz"}


def assert_is_on_the_disk(events, k):
    """Asserts that a file is put on the disk before its name, and then that is.

    Args:
      k: position in `events` of the file's ("replace", ...).
    """
    _, source, target, size = events[k]
    assert ("fsync", source, size) in events[:k], f"{source} isn't on the disk"
    names = itertools.takewhile(lambda event: event[0] != "replace", events[k + 1 :])
    folders = [path for kind, path, _ in named(names, "fsync")]
    assert os.path.dirname(target) in folders, f"the name {target} isn't on the disk"


def test_checkpoints_are_on_the_disk_before_they_have_their_names(noted):
    events = named(noted[2], "fsync", "replace")
    moved = [
        k
        for k, event in enumerate(events)
        if event[0] == "replace" and checkpoints.NAME.fullmatch(event[2][-18:])
    ]
    assert len(moved) >= 6
    for k in moved:
        assert_is_on_the_disk(events, k)


def test_a_file_written_whole_is_on_the_disk_before_it_has_its_name(tmp_path):
    events = []
    with noting_files(events):
        files.write_bytes(tmp_path / "file", b"content")
    (k,) = (k for k, event in enumerate(events) if event[0] == "replace")
    assert events[k][1:] == (
        str(tmp_path / "file.unfinished"), str(tmp_path / "file"), 7,
    )  # fmt: skip
    assert_is_on_the_disk(events, k)


@effect_of("on_drift")
def test_a_replica_that_drifted_is_resynced(tmp_path, monkeypatch, capsys):
    make_check, spoiled = drift.make_check, []

    def make_spoiling_check(strategy, variables):
        check = make_check(strategy, variables)

        def spoil_and_check():
            variable = variables["linear/logits/kernel"]
            copy = strategy.experimental_local_results(variable.value)[1]
            copy.assign(copy + 1)
            spoiled.append((strategy, variable))
            return check()

        return spoil_and_check

    monkeypatch.setattr(drift, "make_check", make_spoiling_check)
    summary = run.train(
        parse(
            *BASE,
            "--epochs=2",
            "--check_drift_every=2",
            "--on_drift=resync",
            f"--workdir={tmp_path / 'run'}",
        )
    )
    assert "resynced from replica 0" in capsys.readouterr().out
    assert len(summary["epochs"]) == 2
    ((strategy, variable),) = spoiled
    copies = replica_copies(strategy, variable)
    assert len(copies) == 2 and (copies[0] == copies[1]).all()


@effect_of("resume")
def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits(noted, tmp_path):
    folder, whole, _ = noted
    path = folder / "checkpoints" / "step-000000020.npz"
    summary, events = train(f"--resume={path}", f"--workdir={tmp_path / 'run'}")
    assert sum(steps_called(events)) == 24 - 20
    assert summary["weights_sha256"] == whole["weights_sha256"]


@effect_of("resume")
def test_a_finished_run_is_not_run_again(noted):
    folder, whole, _ = noted
    summary, events = train("--resume=auto", f"--workdir={folder}")
    assert summary == whole and named(events, "train", "replace") == []


@effect_of("resume_override")
def test_a_run_goes_on_with_another_value_if_that_is_asked_for(noted, tmp_path):
    path = noted[0] / "checkpoints" / "step-000000020.npz"
    arguments = (
        f"--resume={path}", "--learning_rate=0.2", f"--workdir={tmp_path / 'run'}"
    )  # fmt: skip
    with pytest.raises(errors.InputError, match="resume_override=learning_rate"):
        train(*arguments)
    assert not (tmp_path / "run").exists()
    summary, _ = train(*arguments, "--resume_override=learning_rate")
    assert summary["weights_sha256"] != noted[1]["weights_sha256"]
