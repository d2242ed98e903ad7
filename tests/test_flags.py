"""Flags mirror the settings, and wrong ones are told in a line."""

import dataclasses

import pytest

from tfmirror import command_config, config, errors, flags

CLASSES = [
    config.TrainConfig,
    command_config.InspectConfig,
    command_config.VerifyConfig,
    command_config.ReportConfig,
    command_config.EvaluateConfig,
    command_config.PredictConfig,
    command_config.ExportConfig,
    command_config.BenchmarkConfig,
]


@pytest.mark.parametrize("settings_class", CLASSES)
def test_without_arguments_the_settings_are_the_defaults(settings_class):
    assert flags.parse([], settings_class) == settings_class()


@pytest.mark.parametrize("settings_class", CLASSES)
def test_every_setting_has_its_help_with_its_default(settings_class):
    text = flags.help_text(settings_class, "Synopsis.")
    for field in flags.flag_fields(settings_class):
        assert text.count(f"--{field.name}=<") + text.count(f"--{field.name}\n") == 1
    known = {name for texts in flags.HELP.values() for name in texts}
    all_fields = [f for c in CLASSES for f in flags.flag_fields(c)]
    fields = {f.name for f in all_fields if "help" not in f.metadata}
    assert known == fields


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
    assert flags.parse(["--json"], command_config.InspectConfig).json is True


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--gpu=2", "Unknown command line flag 'gpu'. Did you mean: gpus"),
        ("--gpus=two", "flag --gpus=two: invalid literal"),
        ("--gpus=1.5", "flag --gpus=1.5"),
        ("--learning_rate=fast", "flag --learning_rate=fast"),
        ("mnist", "arguments must be flags: got 'mnist'"),
        ("--json", "Unknown command line flag 'json'"),
    ],
)
def test_wrong_arguments_are_refused(argument, says):
    with pytest.raises(errors.InputError, match=says):
        flags.parse([argument], config.TrainConfig)


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_help_is_grouped_and_says_what_0_means(argument):
    with pytest.raises(flags.HelpRequested) as request:
        flags.parse(["--gpus=-1", argument], config.TrainConfig, "What it does.\n")
    text = str(request.value)
    assert text.startswith("What it does.\n\nModel:\n  --preset=<str>\n")
    assert (
        "Devices:\n  --gpus=<int>\n      number of replicas, one a GPU; 0: all" in text
    )
    assert "Default: from the model's recipe." in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_an_experiments_own_field_brings_its_help():
    @dataclasses.dataclass(frozen=True)
    class Own:
        repeats: int = dataclasses.field(default=2, metadata={"help": "how often"})

    assert "Experiment:\n  --repeats=<int>\n      how often. Default: 2." in (
        flags.help_text(Own, "")
    )
    assert flags.parse(["--repeats=4"], Own) == Own(4)


def test_flags_beside_a_preset_win():
    settings = flags.parse(
        ["--preset=accurate", "--momentum=0", "--gpus=4"], config.TrainConfig
    )
    preset = config.TrainConfig.PRESETS["accurate"]
    assert preset["momentum"] == 0.9
    assert settings == config.TrainConfig(**preset | {"momentum": 0.0, "gpus": 4})


def test_an_unknown_preset_is_refused():
    with pytest.raises(errors.InputError, match="preset must be one of .*accurate"):
        flags.parse(["--preset=best"], config.TrainConfig)
    with pytest.raises(errors.InputError, match="Unknown command line flag 'preset'"):
        flags.parse(["--preset=accurate"], command_config.InspectConfig)


def test_a_field_may_take_the_arguments_that_are_no_flags():
    @dataclasses.dataclass(frozen=True)
    class Own:
        folders: tuple[str, ...] = dataclasses.field(
            default=(), metadata={"arguments": "FOLDER..."}
        )
        repeats: int = dataclasses.field(default=2, metadata={"help": "how often"})

    assert flags.parse(["a", "--repeats=4", "b c"], Own) == Own(("a", "b c"), 4)
    assert flags.parse([], Own) == Own()
    assert "--folders" not in flags.help_text(Own, "")
