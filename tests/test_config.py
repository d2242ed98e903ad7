"""Settings: what is refused, and what the recipes fill in."""

import dataclasses
import pathlib

import pytest

from tfmirror import config, errors, folder_settings, inspect_replicas, models, recipes
from tfmirror.parallel import devices, optimizers
from tfmirror.settings import names_with
from tfmirror.training import schedules


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"model": "typo"},
            "one of cnn, resnet18, or FILE.py:FUNCTION or .*: got 'typo'",
        ),
        ({"gpus": -1}, "gpus must be at least 0"),
        ({"device_type": "tpu"}, "device_type must be one of"),
        ({"global_batch_size": 0}, "global_batch_size must be at least 1: got 0"),
        ({"per_replica_batch_size": -3}, "per_replica_batch_size must be at least 1"),
        (
            {"global_batch_size": 8, "per_replica_batch_size": 4},
            "can't be combined: got 8 and 4; remove one",
        ),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
        ({"epochs": 0}, "epochs must be at least 1: got 0"),
        ({"limit_train_examples": -1}, "limit_train_examples must be at least 0"),
        ({"image_size": "64"}, "image_size must be height x width .* got '64'"),
        ({"image_size": "0x64"}, "image_size must be height x width in pixels"),
        ({"channels": 4}, r"channels must be at most 3 \(0: 3 for a folder\): got 4"),
        ({"channels": 2, "dataset": "folder"}, r"channels must be 1 or 3 \(0: 3\)"),
        (
            {"eval_fraction": 1.0, "dataset": "folder"},
            r"eval_fraction must be in \[0, 1\): got 1.0",
        ),
        ({"data_in_memory": "maybe"}, "data_in_memory must be one of auto, yes, no"),
        *(
            ({name: value}, f"{name} has an effect with dataset=folder alone: .*digits")
            for name, value in (
                ("image_size", "64x64"),
                ("channels", 1),
                ("eval_fraction", 0.1),
                ("data_in_memory", "no"),
            )
        ),
        ({"steps_per_loop": -1}, "steps_per_loop must be at least 0"),
        ({"microbatches": -1}, r"microbatches must be at least 0 \(0: one per"),
        ({"microbatches_per_replica": "5;3"}, "comma-separated whole.* got '5;3'"),
        ({"microbatches_per_replica": "5,-3"}, "comma-separated whole numbers"),
        (
            {"microbatches_per_replica": "0,0"},
            "at least one above 0, such as 5,3: got '0,0'",
        ),
        ({"check_drift_every": -1}, "check_drift_every must be at least 0"),
        ({"on_drift": "ignore"}, "on_drift must be one of stop, resync: got 'ignore'"),
        (
            {"optimizer": "typo"},
            "optimizer must be one of sgd, adam, adamw: got 'typo'",
        ),
        ({"schedule": "typo"}, "schedule must be one of constant, cosine, one_cycle"),
        ({"init": "zeros"}, "init must be one of normal, he, glorot: got 'zeros'"),
        ({"lr_scaling": "log"}, "lr_scaling must be one of none, linear, sqrt"),
        ({"precision": "int8"}, "precision must be one of float32, bfloat16, float16"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\): got 1.0"),
        ({"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\): got 1.0"),
        ({"label_smoothing": -0.1}, "label_smoothing must be a finite number of at"),
        ({"ema_decay": -0.1}, "ema_decay must be"),
        (
            {"clip_norm": float("inf")},
            "clip_norm must be a finite number of at least 0",
        ),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number of at least 0"),
        (
            {"momentum": 0.9, "optimizer": "adam"},
            "momentum needs optimizer=sgd: got optimizer=adam; remove momentum",
        ),
        (
            {"warmup_epochs": 1.0, "schedule": "one_cycle"},
            "warmup_epochs can't be combined with schedule=one_cycle",
        ),
        (
            {"microbatches": 2, "pack_mb": 1.0},
            "no effect with microbatches.* pack_mb=1",
        ),
        ({"resume": "auto"}, "resume=auto needs workdir: got none; give"),
        ({"checkpoint_every": "2"}, "such as 1epoch or 200steps, or empty: got '2'"),
        ({"resume_override": "epochs,model"}, "must be one of .*gpus.* got 'model'"),
        ({"step_timeout": -1.0}, "step_timeout must be a finite number of at least 0"),
        ({"seed": -1}, r"seed must be in \[0, 2147483648\): got -1"),
        ({"seed": 2**31}, "seed must be at most 2147483647"),
        ({"momentum": 1 - 1e-9}, r"momentum must be in .0, 1.: got 0.999999999"),
        (
            {"epochs": 2, "warmup_epochs": 2.5},
            "warmup_epochs must be at most epochs, 2,",
        ),
        ({"epochs": 2**31}, "epochs must be at most 2147483647: got 2147483648"),
        ({"epochs": 10**5000}, "got a number of thousands of digits"),
        ({"gpus": 257}, r"gpus must be at most 256 \(0: all GPUs"),
        ({"gpus": "2"}, "gpus must be a whole number: got '2'"),
        ({"gpus": True}, "gpus must be a whole number: got True"),
        ({"learning_rate": "0.1"}, "learning_rate must be a number: got '0.1'"),
        ({"deterministic": 1}, "deterministic must be a bool: got 1"),
        ({"augment": True}, "must be one of none, crop, resized_crop: got True"),
        ({"augment": "flip"}, "must be one of none, crop, resized_crop: got 'flip'"),
        ({"workdir": pathlib.Path("x")}, "workdir must be a text: got .*Path"),
        ({"workdir": "\udcff"}, "workdir must be a path in UTF-8: got '.udcff'"),
        ({"learning_rate": 1e-320}, "must be 0 or a number of at least 1.17549e-38"),
        ({"learning_rate": 1e308}, "must be a finite number of at most 3.4028235e.38"),
        ({"weight_decay": 1e39}, "weight_decay must be a finite number of at most 3.4"),
        ({"pack_mb": 1e-7}, "pack_mb must be 0, or enough for one float32"),
        ({"microbatches": 2**16 + 1}, "microbatches must be at most 65536"),
        ({"microbatches_per_replica": "9" * 5000}, "comma-separated whole"),
        ({"microbatches_per_replica": "65535,2"}, "at most 65536 in all: got 65537"),
        (
            {"step_timeout": 1e7},
            "step_timeout must be a finite number of at most 10000",
        ),
    ],
)
def test_wrong_settings_are_refused(wrong, says):
    with pytest.raises(errors.InputError, match=says):
        config.check(config.TrainConfig(**wrong))


