"""The benchmark measures in rounds, compares them, and reports what is left out."""

import dataclasses
import itertools
import json
import subprocess
import sys

import keras
import numpy as np
import PIL.Image
import pytest
from helpers import make_call

from tfmirror import benchmark, config, errors, hardware, models
from tfmirror.benchmarking import (
    contender_process,
    contenders,
    flops,
    messages,
    roofline,
    rounds,
    tables,
)
from tfmirror.benchmarking.messages import (
    ContenderInfo,
    Request,
    RequestKind,
    StepParts,
)
from tfmirror.benchmarking.workload import Workload
from tfmirror.parallel import segments
from tfmirror.reporting import plots
from tfmirror.training import setup


def test_the_flops_of_training_are_those_of_the_arithmetic():
    model = models.build("cnn", (28, 28, 1), 10)
    # Positions of 26 x 26 and of 9 x 9 that the pools ignore are not computed.
    conv1, conv2 = 24 * 24 * 20 * (9 * 1), 8 * 8 * 50 * (25 * 20)
    dense = 800 * 128 + 128 * 10
    expected = 2 * (3 * (conv1 + conv2 + dense) - conv1)
    assert flops.training_flops(model) == expected


def test_the_flops_of_layers_that_are_not_counted_are_not_known():
    layers = keras.layers

    def count(*first):
        last = layers.Flatten(), layers.Dense(10)
        model = keras.Sequential([keras.Input((8, 8, 1)), *first, *last])
        return flops.training_flops(model)

    assert count() == count(layers.BatchNormalization()) == 2 * 2 * 64 * 10
    for other in (
        layers.DepthwiseConv2D(3),
        layers.TimeDistributed(layers.Dense(3)),
        keras.Sequential([layers.Dense(3)]),
    ):
        assert count(other) is None


def make_workload(**kwargs):
    defaults = {
        "contender": "tfmirror",
        "model": "cnn",
        "dataset": "synthetic",
        "data_dir": "",
        "num_replicas": 2,
        "global_batch_size": 128,
        "precision": "float32",
    }
    return Workload(**(defaults | kwargs))


class Fake:
    """A contender whose steps always take the same time."""

    trained = []
    SECONDS = {"tfmirror": 0.01, "keras_fit": 0.02}

    def __init__(self, workload, torch_python):
        if workload.contender == "torch_ddp":
            raise errors.InputError("no torch")
        self.workload = workload
        self.info = ContenderInfo(trace_seconds=1.0, flops_per_example=1000)
        self.start_seconds = 3.0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def train(self, num_steps):
        self.trained.append((self.workload.contender, num_steps))
        return num_steps * self.SECONDS[self.workload.contender]

    def peak_bytes(self):
        return 2**30

    def peak_flops(self):
        return 64e6

    def step_parts(self):
        return StepParts(1e-4, 5e-3, 1e-3, {})


def test_the_order_of_contenders_is_reversed_in_every_second_round(monkeypatch):
    monkeypatch.setattr(contenders, "Contender", Fake)
    monkeypatch.setattr(Fake, "trained", [])
    names = ("tfmirror", "keras_fit", "torch_ddp")
    workloads = [make_workload(contender=name) for name in names]
    logged = []
    measurements, left_out = rounds.measure(
        workloads, num_rounds=3, seconds=1.0, log=logged.append
    )
    assert [m.workload for m in measurements] == workloads[:2]
    assert left_out == ["no torch"]
    in_rounds = [call for call in Fake.trained if call[1] != rounds.WARM_UP_STEPS]
    ours, theirs = ("tfmirror", 100), ("keras_fit", 50)
    assert in_rounds == [ours, theirs, theirs, ours, ours, theirs]
    assert measurements[0].speeds == pytest.approx([12_800] * 3)
    share = measurements[0].share_of_peak_flops
    assert share == pytest.approx(12_800 * 1000 / 64e6)
    assert measurements[1].share_of_peak_flops is None
    (only,) = rounds.ratios(measurements, hardware_grows=False)
    assert (only.median, only.ideal) == (pytest.approx(2.0), None)
    assert logged == [
        "ready: tfmirror, cnn, 2 replicas, batch 128, float32",
        "ready: keras_fit, cnn, 2 replicas, batch 128, float32",
        "left out: no torch",
    ]
    table = tables.speed_table(measurements)
    cells = "12,800 (12,800 to 12,800) | 6,400 | 10.00 | 3.0 | 1.0 | 1,024 | 20% of 0"
    assert cells in table
    parts = tables.step_parts_table(measurements)
    assert "| 10.00 | 0.10 | 5.00 | 1.00 | 4.00 |" in parts


def make_measurement(speeds, **kwargs):
    info = ContenderInfo(trace_seconds=1.0)
    return rounds.Measurement(make_workload(**kwargs), tuple(speeds), 1.0, info)


