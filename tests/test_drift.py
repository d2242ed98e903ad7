"""A single flipped bit in one replica's copy is found, by name."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import build_cnn, build_optimizer, make_strategy, replica_copies

from tfmirror import config, errors
from tfmirror.diagnostics import drift
from tfmirror.training import run

pytestmark = pytest.mark.training


def flip_bit(strategy, variable, replica, index=0, bit=0):
    """Flips one bit of one element of one replica's copy."""
    copy = strategy.experimental_local_results(variable.value)[replica]
    bits = copy.numpy().view(np.uint32).copy()
    bits.reshape(-1)[index] ^= np.uint32(1 << bit)
    copy.assign(bits.view(np.float32))


@pytest.fixture
def mirrored():
    """(strategy, {path: variable}) of the cnn with momentum on three replicas."""
    strategy = make_strategy(3)
    model = build_cnn(strategy)
    optimizer = build_optimizer(strategy, model, momentum=0.9, ema_decay=0.5)
    return strategy, {v.path: v for v in [*model.variables, *optimizer.variables]}


def test_equal_replicas_have_not_drifted(mirrored):
    assert len(mirrored[1]) == 8 + 2 + 8 + 8  # weights, step and rate, momentum, ema
    assert drift.make_check(*mirrored)() == []


@pytest.mark.parametrize(
    ("path", "bit"),
    [("cnn/conv2/kernel", 0), ("cnn/conv2/kernel", 31), ("cnn/logits/bias", 22)],
)
def test_one_flipped_bit_is_found_by_variable_and_replica(mirrored, path, bit):
    strategy, variables = mirrored
    flip_bit(strategy, variables[path], replica=2, index=7, bit=bit)
    copies = replica_copies(strategy, variables[path])
    (found,) = drift.make_check(strategy, variables)()
    assert (found.name, found.replicas) == (path, (2,))
    expected = np.abs(copies[2].astype(float) - copies[0].astype(float)).max()
    assert found.largest_difference == expected
    drift.resync(strategy, [variables[path]])
    assert drift.make_check(strategy, variables)() == []
    assert (replica_copies(strategy, variables[path]) == copies[0]).all()


def test_what_differs_in_the_first_replica_is_said_of_all_others(mirrored):
    strategy, variables = mirrored
    flip_bit(strategy, variables["cnn/conv1/bias"], replica=0)
    flip_bit(strategy, variables["cnn/conv1/kernel"], replica=1)
    found = {d.name: d.replicas for d in drift.make_check(strategy, variables)()}
    assert found == {"cnn/conv1/bias": (1, 2), "cnn/conv1/kernel": (1,)}


def test_a_digest_sees_order_and_every_bit():
    values = np.random.default_rng(0).random(1000).astype(np.float32)
    digest = drift.digest(tf.constant(values)).numpy()
    assert drift.digest(tf.constant(values[::-1].copy())).numpy() != digest
    for position in (0, 1, 999):
        for bit in range(32):
            changed = values.view(np.uint32).copy()
            changed[position] ^= np.uint32(1 << bit)
            assert drift.digest(tf.constant(changed.view(np.float32))).numpy() != digest


def spoiled_run(tmp_path, monkeypatch, on_drift):
    """Runs 6 steps with a check every 2, and a bit flipped before the second check."""
    settings = config.TrainConfig(
        gpus=2,
        epochs=1,
        global_batch_size=32,
        limit_train_examples=192,
        limit_eval_examples=20,
        check_drift_every=2,
        on_drift=on_drift,
        workdir=str(tmp_path / "run"),
    )
    original = run.make_drift_check

    def spoiling(training_setup, show):
        check = original(training_setup, show)

        def spoil_then_check(steps_taken, point):
            if steps_taken == 4:
                flip_bit(
                    training_setup.strategy,
                    training_setup.variables["cnn/conv2/bias"],
                    replica=1,
                    index=3,
                )
            check(steps_taken, point)

        return spoil_then_check

    monkeypatch.setattr(run, "make_drift_check", spoiling)
    return run.train(settings)


def test_training_stops_on_drift_and_names_it(tmp_path, monkeypatch):
    says = "after step 4 replicas differ from replica 0: cnn/conv2/bias of replica 1 by"
    with pytest.raises(errors.TrainingStoppedError, match=says):
        spoiled_run(tmp_path, monkeypatch, "stop")


def test_training_goes_on_after_a_resync(tmp_path, monkeypatch, capsys):
    summary = spoiled_run(tmp_path, monkeypatch, "resync")
    out = capsys.readouterr().out
    assert out.count("resynced from replica 0") == 1
    assert len(summary["epochs"]) == 1
