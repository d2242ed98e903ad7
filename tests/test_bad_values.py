"""Every bad value of every flag of every command: exit code 2, one line, no file."""

import pytest
from hypothesis import strategies as st
from test_command import assert_one_line_and_nothing_written
from test_fuzz import NUM_INPUTS, fuzz

from experiments import (
    fashion_resnet18,
    microbatch_cost,
    mnist_cnn,
    sweep,
    time_to_accuracy,
    tracing_cost,
)
from tfmirror import (
    benchmark,
    command,
    config,
    evaluate,
    export,
    inspect_replicas,
    predict,
    recipes,
    report,
    train,
    verify,
)
from tfmirror.settings import describe, flag_fields

# (module, settings, arguments that are no flags)
COMMANDS = [
    (train, config.TrainConfig, ()),
    (inspect_replicas, inspect_replicas.InspectConfig, ()),
    (verify, verify.VerifyConfig, ()),
    (report, report.ReportConfig, ("run",)),
    (evaluate, evaluate.EvaluateConfig, ("run",)),
    (predict, predict.PredictConfig, ("run", "image.png")),
    (export, export.ExportConfig, ("run", "--keras_file=x.keras")),
    (benchmark, benchmark.BenchmarkConfig, ()),
    (fashion_resnet18, fashion_resnet18.ExperimentConfig, ()),
    (microbatch_cost, microbatch_cost.ExperimentConfig, ()),
    (mnist_cnn, mnist_cnn.ExperimentConfig, ()),
    (sweep, sweep.SweepConfig, ()),
    (time_to_accuracy, time_to_accuracy.ExperimentConfig, ()),
    (tracing_cost, tracing_cost.ExperimentConfig, ()),
]
DIGITS = "9" * 5000
BAD_INTS = ("1e3", "1.5", "nan", "inf", "-1", "two", "", "2147483648", "9" * 20, DIGITS)
BAD_FLOATS = ("nan", "inf", "-inf", "-1", "1e39", "1e308", "1e-320", "x", "", DIGITS)
BAD_LISTS = ("nan", "-1", "0", "1,x", ",", "2147483648", DIGITS)  # of whole numbers
LISTS_OF_NUMBERS = ("gpus", "global_batch_size", "per_replica_batch_size", "predict")


def bad_values(field):
    """Returns texts that are wrong for the flag of a setting, whatever it is for."""
    types = (getattr(field.type, "__args__", (field.type,)))[0]
    if types is int:
        return BAD_INTS
    if types is float:
        return BAD_FLOATS
    if types is bool:
        return ("maybe", "2", "1e3")
    if describe(field).choices:
        return ("typo", "\udcff", "NaN")
    if describe(field).is_list and describe(field).group == "Experiment":
        return ("nan", "-1", "1,x", DIGITS)  # may be empty, or 0
    if describe(field).is_list and field.name in LISTS_OF_NUMBERS:
        return BAD_LISTS
    return {
        "checkpoint_every": ("1e3", "-1epoch", f"{DIGITS}steps"),
        "image_size": ("28", "0x28", "28x", "-1x28", f"{DIGITS}x28"),
    }.get(field.name, ())


BAD_FLAGS = [
    pytest.param(*c, f"--{field.name}={value}", id=f"{c[0].__name__}-{field.name}-{k}")
    for c in COMMANDS
    for field in flag_fields(c[1])
    for k, value in enumerate(bad_values(field))
]


def call(module, settings_class, argv, main):
    check = getattr(module, "check", config.check)
    presets = recipes.PRESETS if module is train else None
    return command.run_and_return_exit_code(
        main, settings_class, "", check=check, argv=argv, presets=presets
    )


@pytest.mark.parametrize(("module", "settings_class", "arguments", "flag"), BAD_FLAGS)
def test_a_bad_value_is_one_line_and_nothing_is_written(
    module, settings_class, arguments, flag, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    code = call(module, settings_class, [*arguments, flag], pytest.fail)
    assert_one_line_and_nothing_written(capsys, code, tmp_path)


@pytest.mark.parametrize(("module", "settings_class", "arguments"), COMMANDS)
def test_the_arguments_without_a_bad_value_are_taken(module, settings_class, arguments):
    called = []
    assert call(module, settings_class, arguments, called.append) == 0
    assert len(called) == 1


NAMES = {c[1]: [f.name for f in flag_fields(c[1])] for c in COMMANDS}
VALUES = st.one_of(
    st.text(max_size=8),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "1,2", "~", "~nobody/x", "\udcff", "x.html", "auto", DIGITS]),
)


@pytest.mark.training
@pytest.mark.parametrize("num_inputs", NUM_INPUTS)
def test_any_value_of_any_flag_is_taken_or_refused_in_one_line(
    num_inputs, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    answers = {0: 0, 2: 0}

    def test(command_of, data):
        module, settings_class, arguments = command_of
        name = data.draw(st.sampled_from(NAMES[settings_class]))
        flag = f"--{name}={data.draw(VALUES)}"
        code = call(module, settings_class, [*arguments, flag], lambda _: None)
        out, err = capsys.readouterr()
        answers[code] += 1
        assert out == "" and err.count("\n") == (code == 2)
        assert list(tmp_path.iterdir()) == []

    fuzz(test, num_inputs, command_of=st.sampled_from(COMMANDS), data=st.data())
    assert min(answers.values()) > 0