@pytest.mark.parametrize(("grows", "ideal"), [(True, 4.0), (False, 1.0)])
def test_ratios_are_compared_round_by_round_with_their_ideal(grows, ideal):
    one = make_measurement([100.0, 200.0, 400.0], num_replicas=1)
    four = make_measurement([300.0, 500.0, 1600.0], num_replicas=4)
    half = make_measurement(
        [200.0, 1000.0, 3200.0], num_replicas=4, precision="bfloat16"
    )
    found = rounds.ratios([one, four, half], grows)
    assert [(r.workload, r.baseline, r.ideal) for r in found] == [
        (four.workload, one.workload, ideal),
        (half.workload, four.workload, None),
    ]
    assert (found[0].lowest, found[0].median, found[0].highest) == (2.5, 3.0, 4.0)
    assert found[1].median == 2.0  # of 0.67, 2 and 2, one for each round


call = make_call(benchmark.main, benchmark.BenchmarkConfig, benchmark.check)


@pytest.mark.slow
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
    assert out.startswith("one core for each replica, of ")
    assert "left out: " in out and "not measured: " in out
    report = json.loads(out.splitlines()[-1])
    ours, fit, *variants = report["measurements"]
    names = [v["workload"]["contender"] for v in variants]
    assert names == ["one_batch", "drift_check"]
    assert len(report["ratios"]) == 3  # ours to each peer that could be measured
    environment = ours["info"]["environment"]
    assert environment["num_cpus"] == 2  # it uses its two cores only
    assert environment["intra_op_threads"] == 1
    assert ours["images_per_second"] > 0
    assert fit["workload"]["contender"] == "keras_fit"
    parts = ours["step_parts"]
    sizes = {"1048576", "8388608", "33554432"}
    assert set(parts["reduction_seconds_of_bytes"]) == sizes
    # How long they are, and so which is longer, depends on what else the machine does.
    assert parts["compute_seconds"] > 0 and parts["reduction_seconds"] > 0
    flops = ours["info"]["flops_per_example"] * ours["images_per_second"]
    assert flops > 0 and ours["share_of_peak_flops"] > 0
    assert ours["info"]["num_weights"] == 129_068
    assert [p["num_replicas"] for p in report["predictions"]] == [8]
    assert len(report["not_measured"]) == 1
    with PIL.Image.open(tmp_path / "a.png") as picture:
        assert np.asarray(picture).std() > 0


@pytest.mark.training
def test_one_batch_is_the_same_again_and_again():
    settings = config.TrainConfig(
        dataset="random", gpus=2, global_batch_size=16, learning_rate=0.1
    )
    made = setup.prepare(*reversed(setup.choose(settings)))
    plan = made.train_plans[0]
    examples = made.dataset.train
    again = segments.on_one_batch(made.train_segments[0], made.strategy, examples, plan)
    batches = [next(again.iterator) for _ in range(2)]
    for images, _ in batches:
        parts = made.strategy.experimental_local_results(images)
        assert [len(part) for part in parts] == [8, 8]
        np.testing.assert_array_equal(np.concatenate(parts), examples.images[:16])


@pytest.mark.training
def test_replicas_are_compared_every_hundred_steps():
    checks = []
    contender = contender_process.DriftCheck(make_workload(global_batch_size=4))
    contender.find_drifts = lambda: checks.append(contender.steps_taken)
    for num_steps in (0, 60, 60, 180):
        contender.train(num_steps)
    assert checks == [100, 200, 300]


@pytest.mark.slow
@pytest.mark.training
def test_a_contender_that_dies_between_two_requests_is_reported():
    with pytest.raises(errors.InputError, match="ended with code -9"):
        with contenders.Contender(make_workload(global_batch_size=8)) as contender:
            assert contender.train(2) > 0
            contender._process.kill()
            contender._process.wait()
            contender.train(2)


@pytest.mark.parametrize(
    ("interpreter", "says"), [("/bin/echo", "its process sent"), ("/bin/false", "code")]
)
def test_a_program_that_is_no_interpreter_is_reported(interpreter, says):
    with pytest.raises(errors.InputError, match=says):
        contenders.Contender(make_workload(contender="torch_ddp"), interpreter)


