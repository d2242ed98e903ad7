"""The benchmark takes turns, pairs them, and says what it could not measure."""

import contextlib
import itertools
import json

import numpy as np
import PIL.Image
import pytest
from helpers import make_call

from tfmirror import benchmark, command_config, config, errors, hardware, models
from tfmirror.benchmarking import (
    contender_process,
    contenders,
    flops,
    roofline,
    rounds,
    tables,
    workload,
)
from tfmirror.parallel import segments
from tfmirror.reporting import plots
from tfmirror.training import setup


def test_operations_are_those_of_the_arithmetic():
    model = models.build("cnn", (28, 28, 1), 10)
    # What the pools leave out of 26 x 26 and of 9 x 9 is not computed.
    conv1, conv2 = 24 * 24 * 20 * (9 * 1), 8 * 8 * 50 * (25 * 20)
    dense = 800 * 128 + 128 * 10
    expected = 2 * (3 * (conv1 + conv2 + dense) - conv1)
    assert flops.training_operations(model) == expected


def make_work(contender="tfmirror", num_replicas=2, precision="float32", batch=128):
    return workload.Workload(
        contender, "cnn", "synthetic", "", num_replicas, batch, precision
    )


class Fake:
    """A contender whose steps take as long as its name says."""

    asked = []
    SECONDS = {"tfmirror": 0.01, "keras_fit": 0.02}

    def __init__(self, work, torch_python):
        if work.contender == "torch_ddp":
            raise errors.InputError("no torch")
        self.work, self.ready = work, {"operations": 1000, "trace_seconds": 1.0}
        self.start_seconds = 3.0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def ask(self, question):
        answers = {
            "parts": {"input": 1e-4, "compute": 5e-3, "reduction": 1e-3},
            "memory": 2**30,
            "roof": 64e6,
        }
        if question in answers:
            return answers[question]
        self.asked.append((self.work.contender, question))
        return question * self.SECONDS[self.work.contender]


def test_contenders_take_turns_that_are_turned_round(monkeypatch):
    monkeypatch.setattr(contenders, "Contender", Fake)
    monkeypatch.setattr(Fake, "asked", [])
    said, works = [], [make_work(), make_work("keras_fit"), make_work("torch_ddp")]
    found, missing = rounds.measure(works, repetitions=3, seconds=1.0, say=said.append)
    assert [m.work for m in found] == works[:2] and missing == ["no torch"]
    turns = [turn for turn in Fake.asked if turn[1] != rounds.WARM_UP_STEPS]
    ours, theirs = ("tfmirror", 100), ("keras_fit", 50)
    assert turns == [ours, theirs, theirs, ours, ours, theirs]
    assert found[0].speeds == pytest.approx([12_800] * 3)
    assert found[0].share_of_roof == pytest.approx(12_800 * 1000 / 64e6)
    (only,) = rounds.ratios(found, ideal_grows=False)
    assert (only.median, only.ideal) == (pytest.approx(2.0), None)
    assert "left out: no torch" in said
    table = tables.speed_table(found)
    assert (
        "12,800 (12,800 to 12,800) | 6,400 | 10.00 | 3.0 | 1.0 | 1,024 | 20% of 0"
        in table
    )
    parts = tables.parts_table(found)
    assert "| 10.00 | 0.10 | 5.00 | 1.00 | 4.00 |" in parts


def make_measured(speeds, **kwargs):
    work = make_work(**kwargs)
    return rounds.Measured(work, tuple(speeds), 1.0, {}, None, None, None)


@pytest.mark.parametrize(("grows", "ideal"), [(True, 4.0), (False, 1.0)])
def test_ratios_are_paired_and_have_their_ideal(grows, ideal):
    one = make_measured([100.0, 200.0, 400.0], num_replicas=1)
    four = make_measured([300.0, 500.0, 1600.0], num_replicas=4)
    half = make_measured([200.0, 1000.0, 3200.0], num_replicas=4, precision="bfloat16")
    found = rounds.ratios([one, four, half], grows)
    assert [(r.of, r.against, r.ideal) for r in found] == [
        (four.work, one.work, ideal),
        (half.work, four.work, None),
    ]
    assert (found[0].least, found[0].median, found[0].most) == (2.5, 3.0, 4.0)
    assert found[1].median == 2.0  # of 0.67, 2 and 2: turn by turn


