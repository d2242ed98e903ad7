"""Settings: what is refused, and what the recipes fill in."""

import dataclasses

import pytest

from tfmirror import command_config, config, errors, models


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": "vgg"}, "model must be one of cnn, resnet18: got 'vgg'"),
        ({"gpus": -1}, "gpus must be at least 0"),
        ({"device_type": "tpu"}, "device_type must be one of"),
        ({"global_batch_size": 0}, "global_batch_size must be at least 1: got 0"),
        ({"per_replica_batch_size": -3}, "per_replica_batch_size must be at least 1"),
        (
            {"global_batch_size": 8, "per_replica_batch_size": 4},
            "can't both be given: got 8 and 4; drop one",
        ),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
        ({"epochs": 0}, "epochs must be at least 1: got 0"),
        ({"limit_train_examples": -1}, "limit_train_examples must be at least 0"),
        ({"steps_per_loop": -1}, "steps_per_loop must be at least 0"),
        ({"microbatches": -1}, r"microbatches must be at least 0 \(0: one a replica\)"),
        ({"microbatches_per_replica": "5;3"}, "whole numbers with commas .* got '5;3'"),
        ({"microbatches_per_replica": "5,-3"}, "whole numbers with commas"),
        ({"microbatches_per_replica": "0,0"}, "not all 0, such as 5,3: got '0,0'"),
        ({"check_drift_every": -1}, "check_drift_every must be at least 0"),
        ({"on_drift": "ignore"}, "on_drift must be one of stop, resync: got 'ignore'"),
        (
            {"optimizer": "lamb"},
            "optimizer must be one of sgd, adam, adamw: got 'lamb'",
        ),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine, one_cycle"),
        ({"init": "zeros"}, "init must be one of normal, he, glorot: got 'zeros'"),
        ({"lr_scaling": "log"}, "lr_scaling must be one of none, linear, sqrt"),
        ({"precision": "int8"}, "precision must be one of float32, bfloat16, float16"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\) \(0: none\): got 1.0"),
        ({"ema_decay": -0.1}, "ema_decay must be in"),
        (
            {"clip_norm": float("inf")},
            "clip_norm must be a finite number of at least 0",
        ),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number of at least 0"),
        (
            {"momentum": 0.9, "optimizer": "adam"},
            "momentum is of --optimizer=sgd alone",
        ),
        (
            {"warmup_epochs": 1.0, "schedule": "one_cycle"},
            "warmup_epochs can't be given",
        ),
        ({"seed": -1}, r"seed must be in \[0, 2147483648\): got -1"),
        ({"seed": 2**31}, "seed must be in"),
    ],
)
def test_wrong_settings_are_refused(wrong, says):
    with pytest.raises(errors.InputError, match=says):
        config.check(config.TrainConfig(**wrong))


def test_defaults_are_right():
    config.check(config.TrainConfig())
    command_config.check_inspect(command_config.InspectConfig())


@pytest.mark.parametrize(
    ("given", "num_replicas", "expected"),
    [
        ({}, 2, (128, 64, 0.3, 30)),  # digits: more passes
        ({"dataset": "mnist"}, 1, (64, 64, 0.3, 5)),
        ({"per_replica_batch_size": 10}, 4, (40, 10, 0.3, 30)),
        ({"global_batch_size": 10}, 4, (10, 3, 0.3, 30)),
        ({"learning_rate": 0.1, "epochs": 2}, 2, (128, 64, 0.1, 2)),
        ({"optimizer": "adam"}, 2, (128, 64, 0.001, 30)),
        ({"optimizer": "adam", "model": "resnet18"}, 2, (512, 256, 0.001, 30)),
        ({"model": "resnet18", "dataset": "mnist"}, 2, (512, 256, 0.2, 10)),
        ({"model": "resnet18", "learning_rate": 0.1}, 2, (512, 256, 0.1, 30)),
    ],
)
def test_resolve_leaves_no_setting_open(given, num_replicas, expected):
    resolved = config.resolve(config.TrainConfig(**given), num_replicas)
    assert expected == (
        resolved.global_batch_size,
        resolved.per_replica_batch_size,
        config.scaled_learning_rate(resolved),
        resolved.epochs,
    )
    assert resolved.gpus == num_replicas
    assert None not in dataclasses.asdict(resolved).values()
    assert config.resolve(resolved, num_replicas) == resolved


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"lr_scaling": "linear"}, 0.3 * 4),
        ({"lr_scaling": "sqrt"}, 0.3 * 2),
        ({"lr_scaling": "none"}, 0.3),
        ({"lr_scaling": "linear", "learning_rate": 0.5}, 0.5 * 4),
        ({"model": "resnet18"}, 0.1),  # its own batch is 256 examples
        ({"model": "resnet18", "lr_scaling": "sqrt", "learning_rate": 1.0}, 1.0),
    ],
)
def test_the_learning_rate_follows_the_global_batch_and_not_the_replicas(
    given, expected
):
    for num_replicas in (1, 2, 8):
        settings = config.TrainConfig(global_batch_size=256, **given)
        resolved = config.resolve(settings, num_replicas)
        assert config.scaled_learning_rate(resolved) == pytest.approx(expected)


@pytest.mark.parametrize("preset", config.PRESETS)
def test_presets_are_right_settings(preset):
    settings = config.TrainConfig(**config.TrainConfig.PRESETS[preset])
    config.check(settings)
    assert settings != config.TrainConfig()


def test_fewer_examples_than_replicas_or_microbatches_in_a_batch_are_refused():
    with pytest.raises(errors.InputError, match="got 3 for 4 replicas"):
        config.resolve(config.TrainConfig(global_batch_size=3), 4)
    with pytest.raises(errors.InputError, match="got 7 for 8 microbatches"):
        config.resolve(config.TrainConfig(global_batch_size=7, microbatches=8), 2)


def test_explicit_shares_alone_say_how_many_microbatches_there_are():
    settings = config.TrainConfig(microbatches_per_replica="5,3")
    assert config.resolve(settings, 2).microbatches == 8
    assert config.parse_shares("5, 3") == (5, 3) and config.parse_shares("") == ()


def test_every_model_has_a_recipe_and_every_recipe_a_model():
    assert set(models.BUILDERS) - {"probe"} == set(config.RECIPES)
    assert set(models.INITIALIZERS) == set(config.INITS)
