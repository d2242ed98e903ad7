"""The command shows what the chapter's notebook prints, as text and as JSON."""

import json

import numpy as np
import own_models
import pytest
from helpers import make_call

from tfmirror import flags, inspect_replicas, models
from tfmirror.data import datasets
from tfmirror.models import probe

pytestmark = pytest.mark.training


call = make_call(
    inspect_replicas.main, inspect_replicas.InspectConfig, inspect_replicas.check
)


def show(capsys, *argv):
    """Returns what the command prints."""
    code, out, err = call(capsys, "--gpus=2", *argv)
    assert (code, err) == (0, "")
    return out


def inspected(*argv):
    """Returns the view that the command would show."""
    settings = flags.parse(["--gpus=2", *argv], inspect_replicas.InspectConfig)
    return inspect_replicas.inspect(settings)[0]


@pytest.fixture
def report(capsys):
    return json.loads(show(capsys, "--json"))


def test_json_has_every_replicas_part(report):
    assert report["stand_in_devices"] is True and report["per_replica_batch_sizes"] == [
        2,
        2,
    ]
    assert np.shape(report["logits"]) == (2, 2, 10) and np.shape(report["labels"]) == (
        2,
        2,
    )
    assert (report["variable"], report["channel"]) == ("cnn/conv1/kernel", 0)
    for key in ("weights", "local_gradients", "aggregated_gradients"):
        assert np.shape(report[key]) == (2, 3, 3, 1)


def test_weights_are_equal_local_gradients_differ_and_add_up(report):
    weights, local, aggregated = (
        np.array(report[key])
        for key in ("weights", "local_gradients", "aggregated_gradients")
    )
    assert (weights[0] == weights[1]).all()
    assert (aggregated[0] == aggregated[1]).all()
    assert np.abs(local[0] - local[1]).max() > 1e-3
    np.testing.assert_allclose(local.sum(axis=0), aggregated[0], atol=1e-8)
    np.testing.assert_allclose(
        aggregated[0], report["single_device_gradient"], atol=1e-6
    )
    differences = report["largest_differences"]
    assert differences["weights_between_replicas"] == 0
    assert differences["aggregated_gradients_between_replicas"] == 0
    assert 0 < differences["aggregated_gradient_to_single_device"] < 1e-6


def test_text_has_a_block_for_each_thing_and_replica(capsys):
    text = show(capsys)
    for number in ("CPU:0", "CPU:1"):
        for thing in ("weights of", "local gradient of", "aggregated gradient of"):
            assert f"== {thing} cnn/conv1/kernel, channel 0, on {number} ==\n[[" in text
        assert f"== logits of 2 examples on {number}, labels [" in text
    assert (
        "== gradient of cnn/conv1/kernel, channel 0, whole batch on one device =="
        in text
    )
    assert "  weights between replicas               0 (the same bits)\n" in text
    assert "devices: CPU:0, CPU:1 (logical CPU devices stand in" in text


def test_the_golden_block_of_an_array():
    block = inspect_replicas._block(
        "title", np.array([[[0.5], [-1e-9]], [[2], [0.125]]])
    )
    assert block == (
        "== title ==\n[[ 0.50000000 -0.00000000]\n [ 2.00000000  0.12500000]]"
    )


@pytest.mark.parametrize(
    ("layer", "channel", "variable", "shape"),
    [
        ("conv2", 49, "cnn/conv2/kernel", (2, 5, 5, 20)),
        ("conv2/bias", 3, "cnn/conv2/bias", (2,)),
        ("cnn/logits/kernel", 9, "cnn/logits/kernel", (2, 128)),
    ],
)
def test_layer_and_channel_choose_what_is_shown(
    capsys, layer, channel, variable, shape
):
    report = json.loads(
        show(capsys, "--json", f"--layer={layer}", f"--channel={channel}")
    )
    assert report["variable"] == variable and np.shape(report["weights"]) == shape
    whole = inspected(f"--layer={layer}").variable(variable)
    for key in (
        "weights",
        "local_gradients",
        "aggregated_gradients",
        "single_device_gradient",
    ):
        expected = getattr(whole, key)[..., channel]
        np.testing.assert_array_equal(np.float32(report[key]), expected)
        if key != "weights":  # biases begin with zeros
            assert not np.array_equal(expected, getattr(whole, key)[..., 0])
    show(capsys, f"--layer={layer}", f"--channel={channel}", "--num_examples=1")


@pytest.mark.parametrize(
    ("function", "variable"),
    [("small", "sequential/conv2d/kernel"), ("subclass", "subclass/dense/kernel")],
)
def test_a_model_of_the_users_own_is_shown(capsys, function, variable):
    model = f"--model={own_models.__file__}:{function}"
    report = json.loads(show(capsys, "--json", model))
    assert report["variable"] == variable
    weights = np.array(report["weights"])
    assert len(weights) == 2 and (weights[0] == weights[1]).all()
    code, _, err = call(capsys, f"--model={own_models.__file__}:softmax")
    assert code == 2 and "ends in softmax" in err


@pytest.mark.slow
def test_resnet18_shows_four_random_observations_of_the_second_chapter(capsys):
    report = json.loads(show(capsys, "--model=resnet18", "--json"))
    assert np.shape(report["logits"]) == (2, 2, 10)
    assert report["variable"] == "stem_conv/kernel"
    weights = np.array(report["weights"])
    assert weights.shape == (2, 3, 3, 1) and (weights[0] == weights[1]).all()
    assert 0 < np.abs(weights).max() < 0.05
    text = show(capsys, "--model=resnet18")
    assert "e-07" in text  # logits are tiny before training
    assert "Batch norm takes its statistics" in text
    assert "Batch norm" not in show(capsys)


def test_a_model_without_a_dataset_of_its_own_is_shown_on_the_digits(monkeypatch):
    monkeypatch.setitem(models.BUILDERS, "new", probe.build)
    settings = inspect_replicas.InspectConfig(model="new", gpus=2, num_examples=3)
    view, _ = inspect_replicas.inspect(settings)
    labels = datasets.load("digits").train.labels[:6]
    np.testing.assert_array_equal(np.concatenate(view.labels), labels)
    assert len(view.labels) == 2