call = make_call(
    benchmark.main, command_config.BenchmarkConfig, command_config.check_benchmark
)


def test_real_processes_are_measured(tmp_path, capsys):
    code, out, err = call(
        capsys,
        "--gpus=2",
        "--cores=one_each",
        "--global_batch_size=32",
        "--repetitions=1",
        "--seconds=0.05",
        "--device_type=cpu",
        "--peer=keras_fit,torch_ddp,one_batch,drift_check",
        f"--torch_python={tmp_path}/no/python",
        "--predict=8",
        f"--plot_file={tmp_path}/a.png",
    )
    assert (code, err) == (0, "")
    assert out.startswith("one core a replica, of ")
    assert "left out: " in out and "not measured: " in out
    report = json.loads(out.splitlines()[-1])
    ours, fit, *variants = report["measured"]
    assert [v["work"]["contender"] for v in variants] == ["one_batch", "drift_check"]
    assert len(report["ratios"]) == 3  # ours against each that could be measured
    assert ours["ready"]["environment"]["num_cpus"] == 2  # it kept to its two cores
    assert ours["ready"]["environment"]["intra_op_threads"] == 1
    assert ours["images_per_second"] > 0 and fit["work"]["contender"] == "keras_fit"
    assert set(ours["parts"]["reduction_of_bytes"]) == {
        "1048576",
        "8388608",
        "33554432",
    }
    assert ours["parts"]["compute"] > ours["parts"]["reduction"] > 0
    assert 0 < ours["share_of_roof"] < 1.5  # of a noisy measure
    assert ours["ready"]["num_weights"] == 129_068
    assert [p["num_replicas"] for p in report["predicted"]] == [8]
    assert len(report["not_measured"]) == 1
    with PIL.Image.open(tmp_path / "a.png") as picture:
        assert np.asarray(picture).std() > 0


def test_one_batch_is_the_same_again_and_again():
    settings = config.TrainConfig(
        dataset="random", gpus=2, global_batch_size=16, learning_rate=0.1
    )
    made = setup.prepare(*reversed(setup.choose(settings)))
    plan = made.train_plans[0]
    examples = made.dataset.train
    again = segments.on_one_batch(made.train_segments[0], made.strategy, examples, plan)
    taken = [next(again.iterator) for _ in range(2)]
    for images, _ in taken:
        parts = made.strategy.experimental_local_results(images)
        assert [len(part) for part in parts] == [8, 8]
        np.testing.assert_array_equal(np.concatenate(parts), examples.images[:16])


def test_replicas_are_compared_every_hundred_steps():
    checks = []
    contender = contender_process.DriftCheck(make_work(batch=4))
    contender.find_drifts = lambda: checks.append(contender.steps_taken)
    for num_steps in (0, 60, 60, 180):
        contender.run(num_steps)
    assert checks == [100, 200, 300]


def test_a_contender_that_dies_between_its_turns_is_told():
    with pytest.raises(errors.InputError, match="ended with code -9"):
        with contenders.Contender(make_work(batch=8)) as contender:
            assert contender.ask(2) > 0
            contender._process.kill()
            contender._process.wait()
            contender.ask(2)


@pytest.mark.parametrize(
    ("interpreter", "says"), [("/bin/echo", "its process said"), ("/bin/false", "code")]
)
def test_an_interpreter_that_is_none_is_told(interpreter, says):
    with pytest.raises(errors.InputError, match=says):
        contenders.Contender(make_work("torch_ddp"), interpreter)


def test_a_batch_larger_than_the_data_is_refused():
    small = workload.Workload("tfmirror", "cnn", "digits", "", 2, 2048, "float32")
    with pytest.raises(errors.InputError, match="at most the 1438 training examples"):
        contenders.Contender(small)


