"""Flags mirror the settings, and wrong ones are told in a line."""

import dataclasses

import pytest

from tfmirror import (
    benchmark,
    config,
    errors,
    evaluate,
    export,
    flags,
    inspect_replicas,
    predict,
    recipes,
    report,
    verify,
)
from tfmirror.settings import (
    check_fields,
    describe,
    flag_fields,
    positional_arguments,
    setting,
    setting_of,
)

CLASSES = [
    config.TrainConfig,
    inspect_replicas.InspectConfig,
    verify.VerifyConfig,
    report.ReportConfig,
    evaluate.EvaluateConfig,
    predict.PredictConfig,
    export.ExportConfig,
    benchmark.BenchmarkConfig,
]


@pytest.mark.parametrize("settings_class", CLASSES)
def test_without_arguments_the_settings_are_the_defaults(settings_class):
    assert flags.parse([], settings_class) == settings_class()


@pytest.mark.parametrize("settings_class", CLASSES)
def test_every_setting_has_its_help_with_its_default(settings_class):
    text = flags.help_text(settings_class, "Synopsis.")
    fields = flag_fields(settings_class)
    for field in fields:
        assert text.count(f"--{field.name}=<") + text.count(f"--{field.name}\n") == 1
        assert field.default is not None or describe(field).none_means
    assert text.count("Default:") == len(fields)


@pytest.mark.parametrize("settings_class", CLASSES)
def test_defaults_are_allowed(settings_class):
    check_fields(settings_class())


def test_values_have_the_type_of_their_setting():
    settings = flags.parse(
        [
            "--gpus=3",
            "--learning_rate=0.5",
            "--dataset",
            "mnist",
            "--global_batch_size=6",
        ],
        config.TrainConfig,
    )
    assert settings == config.TrainConfig(
        gpus=3, learning_rate=0.5, dataset="mnist", global_batch_size=6
    )
    assert flags.parse(["--json"], inspect_replicas.InspectConfig).json is True


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "none"),
        (["--augment=resized_crop"], "resized_crop"),
        (["--augment", "--gpus=2"], "crop"),
        (["--augment=true"], "crop"),
        (["--noaugment"], "none"),
        (["--augment=false"], "none"),
        (["--preset=accurate"], "crop"),
        (["--preset=accurate", "--noaugment"], "none"),
    ],
)
def test_a_text_that_was_a_bool_may_be_given_as_one(arguments, expected):
    presets = recipes.PRESETS
    settings = flags.parse(arguments, config.TrainConfig, presets=presets)
    assert settings.augment == expected
    config.check(settings)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--gpu=2", "Unknown command line flag 'gpu'. Did you mean: gpus"),
        ("--gpus=two", "flag --gpus=two: invalid literal"),
        ("--gpus=1.5", "flag --gpus=1.5"),
        ("--learning_rate=fast", "flag --learning_rate=fast"),
        ("mnist", "all arguments must be flags: got 'mnist'"),
        ("--json", "Unknown command line flag 'json'"),
    ],
)
def test_wrong_arguments_are_refused(argument, says):
    with pytest.raises(errors.InputError, match=says):
        flags.parse([argument], config.TrainConfig)


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_help_is_grouped_and_says_what_0_means(argument):
    with pytest.raises(flags.HelpRequested) as request:
        flags.parse(
            ["--gpus=-1", argument],
            config.TrainConfig,
            "What it does.\n",
            presets=recipes.PRESETS,
        )
    text = str(request.value)
    assert text.startswith("What it does.\n\nModel:\n  --preset=<accurate|fast>\n")
    assert "Devices:\n  --gpus=<int>\n      number of replicas, one per GPU" in text
    assert "--optimizer=<sgd|adam|adamw>" in text and "0: all. Default: 0." in (
        " ".join(text.split())
    )
    assert "Default: from the model's recipe." in text
    assert max(len(line) for line in text.splitlines()) <= 80


@dataclasses.dataclass(frozen=True)
class Own:
    folders: tuple[str, ...] = positional_arguments("FOLDER...")
    repeats: int = setting(2, "how often", group="Own", zero_means="never")
    kinds: str = setting("a", "kinds", group="Own", choices="ab", is_list=True)
    rate: float | None = setting(
        None, "step size", group="Own", minimum=1, none_means="chosen"
    )
    gpus: int = setting_of(config.TrainConfig, "gpus", 3, help="devices")


def test_help_says_all_there_is_to_say_of_a_setting():
    assert flags.help_text(Own, "What.") == (
        "What.\n\n"
        "Arguments: FOLDER...\n\n"
        "Own:\n"
        "  --repeats=<int>\n      how often; 0: never. Default: 2.\n"
        "  --kinds=<a|b>,...\n      kinds. Default: 'a'.\n"
        "  --rate=<float>\n      step size. Default: chosen.\n\n"
        "Devices:\n"
        "  --gpus=<int>\n"
        "      devices; 0: all GPUs, or 2 logical CPU devices without a GPU. "
        "Default:\n      3."
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"repeats": -1}, r"repeats must be at least 0 \(0: never\): got -1"),
        ({"kinds": "a, c"}, "kinds must be one of a, b: got 'c'"),
        ({"rate": 0.5}, "rate must be a finite number of at least 1: got 0.5"),
        ({"rate": float("nan")}, "got nan"),
        ({"gpus": -1}, "gpus must be at least 0"),
    ],
)
def test_fields_are_checked_against_their_own_limits(changes, says):
    check_fields(Own())
    with pytest.raises(errors.InputError, match=says):
        check_fields(Own(**changes))


def test_flags_override_a_preset():
    settings = flags.parse(
        ["--preset=accurate", "--momentum=0", "--gpus=4"],
        config.TrainConfig,
        presets=recipes.PRESETS,
    )
    preset = recipes.PRESETS["accurate"]
    assert preset["momentum"] == 0.9
    assert settings == config.TrainConfig(**preset | {"momentum": 0.0, "gpus": 4})


def test_an_unknown_preset_is_refused():
    with pytest.raises(errors.InputError, match="preset must be one of .*accurate"):
        flags.parse(["--preset=best"], config.TrainConfig, presets=recipes.PRESETS)
    with pytest.raises(errors.InputError, match="Unknown command line flag 'preset'"):
        flags.parse(["--preset=accurate"], config.TrainConfig)


def test_a_field_may_take_the_arguments_that_are_not_flags():
    assert flags.parse(["a", "--repeats=4", "b c"], Own) == Own(("a", "b c"), 4)
    assert flags.parse([], Own) == Own()
