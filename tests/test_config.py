"""Settings: what is refused, and what the recipes fill in."""

import pytest

from tfmirror import config, models


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": "vgg"}, "model must be one of cnn: got 'vgg'"),
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
        ({"seed": -1}, r"seed must be in \[0, 2147483648\): got -1"),
        ({"seed": 2**31}, "seed must be in"),
    ],
)
def test_wrong_settings_are_refused(wrong, says):
    with pytest.raises(config.InputError, match=says):
        config.check(config.TrainConfig(**wrong))


def test_defaults_are_right():
    config.check(config.TrainConfig())
    config.check_inspect(config.InspectConfig())


@pytest.mark.parametrize(
    ("given", "num_replicas", "expected"),
    [
        ({}, 2, (128, 64, 0.3, 30)),  # digits: more passes
        ({"dataset": "mnist"}, 1, (64, 64, 0.3, 5)),
        ({"per_replica_batch_size": 10}, 4, (40, 10, 0.3, 30)),
        ({"global_batch_size": 10}, 4, (10, 3, 0.3, 30)),
        ({"learning_rate": 0.1, "epochs": 2}, 2, (128, 64, 0.1, 2)),
    ],
)
def test_resolve_leaves_no_setting_open(given, num_replicas, expected):
    resolved = config.resolve(config.TrainConfig(**given), num_replicas)
    assert expected == (
        resolved.global_batch_size,
        resolved.per_replica_batch_size,
        resolved.learning_rate,
        resolved.epochs,
    )
    assert resolved.gpus == num_replicas


def test_fewer_examples_than_replicas_in_a_batch_are_refused():
    with pytest.raises(config.InputError, match="got 3 for 4 replicas"):
        config.resolve(config.TrainConfig(global_batch_size=3), 4)


def test_every_model_has_a_recipe_and_every_recipe_a_model():
    assert set(models.BUILDERS) == set(config.RECIPES)