def test_more_replicas_are_predicted_and_compared_with_what_was_measured():
    settings = command_config.BenchmarkConfig(predict="8", replicas_per_host=8)
    parts = {"compute": 5e-3, "reduction_of_bytes": {"1000000": 1e-3, "8000000": 8e-3}}
    found = [
        rounds.Measured(
            make_work(num_replicas=n, batch=64 * n, precision=precision),
            (speed,),
            1.0,
            {"num_weights": 250_000},
            parts,
            None,
            None,
        )
        for precision in ("float32", "bfloat16")
        for n, speed in ((1, 9000.0), (2, 12_800.0), (4, 20_000.0))
    ]
    predicted = benchmark.predict(settings, found, share_cores=False)
    assert [(p["num_replicas"], p["measured"]) for p in predicted] == [
        (4, 20_000.0),
        (8, None),
    ] * 2
    assert {p["fitted_on"] for p in predicted} == {
        found[1].work.name,
        found[4].work.name,
    }
    # 10 ms a step of which 1 ms is the ring of two, at 1 GB/s: of four, 1.5 ms.
    assert predicted[0]["images_per_second"] == pytest.approx(256 / 10.5e-3)
    assert tables.prediction_table(predicted).count("of 20,000 measured") == 2


def test_a_contender_that_fails_says_why():
    bad = make_work()
    with pytest.raises(errors.InputError, match="can't be measured.*synthetics"):
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                contenders.Contender(
                    workload.Workload(
                        "tfmirror", "cnn", "synthetics", "", 2, 8, bad.precision
                    )
                )
            )


def test_the_plot_draws_the_ideal_beside_each_series():
    series = {"a": {1: 100.0, 2: 150.0, 4: 200.0}}
    speed, efficiency = plots.draw_scaling(series, ideal_grows=True).axes
    assert list(speed.lines[1].get_ydata()) == [100, 200, 400]
    assert list(efficiency.lines[0].get_ydata()) == [1, 0.75, 0.5]
    speed, efficiency = plots.draw_scaling(series, ideal_grows=False).axes
    assert list(efficiency.lines[0].get_ydata()) == [1, 1.5, 2]


def test_gpus_are_not_compared_with_a_peer_on_cpus(monkeypatch, capsys):
    monkeypatch.setattr(hardware, "has_nvidia_driver", lambda: True)
    argv = ["--peer=torch_ddp", "--torch_python=python"]
    code, out, err = call(capsys, *argv)
    assert (code, out) == (2, "") and "torch_ddp runs on CPUs alone" in err
    settings = command_config.BenchmarkConfig(peer="torch_ddp", device_type="cpu")
    benchmark.check_machine(settings)
    assert not benchmark.ideal_grows(settings)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--gpus=0"], "gpus must be whole numbers of at least 1: got '0'"),
        (["--gpus="], "gpus must be at least one"),
        (["--gpus=1,x"], "got 'x'"),
        (["--model=vgg"], "model must be one of cnn, resnet18"),
        (["--precision=float16"], "precision must be one of"),
        (
            ["--peer=jax"],
            "peer must be one of drift_check, keras_fit, one_batch, torch_ddp",
        ),
        (["--peer=torch_ddp"], "needs --torch_python"),
        (["--cores=two"], "cores must be one of"),
        (["--seconds=0"], "a finite number above 0"),
        (["--gpus=4000", "--cores=one_each"], "needs a core for each replica"),
        (["--plot_file=/nowhere/a.png"], "in a folder that is there"),
        (["--plot_file=/tmp"], "a file in a folder that is there"),
        (["--global_batch_size="], "global_batch_size must be at least one"),
        (["--microbatches=-1"], "microbatches must be at least 0"),
        (["--gpus=1", "--predict=8"], "needs a measure of several replicas"),
    ],
)
def test_wrong_input_is_one_line(capsys, argv, says):
    code, out, err = call(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and says in err


def test_the_roof_counts_the_products_of_all_devices(monkeypatch):
    """Two a device and call here, of 2 x 32^3 operations each, in a quarter second."""
    monkeypatch.setattr(roofline, "MATRIX_SIDE", 32)
    monkeypatch.setattr(roofline, "PRODUCTS", 2)
    clock = itertools.count(0, 0.25)
    monkeypatch.setattr(roofline.time, "perf_counter", lambda: next(clock))
    multiplied = []
    matmul = roofline.tf.matmul

    def count(a, b):
        multiplied.append(a.device)
        return matmul(a, b)

    monkeypatch.setattr(roofline.tf, "matmul", count)
    names = ("CPU:0", "CPU:1", "CPU:2")
    rate = roofline.matrix_product_rate(names, "float32")
    assert len(multiplied) == 2 * len(names)
    assert {device[-5:] for device in multiplied} == set(names)
    assert rate == 6 * 2 * 32**3 / 0.25
