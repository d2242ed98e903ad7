"""Examples are held once, wherever their arrays come from."""

import gc

import numpy as np
import pytest

from tfmirror.data import datasets
from tfmirror.data.examples import Examples


def address(array):
    """Returns the address of the first byte of an array or tensor."""
    return np.asarray(memoryview(array)).__array_interface__["data"][0]


def make_arrays():
    """Returns arrays of images of several kinds, by name."""
    images = np.random.RandomState(0).randint(0, 256, (6, 4, 3, 1)).astype(np.uint8)
    memory = np.zeros(images.nbytes + 1, np.uint8)
    odd = memory[1:].reshape(images.shape)
    odd[...] = images
    return {
        "usual": images,
        "at an odd address": odd,
        "not contiguous": images.transpose(0, 2, 1, 3),
        "read-only": np.frombuffer(images.tobytes(), np.uint8).reshape(images.shape),
        "empty": images[:0],
    }


@pytest.mark.parametrize("kind", make_arrays())
def test_variables_have_the_values_of_any_array_on_the_host(kind):
    images = make_arrays()[kind]
    labels = np.arange(len(images), dtype=np.int32)
    examples = Examples(images, labels)
    for variable, array, held in zip(
        examples.variables(),
        (images, labels),
        (examples.images, examples.labels),
        strict=True,
    ):
        assert "CPU:0" in variable.device
        np.testing.assert_array_equal(variable, array)
        np.testing.assert_array_equal(held, array)
        assert (held.dtype, held.shape) == (array.dtype, array.shape)


def test_arrays_and_variables_are_the_same_memory():
    examples = datasets.load("digits").train
    first, again = examples.variables(), examples.variables()
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert address(examples.images) == address(first[0].value())
    assert address(examples.labels) == address(first[1].value())


def test_arrays_outlive_their_variables():
    examples = Examples(*(np.arange(4000, dtype=d) for d in (np.uint8, np.int32)))
    examples.variables()
    images, labels = examples.images, examples.labels
    del examples
    gc.collect()
    others = [np.full(4000, 7, np.int32) for _ in range(100)]  # would take the memory
    assert (images == np.arange(4000).astype(np.uint8)).all() and len(others) == 100
    assert (labels == np.arange(4000)).all()
