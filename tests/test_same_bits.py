"""The heart: with the microbatches fixed, the number of replicas changes no bit."""

import functools
import os
import subprocess
import sys

import keras
import pytest
from helpers import build_optimizer, make_strategy

from tfmirror import metrics
from tfmirror.data import augmentation, datasets
from tfmirror.parallel import eval_step, microbatches, segments, step, step_loop
from tfmirror.training import loop, schedules

pytestmark = pytest.mark.training

EPOCHS = 2


def build_small_net(strategy, policy):
    """Returns a model with what could depend on the replicas: batch norm, dropout."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    layers = keras.layers
    try:
        with strategy.scope():
            return keras.Sequential(
                [
                    keras.Input((28, 28, 1)),
                    layers.Conv2D(8, 5, strides=2),
                    layers.BatchNormalization(),
                    layers.ReLU(),
                    layers.Dropout(0.25),
                    layers.Conv2D(8, 3, strides=2),
                    layers.BatchNormalization(),
                    layers.ReLU(),
                    layers.GlobalAveragePooling2D(),
                    layers.Dense(10, dtype="float32"),
                ]
            )
    finally:
        keras.config.set_dtype_policy("float32")


def run(
    shares,
    *,
    policy="float32",
    in_fixed_tree=True,
    max_concurrent=1,
    label_smoothing=0.0,
    augment="crop",
):
    """Trains and evaluates; returns (digest of all variables, totals of both passes).

    75 examples in batches of 32: the last batch has 11. Evaluation has 41 + 32.
    """
    strategy = make_strategy(len(shares))
    model = build_small_net(strategy, policy)
    optimizer = build_optimizer(
        strategy,
        model,
        learning_rate=schedules.make_schedule(
            "cosine", 0.1, num_steps=3 * EPOCHS, warmup_steps=2
        ),
        momentum=0.9,
        weight_decay=0.01,
        clip_norm=0.5,
        ema_decay=0.9,
        scales_loss=policy == "mixed_float16",
    )
    digits = datasets.load("digits", limit_train_examples=75, limit_eval_examples=73)
    train_plans, eval_plans = (
        microbatches.plan_epoch(len(examples), 32, shares, in_fixed_tree=in_fixed_tree)
        for examples in (digits.train, digits.eval)
    )
    make_train = functools.partial(
        step.make_train_steps,
        strategy,
        model,
        optimizer,
        augment=augmentation.make_augment(True, 0, augment),
        label_smoothing=label_smoothing,
        max_concurrent=max_concurrent,
    )
    make_eval = functools.partial(
        eval_step.make_eval_steps,
        strategy,
        model,
        weights=optimizer.evaluated_variables,
        max_concurrent=max_concurrent,
    )
    training = segments.make_segments(
        strategy, digits.train, train_plans, make_train, shuffle_seed=0
    )
    evaluation = segments.make_segments(strategy, digits.eval, eval_plans, make_eval)
    for _ in range(EPOCHS):
        trained = loop.run_pass(training, step_loop.zero_totals()).totals
    evaluated = loop.run_pass(evaluation, step_loop.zero_totals()).totals
    digest = metrics.weights_sha256([*model.variables, *optimizer.variables])
    return digest, trained, evaluated


@functools.cache
def on_one_device(num_microbatches, policy="float32"):
    return run((num_microbatches,), policy=policy)


SLOW_SHARES = [(5, 3), (4, 4), (2, 2, 2, 2), (1,) * 8, (1, 0, 7)]


@pytest.mark.parametrize(
    "shares",
    [(3, 3, 2)] + [pytest.param(s, marks=pytest.mark.slow) for s in SLOW_SHARES],
)
def test_eight_microbatches_give_the_same_bits_on_any_replicas(shares):
    assert len(shares) >= 2
    assert run(shares) == on_one_device(8)


@pytest.mark.slow
@pytest.mark.parametrize("max_concurrent", [2, 4, 8])
def test_microbatches_side_by_side_give_the_same_bits(max_concurrent):
    assert run((8,), max_concurrent=max_concurrent) == on_one_device(8)


@pytest.mark.slow
def test_one_core_gives_the_same_bits_as_two(tmp_path):
    """Of the command, which sets threads; each in a process of its own."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("this process may use one core only")
    code = (
        "import os, sys\n"
        "os.sched_setaffinity(0, eval(sys.argv[1]))\n"
        "from tfmirror import config\n"
        "from tfmirror.training import run\n"
        "settings = config.TrainConfig(gpus=int(sys.argv[2]), microbatches=4,\n"
        "    global_batch_size=32, limit_train_examples=107, epochs=1,\n"
        "    limit_eval_examples=50, workdir=sys.argv[3], device_type='cpu')\n"
        "print(run.train(settings)['weights_sha256'])\n"
    )

    def digest(num_cores, num_replicas, folder):
        argv = [str(set(cores[:num_cores])), str(num_replicas), str(folder)]
        done = subprocess.run(
            [sys.executable, "-c", code, *argv],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout.splitlines()[-1]

    ways = [(1, 1), (2, 1), (2, 3)]
    digests = {digest(*way, tmp_path / str(k)) for k, way in enumerate(ways)}
    assert len(digests) == 1 and len(digests.pop()) == 64


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(3, 2), (1, 4), (1,) * 5])
def test_five_microbatches_give_the_same_bits_on_any_replicas(shares):
    assert run(shares) == on_one_device(5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"label_smoothing": 0.1}, {"augment": "resized_crop"}]
)
def test_smoothed_labels_and_resized_crops_have_the_same_bits_on_any_replicas(changes):
    one, two, four = (run(shares, **changes) for shares in [(4,), (2, 2), (1,) * 4])
    assert one == two == four
    plain = on_one_device(4)
    assert one[0] != plain[0] and one[1].loss_sum != plain[1].loss_sum


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("shares", [(3, 1), (2, 2), (1,) * 4])
def test_half_precision_gives_the_same_bits_on_any_replicas(shares, policy):
    assert run(shares, policy=policy) == on_one_device(4, policy)


@pytest.mark.slow
def test_the_cut_itself_does_change_bits():
    """Equal digests above are no accident of a digest that can't tell runs apart."""
    runs = [on_one_device(8), on_one_device(5), on_one_device(4, "mixed_bfloat16")]
    assert len({digest for digest, _, _ in runs}) == 3


@pytest.mark.slow
def test_without_a_fixed_tree_the_same_replicas_give_the_same_bits():
    first, second = (run((1, 1), in_fixed_tree=False) for _ in range(2))
    assert first == second
    assert first[0] != on_one_device(8)[0]
