"""Eight logical CPU devices for the whole session, made before TensorFlow starts."""

import os
import pathlib

# On a machine with GPUs the tests mean the same as anywhere else.
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf

from tfmirror import config
from tfmirror.parallel import devices
from tfmirror.training import run

SHARED_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_configure():
    devices.set_up(8, "cpu")
    tf.config.list_logical_devices()  # starts TensorFlow, with its usual threads
    tf.get_logger().setLevel("ERROR")  # as the commands do


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items):
    """Marks what needs a finished run: it must be trained first."""
    for item in items:
        if "finished_run" in item.fixturenames:
            item.add_marker(pytest.mark.training)


def pytest_terminal_summary(terminalreporter):
    """Shows what tests counted, which processes of their own could not print."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "shown":
                terminalreporter.write_line(text)


@pytest.fixture
def mnist_folder():
    """Folder with the real MNIST; skips where it isn't."""
    return _real_data("mnist")


@pytest.fixture
def fashion_mnist_folder():
    """Folder with the real Fashion-MNIST; skips where it isn't."""
    return _real_data("fashion_mnist")


def _real_data(name):
    folder = SHARED_DATA / name
    if not folder.is_dir():
        pytest.skip(f"no real {name} at {folder}")
    return str(folder)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """Run directory of a short run on two replicas, with averaged weights."""
    folder = tmp_path_factory.mktemp("finished") / "a run, ü"
    settings = config.TrainConfig(
        gpus=2,
        epochs=2,
        limit_train_examples=300,
        limit_eval_examples=75,
        learning_rate=0.05,
        ema_decay=0.5,
        workdir=str(folder),
    )
    run.train(settings)
    return folder
