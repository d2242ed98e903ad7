"""Eight logical CPU devices for the whole session, made before TensorFlow starts."""

import os
import pathlib

# On a machine with GPUs the tests mean the same as anywhere else.
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest

from tfmirror.parallel import devices

SHARED_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_configure():
    devices.choose(8, "cpu")


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
