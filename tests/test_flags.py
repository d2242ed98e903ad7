"""Flags mirror the settings, and wrong ones are told in a line."""

import dataclasses

import pytest

from tfmirror import config, flags

CLASSES = [config.TrainConfig, config.InspectConfig, config.VerifyConfig]


@pytest.mark.parametrize("settings_class", CLASSES)
def test_without_arguments_the_settings_are_the_defaults(settings_class):
    assert flags.parse([], settings_class) == settings_class()


@pytest.mark.parametrize("settings_class", CLASSES)
def test_every_setting_has_its_help_with_its_default(settings_class):
    text = flags.help_text(settings_class, "Synopsis.")
    for field in dataclasses.fields(settings_class):
        assert text.count(f"--{field.name}=<") + text.count(f"--{field.name}\n") == 1
    known = {name for texts in flags.HELP.values() for name in texts}
    fields = {f.name for c in CLASSES for f in dataclasses.fields(c)}
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
    assert flags.parse(["--json"], config.InspectConfig).json is True


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
    with pytest.raises(config.InputError, match=says):
        flags.parse([argument], config.TrainConfig)


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_help_is_grouped_and_says_what_0_means(argument):
    with pytest.raises(flags.HelpRequested) as request:
        flags.parse(["--gpus=-1", argument], config.TrainConfig, "What it does.\n")
    text = str(request.value)
    assert text.startswith("What it does.\n\nModel:\n  --model=<str>\n")
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