def test_a_program_that_sends_another_object_is_reported(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho '{\"seconds\": 1}'\n")
    script.chmod(0o700)
    with pytest.raises(errors.InputError, match='its process sent .*"seconds": 1'):
        contenders.Contender(make_workload(contender="torch_ddp"), str(script))


@pytest.mark.slow
@pytest.mark.training
def test_a_batch_larger_than_the_data_is_refused():
    small = make_workload(dataset="digits", global_batch_size=2048)
    with pytest.raises(errors.InputError, match="at most the 1438 training examples"):
        contenders.Contender(small)


@pytest.mark.parametrize(
    "request_sent", [Request(RequestKind.TRAIN, 100), Request(RequestKind.STEP_PARTS)]
)
def test_messages_are_the_same_after_json(request_sent):
    assert Request.from_json(request_sent.to_json()) == request_sent
    parts = StepParts(1e-4, 5e-3, 1e-3, {2**20: 1e-3})
    assert StepParts.from_json(json.loads(messages.to_json(parts))) == parts
    info = ContenderInfo(0.5, num_weights=7, environment={"torch": "2"})
    assert ContenderInfo.from_json(json.loads(messages.to_json(info))) == info
    assert Workload.from_json(make_workload().to_json()) == make_workload()


def test_only_tfmirror_answers_what_the_steps_consist_of():
    class Peer:
        def train(self, num_steps):
            return 2.0 * num_steps

    train, memory = Request(RequestKind.TRAIN, 3), Request(RequestKind.PEAK_BYTES)
    assert contender_process.answer(Peer(), train) == 6.0
    assert contender_process.answer(Peer(), memory) > 2**20
    with pytest.raises(ValueError, match="step_parts is answered by tfmirror only"):
        contender_process.answer(Peer(), Request(RequestKind.STEP_PARTS))


def test_the_pytorch_contender_needs_no_tensorflow():
    """Imports it in an environment without TensorFlow, where torch is a stand-in."""
    program = """
import sys
from unittest import mock
torch = mock.MagicMock()
torch.nn.Module = object
sys.modules.update({"torch": torch, "torch.nn": torch.nn})
sys.modules.update(tensorflow=None, keras=None, tensorflow_datasets=None)
from tfmirror.benchmarking import torch_ddp
"""
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_more_replicas_are_predicted_and_compared_with_measurements():
    settings = benchmark.BenchmarkConfig(
        predict="8", replicas_per_host=8, cores="one_each"
    )
    parts = StepParts(1e-4, 5e-3, 1e-3, {1_000_000: 1e-3, 8_000_000: 8e-3})
    measurements = [
        rounds.Measurement(
            make_workload(
                num_replicas=n, global_batch_size=64 * n, precision=precision
            ),
            (speed,),
            start_seconds=1.0,
            info=ContenderInfo(trace_seconds=1.0, num_weights=250_000),
            step_parts=parts,
        )
        for precision in ("float32", "bfloat16")
        for n, speed in ((1, 9000.0), (2, 12_800.0), (4, 20_000.0))
    ]
    predictions = benchmark.predict(settings, measurements)
    measured = [(p.num_replicas, p.measured_images_per_second) for p in predictions]
    assert measured == [(4, 20_000.0), (8, None)] * 2
    fitted_on = {measurements[1].workload.name, measurements[4].workload.name}
    assert {p.fitted_on for p in predictions} == fitted_on
    # 10 ms per step, of which the ring of two takes 1 ms at 1 GB/s; that of four: 1.5.
    assert predictions[0].images_per_second == pytest.approx(256 / 10.5e-3)
    assert tables.prediction_table(predictions).count("of 20,000 measured") == 2
    settings = dataclasses.replace(settings, predict="")
    assert benchmark.predict(settings, measurements) == []


@pytest.mark.slow
@pytest.mark.training
def test_a_contender_that_fails_says_why():
    bad = make_workload(dataset="synthetics", global_batch_size=8)
    with pytest.raises(errors.InputError, match="can't be measured.*synthetics"):
        contenders.Contender(bad)


def test_the_plot_draws_the_ideal_of_each_series():
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
    assert (code, out) == (2, "") and "torch_ddp runs on CPUs only" in err
    settings = benchmark.BenchmarkConfig(peer="torch_ddp", device_type="cpu")
    benchmark.check_machine(settings)
    assert not benchmark.hardware_grows(settings)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["--gpus=0"],
            "gpus must be comma-separated whole numbers from 1 to 256: got '0'",
        ),
        (["--gpus="], "gpus must be a list of at least one"),
        (["--gpus=1,x"], "got 'x'"),
        (["--model=typo"], "model must be one of cnn, resnet18"),
        (["--precision=float16"], "precision must be one of"),
        (
            ["--peer=jax"],
            "peer must be one of keras_fit, torch_ddp, one_batch, drift_check",
        ),
        (["--peer=torch_ddp"], "needs torch_python"),
        (["--cores=two"], "cores must be one of"),
        (["--seconds=0"], "a finite number above 0"),
        (["--gpus=256", "--cores=one_each"], "needs a core for each replica"),
        (["--plot_file=/nowhere/a.png"], "in an existing folder"),
        (["--plot_file=/tmp"], "a file in an existing folder"),
        (["--global_batch_size="], "global_batch_size must be a list of at least one"),
        (["--microbatches=-1"], "microbatches must be at least 0"),
        (["--gpus=1", "--predict=8"], "needs a measurement of two or more replicas"),
    ],
)
def test_wrong_input_is_one_line(capsys, argv, says):
    code, out, err = call(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and says in err


def test_the_matrix_multiply_peak_counts_the_products_of_all_devices(monkeypatch):
    """Each device multiplies twice per call, 2 x 32^3 operations each, in 0.25 s."""
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
    rate = roofline.matrix_multiply_flops(names, "float32")
    assert len(multiplied) == 2 * len(names)
    assert {device[-5:] for device in multiplied} == set(names)
    assert rate == 6 * 2 * 32**3 / 0.25
