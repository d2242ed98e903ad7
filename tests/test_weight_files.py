"""Files of weights are read by the names of layers; hostile ones are one line."""

import collections
import os

import h5py
import keras
import numpy as np
import pytest
from helpers import faults

from tfmirror.models import weight_files

layers = keras.layers


class Block(layers.Layer):
    """Holds a layer and a model, and has two weights of the same name."""

    def __init__(self, **options):
        super().__init__(**options)
        self.several = [layers.Dense(3, name="dense")]
        self.inner = keras.Sequential([layers.Dense(3, name="deep")], name="inner")

    def build(self, shape):
        self.kept = self.add_weight((2,), name="g", trainable=False)
        self.trained = self.add_weight((2, 1), name="g")
        self.several[0].build(shape)
        self.inner.build(shape)

    def call(self, x):
        return self.inner(self.several[0](x)) * self.trained[0]


def build():
    """Returns a model of nested and repeated layers, with weights of no two values."""
    inner = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(3, name="first"),
            layers.Dropout(0.5),
            layers.BatchNormalization(name="norm"),
        ],
        name="backbone",
    )
    many = [layers.Dense(3, name=f"number{k}") for k in range(12)]  # dense_10, dense_2
    model = keras.Sequential(
        [keras.Input((3,)), inner, *many, Block(name="block"), layers.Dense(2)],
        name="outer",
    )
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(the model, the path of its weights)."""
    model, path = build(), tmp_path_factory.mktemp("weights") / "a.weights.h5"
    model.save_weights(path)
    return model, path


def test_each_layer_has_its_own_arrays_in_the_order_of_its_weights(written):
    model, path = written
    saved = weight_files.read_weights(path)
    block, backbone = model.get_layer("block"), model.get_layer("backbone")
    expected = {
        "backbone/first": backbone.get_layer("first").weights,
        "backbone/norm": backbone.get_layer("norm").weights,
        **{f"number{k}": model.get_layer(f"number{k}").weights for k in range(12)},
        "block": [block.trained, block.kept],
        "block/dense": block.several[0].weights,
        "block/inner/deep": block.inner.get_layer("deep").weights,
        model.layers[-1].name: model.layers[-1].weights,
    }
    assert saved.model_name == "outer" and not saved.has_names
    assert set(saved.layers) == set(expected)
    for layer, weights in expected.items():
        assert list(saved.layers[layer]) == [str(k) for k in range(len(weights))]
        for value, weight in zip(saved.layers[layer].values(), weights, strict=True):
            np.testing.assert_array_equal(value, weight.numpy())


def test_the_optimizer_of_a_compiled_model_is_passed_over(tmp_path):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="logits")])
    model.compile("adam", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    model.save_weights(tmp_path / "a.weights.h5")
    assert list(weight_files.read_weights(tmp_path / "a.weights.h5").layers) == [
        "logits"
    ]


def change(path, target, what):
    """Copies a file of weights and lets `what` change the copy, open in h5py."""
    target.write_bytes(path.read_bytes())
    with h5py.File(target, "r+") as weights:
        what(weights)
    return target


def add_unwritten(weights):
    weights.create_dataset("layers/dense/vars/2", (2**40,), "float32")


def add_packed(weights):
    weights.create_dataset("vars/0", (2**20,), "float32", compression="gzip")


def add_external(weights):
    weights.create_dataset("vars/0", (8,), "uint8", external=[("/etc/passwd", 0, 8)])


def add_array_elsewhere(weights):
    weights["layers/dense/kernel"] = np.zeros(3)


def add_optimizers_array_of_a_layer(weights):
    weights["layers/dense/vars/x"] = np.zeros(3)


def take_a_number_away(weights):
    del weights["layers/dense/vars/0"]


def take_names_away(weights):
    del weights["vars"]


def take_the_name_of_a_layer_away(weights):
    del weights["layers/dense/vars"].attrs["name"]


def give_two_layers_one_name(weights):
    weights["layers/dense/vars"].attrs["name"] = "number3"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (add_unwritten, "announces 4,398,046,511,104 bytes, but has fewer"),
        (add_packed, "vars/0 is not stored plainly"),
        (add_external, "vars/0 is not stored plainly"),
        (add_array_elsewhere, "layers/dense/kernel is no array of a layer's variable"),
        (add_optimizers_array_of_a_layer, "vars/x is no array of a layer's variable"),
        (take_a_number_away, "number0 in it lacks a variable"),
        (take_names_away, "it has no names of layers"),
        (take_the_name_of_a_layer_away, "the layer /layers/dense in it has no name"),
        (give_two_layers_one_name, "two layers in it are called number3"),
    ],
)
def test_a_crafted_file_is_refused(written, tmp_path, what, says):
    path = change(written[1], tmp_path / "b.weights.h5", what)
    with pytest.raises(weight_files.UnusableFileError, match=says) as error:
        weight_files.read_weights(path)
    assert "\n" not in str(error.value)


def test_links_are_not_followed(written, tmp_path):
    """Links to other files and within the file, and a group that holds itself."""

    def link(weights):
        weights["layers/other"] = h5py.ExternalLink(str(written[1]), "/layers/dense")
        weights["layers/same"] = h5py.SoftLink("/layers/dense")
        weights["layers/dense/vars/loop"] = weights["layers"]

    path = change(written[1], tmp_path / "b.weights.h5", link)
    saved, expected = map(weight_files.read_weights, (path, written[1]))
    assert saved.layers.keys() == expected.layers.keys()


def test_arrays_that_share_their_bytes_take_no_memory(tmp_path):
    """Each could be as large as the file, and there may be thousands."""
    path, size = tmp_path / "a.weights.h5", 4 * 4096
    with h5py.File(path, "w") as weights:
        weights.create_group("vars").attrs["name"] = "model"
        weights["vars/0"] = np.full(4096, 5, np.float32)
        for k in range(1, 20):
            weights.create_dataset(f"vars/{k}", (4096,), np.float32)  # has no bytes yet
        address = weights["vars/0"].id.get_offset()
    no_bytes, of_first = (
        n.to_bytes(8, "little") + size.to_bytes(8, "little")
        for n in (2**64 - 1, address)
    )
    content = path.read_bytes()
    assert content.count(no_bytes) == 19
    path.write_bytes(content.replace(no_bytes, of_first))
    with h5py.File(path, "r") as weights:
        assert (weights["vars/19"][()] == 5).all()
    with pytest.raises(weight_files.UnusableFileError, match="it announces 327,680 by"):
        weight_files.read_weights(path)


def write_small(path, name):
    """Writes the weights of a model of one layer and batch norm."""
    inner = [layers.Dense(2, name=name), layers.BatchNormalization(name="norm")]
    keras.Sequential([keras.Input((3,)), *inner]).save_weights(path)
    return path.read_bytes()


def test_every_fault_is_recognised_or_leaves_arrays_of_the_same_shapes(
    tmp_path, record_property
):
    """The file has no checksum: a bit that flips in a value is not seen."""
    path, count = tmp_path / "a.weights.h5", collections.Counter()
    content, other = (write_small(path, name) for name in ("first", "other"))
    shapes = {"first": [(3, 2), (2,)], "norm": [(2,)] * 4}
    for what, damaged in faults(content, other):
        path.write_bytes(damaged)
        try:
            saved = weight_files.read_weights(path)
        except weight_files.UnusableFileError as error:
            assert "\n" not in str(error) and str(error), what
            count["recognised"] += 1
            continue
        found = {k: [v.shape for v in a.values()] for k, a in saved.layers.items()}
        assert (found == shapes) != (what == "another file's"), what
        count["harmless"] += 1
    record_property("shown", f"76 faults of a file of weights: {dict(count)}")
    assert count["recognised"] >= 25


@pytest.mark.parametrize("kind", ["a pipe", "a file larger than the memory", "none"])
@pytest.mark.parametrize("read", [weight_files.read_weights, weight_files.load_model])
def test_what_is_no_file_of_weights_is_not_read(tmp_path, kind, read):
    path = tmp_path / "a.weights.h5"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind != "none":
        path.touch()
        os.truncate(path, 2**43)
    says = "must be a regular|must have at most|No such file"
    with pytest.raises(weight_files.UnusableFileError, match=says):
        read(path)