def test_defaults_are_right():
    config.check(config.TrainConfig())
    inspect_replicas.check(inspect_replicas.InspectConfig())


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
        resolved.peak_learning_rate,
        resolved.epochs,
    )
    assert resolved.gpus == num_replicas
    assert None not in resolved.to_json().values()
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
        assert resolved.peak_learning_rate == pytest.approx(expected)


@pytest.mark.parametrize("preset", recipes.PRESETS)
def test_presets_are_right_settings(preset):
    settings = config.TrainConfig(**recipes.PRESETS[preset])
    config.check(settings)
    assert settings != config.TrainConfig()


def test_fewer_examples_than_replicas_or_microbatches_in_a_batch_are_refused():
    with pytest.raises(errors.InputError, match="got 3 for 4 replicas"):
        config.resolve(config.TrainConfig(global_batch_size=3), 4)
    with pytest.raises(errors.InputError, match="got 7 for 8 microbatches"):
        config.resolve(config.TrainConfig(global_batch_size=7, microbatches=8), 2)


def test_explicit_shares_alone_say_how_many_microbatches_there_are():
    settings = config.TrainConfig(microbatches_per_replica="5,3")
    resolved = config.resolve(settings, 2)
    assert (resolved.microbatches, resolved.microbatches_per_replica) == (8, (5, 3))
    assert config.parse_counts("5, 3") == (5, 3) and config.parse_counts("") == ()


def test_the_settings_of_a_folder_are_parsed_and_written_as_texts():
    given = config.TrainConfig(dataset="folder", image_size="28x32", eval_fraction=0.1)
    resolved = config.resolve(given, 2)
    assert (resolved.image_size, resolved.channels) == ((28, 32), 3)
    written = resolved.to_json()
    assert (written["image_size"], written["channels"]) == ("28x32", 3)
    folder_settings.check("folder", config.TrainConfig(**written))
    other = config.resolve(config.TrainConfig(), 2)
    assert (other.image_size, other.channels) == ((), 0)


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [("1epoch", 1, "epoch"), ("200 steps", 200, "step"), ("", 0, "step")],
)
def test_a_checkpoint_interval_is_parsed(text, number, unit):
    parsed = config.parse_interval(text)
    assert parsed == config.Interval(number, unit)
    assert str(parsed) == text.replace(" ", "")


