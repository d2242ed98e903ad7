"""Fast ways reach every layer, and leave those alone that do something else."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfmirror.models import (
    fused_batch_norm,
    kernel_gradient,
    layer_override,
    nested_layers,
)

layers = keras.layers


class Block(layers.Layer):
    """Holds a layer, and others in a list and in a dictionary."""

    def __init__(self, **options):
        super().__init__(**options)
        self.norm = layers.BatchNormalization(name="as_an_attribute")
        self.several = [layers.ReLU(name="in_a_list")]
        self.named = {"last": layers.Dropout(0.5, name="in_a_dictionary")}

    def call(self, x, training=False):
        x = self.norm(x, training=training)
        return self.named["last"](self.several[0](x), training=training)


def build():
    """Returns a model that holds a model, a wrapper and a layer of one's own."""
    inputs = keras.Input((4, 4, 3))
    convolution = layers.Conv2D(3, 3, padding="same", name="in_a_model")
    inner = keras.Model(inputs, layers.ReLU()(convolution(inputs)), name="inner")
    wrapped = layers.SpectralNormalization(layers.Conv2D(3, 3, name="in_a_wrapper"))
    return keras.Sequential(
        [keras.Input((4, 4, 3)), inner, Block(name="block"), wrapped]
    )


def test_all_layers_are_found_however_deep():
    found = nested_layers.all_layers(build())
    assert len(found) == len({id(layer) for layer in found})
    assert {layer.name for layer in found} >= {
        "inner", "in_a_model", "block", "as_an_attribute", "in_a_list",
        "in_a_dictionary", "in_a_wrapper",
    }  # fmt: skip


def test_layers_have_the_paths_of_what_holds_them():
    model = build()
    found = nested_layers.layers_by_path(model)
    assert set(found) >= {
        "inner", "inner/in_a_model", "block", "block/as_an_attribute",
        "block/in_a_list", "block/in_a_dictionary",
        f"{model.layers[-1].name}/in_a_wrapper",
    }  # fmt: skip
    assert found["inner/in_a_model"] is model.layers[0].layers[1]
    by_id = {id(layer) for layer in nested_layers.all_layers(model)}
    assert {id(layer) for layer in found.values()} == by_id and len(found) == len(by_id)


def test_the_fused_kernel_computes_nested_layers():
    model = build()
    model.build((None, 4, 4, 3))
    fused_batch_norm.fuse(model)
    norms = [
        layer
        for layer in nested_layers.all_layers(model)
        if isinstance(layer, layers.BatchNormalization)
    ]
    assert [("call" in vars(layer)) for layer in norms] == [True]


class Doubled(layers.BatchNormalization):
    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs, training=training, mask=mask)


class Standardized(layers.Conv2D):
    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel - tf.reduce_mean(kernel))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "make_layer",
    [Doubled, lambda **options: Standardized(3, 3, padding="same", **options)],
    ids=["batch norm", "convolution"],
)
def test_what_a_subclass_adds_is_computed(make_layer, policy):
    images = np.random.default_rng(0).normal(size=(5, 4, 4, 3)).astype(np.float32)
    outputs = []
    for change in (lambda model: None, fused_batch_norm.fuse):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4, 4, 3)), make_layer(dtype=policy)])
        change(model)
        if change is fused_batch_norm.fuse:
            kernel_gradient.use_matrix_products(model)
        with layer_override.faster_calls():
            outputs.append(np.float32(model(images, training=True)))
    np.testing.assert_array_equal(*outputs)