def test_resolved_settings_are_written_as_they_were_given():
    texts = {
        "microbatches_per_replica": "5, 3",
        "checkpoint_every": "200 steps",
        "resume_override": "epochs,gpus",
    }
    resolved = config.resolve(config.TrainConfig(**texts, pack_mb=0.5), 2)
    assert resolved.resume_override == ("epochs", "gpus")
    assert resolved.pack_bytes == 2**19 and resolved.reference_batch_size == 64
    written = resolved.to_json()
    assert list(written) == [f.name for f in dataclasses.fields(config.TrainConfig)]
    assert texts.items() <= written.items()
    assert config.resolve(config.TrainConfig(**written), 2) == resolved


def test_a_parsed_value_may_be_given_and_is_written_as_text():
    given = config.TrainConfig(
        microbatches_per_replica=(5, 3), checkpoint_every=config.Interval(2, "step")
    )
    config.check(given)
    written = config.resolve(given, 2).to_json()
    assert written["microbatches_per_replica"] == "5,3"
    assert written["checkpoint_every"] == "2steps"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        # digits: 30 epochs, unless given.
        ({"warmup_epochs": 30.5}, "warmup_epochs must be at most epochs, 30, so that"),
        (
            {"learning_rate": 1e38, "lr_scaling": "linear", "global_batch_size": 640},
            "learning_rate must be a float32 above 0 once lr_scaling has",
        ),
        (
            {"learning_rate": 2e-38, "lr_scaling": "linear", "global_batch_size": 8},
            "learning_rate must be a float32 above 0 once lr_scaling has",
        ),
    ],
)
def test_what_the_recipe_makes_of_wrong_settings_is_refused(given, says):
    config.check(config.TrainConfig(**given))
    with pytest.raises(errors.InputError, match=says):
        config.resolve(config.TrainConfig(**given), 2)


@pytest.mark.parametrize(
    ("preset", "given", "changed", "dropped"),
    [
        (
            "accurate",
            {"optimizer": "adam"},
            {"optimizer"},
            {"learning_rate", "momentum"},
        ),
        ("accurate", {"optimizer": "sgd"}, {"optimizer"}, set()),
        ("fast", {"optimizer": "adam"}, set(), set()),
        ("fast", {"optimizer": "sgd"}, {"optimizer"}, {"learning_rate"}),
        (
            "accurate",
            {"per_replica_batch_size": 8},
            {"per_replica_batch_size"},
            {"global_batch_size"},
        ),
        ("accurate", {"momentum": 0.5, "epochs": 3}, {"momentum", "epochs"}, set()),
        (
            "accurate",
            {"optimizer": "adam", "learning_rate": 0.1},
            {"optimizer"},
            {"momentum"},
        ),
    ],
)
def test_what_is_given_beside_a_preset_wins(preset, given, changed, dropped):
    values = recipes.PRESETS[preset]
    both = recipes.with_preset(values, given)
    assert {n for n in both if both[n] != values.get(n)} == changed
    assert set(values) - set(both) == dropped
    config.resolve(config.TrainConfig(**both), 2)
    config.check(config.TrainConfig(**both))


def test_settings_say_whether_they_may_differ_on_resume():
    assert sorted(names_with(config.TrainConfig, "free")) == sorted(
        "workdir device_type data_dir data_in_memory steps_per_loop "
        "check_drift_every on_drift checkpoint_every keep resume resume_override "
        "step_timeout "
        "microbatches_per_replica per_replica_batch_size".split()
    )
    assert sorted(names_with(config.TrainConfig, "override")) == sorted(
        "epochs learning_rate lr_scaling schedule warmup_epochs weight_decay clip_norm "
        "label_smoothing augment gpus all_reduce pack_mb intra_op_threads "
        "inter_op_threads".split()
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: models.build("typo", (28, 28, 1), 10), "model must be one of cnn"),
        (
            lambda: models.build("cnn", (28, 28, 1), 10, init="zeros"),
            "init must be one of .*he",
        ),
        (
            lambda: models.build("cnn", (28, 28, 1), 10, precision="typo"),
            "precision must be one of float32, bfloat16, float16: got 'typo'",
        ),
        (
            lambda: devices.make_strategy(devices.set_up(2, "cpu"), "typo"),
            "all_reduce must be one of auto, nccl, hierarchical, one_device",
        ),
        (
            lambda: schedules.make_schedule("typo", 0.1, num_steps=10),
            "schedule must be one of",
        ),
        (lambda: optimizers.make_optimizer("typo", 0.1), "optimizer must be one of"),
    ],
)
def test_library_functions_refuse_an_unknown_name(call, says):
    with pytest.raises(errors.InputError, match=says):
        call()


def test_every_model_has_a_recipe_and_every_recipe_a_model():
    assert set(models.BUILDERS) - {"probe"} == set(recipes.RECIPES)
    assert set(models.INITIALIZERS) == set(recipes.INITS)
