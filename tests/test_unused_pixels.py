"""Cutting off pixels on which no logit depends changes no logit and no gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfmirror import models
from tfmirror.models import layer_override, unused_pixels

LAYERS = keras.layers


@layer_override.faster_calls()
def results(model, images):
    """Returns the logits, and the gradients of their sum with random weights."""
    with tf.GradientTape() as tape:
        tape.watch(images)
        logits = model(images)
        factors = tf.random.stateless_normal(logits.shape, [1, 2])
        scalar = tf.reduce_sum(tf.cast(logits, tf.float32) * factors)
    found = tape.gradient(scalar, [images, *model.trainable_variables])
    return [x.numpy() for x in (logits, *found)]


def cut_sides(model):
    """Returns the size to which the first layer cuts its inputs, which must be less."""
    first = model.layers[0]
    taken = unused_pixels.needed_regions(model)[0].inputs
    assert "call" in vars(first) and taken != tuple(first.input.shape[1:3])
    return taken


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "taken"),
    [((28, 28, 1), (26, 26)), ((16, 19, 3), (14, 18)), ((32, 28, 3), (30, 26))],
)
def test_logits_and_gradients_of_the_cnn_are_those_of_its_layers(
    shape, taken, precision
):
    model = models.build("cnn", shape, 10, precision=precision)
    images = tf.random.stateless_uniform([6, *shape], [3, 4])
    found = results(model, images)
    assert cut_sides(model) == taken
    layer_override.restore_call(model.layers[0])
    logits, of_images, *of_weights = results(model, images)
    np.testing.assert_array_equal(found[0], logits)
    np.testing.assert_array_equal(found[1], of_images)
    assert not of_images[:, taken[0] :].any() and not of_images[:, :, taken[1] :].any()
    assert of_images[:, taken[0] - 1].any() and of_images[:, :, taken[1] - 1].any()
    atol = 1e-5 if precision == "float32" else 2e-2
    for one, other in zip(of_weights, found[2:], strict=True):
        np.testing.assert_allclose(other, one, atol=atol * np.abs(one).max())


def test_convolutions_and_pools_of_all_kinds_are_supported():
    model = keras.Sequential(
        [
            keras.Input((31, 40, 2)),
            LAYERS.Conv2D(3, (3, 2), strides=(2, 1), activation="relu"),
            LAYERS.Conv2D(3, 3, dilation_rate=(1, 2)),
            LAYERS.MaxPooling2D((2, 3), strides=(3, 2)),
            LAYERS.Flatten(),
            LAYERS.Dense(4),
        ]
    )
    # 31 -> 15 -> 13 -> 4, of which 4 need 3*3+2 = 11, 13, 12*2+3 = 27;
    # 40 -> 39 -> 35 -> 17, of which 17 need 16*2+3 = 35, 39, 40.
    images = tf.random.stateless_uniform([5, 31, 40, 2], [5, 6])
    expected = results(model, images)
    unused_pixels.crop_inputs(model)
    assert cut_sides(model) == (27, 40)
    assert [region.outputs for region in unused_pixels.needed_regions(model)] == [
        (13, 39),
        (11, 35),
        (4, 17),
    ]
    for one, other in zip(expected, results(model, images), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5 * np.abs(one).max())


NEED_ALL = {
    "statistics of every pixel": LAYERS.BatchNormalization,
    "masks that depend on the shape": lambda: LAYERS.Dropout(0.5),
    "same": lambda: LAYERS.Conv2D(2, 3, padding="same"),
    "a pool, same": lambda: LAYERS.MaxPooling2D(2, strides=1, padding="same"),
    "a class of its own": lambda: type("Own", (LAYERS.Conv2D,), {})(2, 3),
    "regularized": lambda: LAYERS.Conv2D(2, 3, activity_regularizer="l2"),
    "any function": lambda: LAYERS.Conv2D(2, 3, activation=tf.nn.softmax),
}


@pytest.mark.parametrize("make_layer", NEED_ALL.values(), ids=NEED_ALL)
def test_layers_that_may_use_every_pixel_get_all(make_layer):
    """The pool ignores the last row and column of the layer before it."""

    def make(*between):
        layers = [LAYERS.Conv2D(2, 3), *between, LAYERS.MaxPooling2D(3, strides=2)]
        return keras.Sequential([keras.Input((8, 8, 1)), *layers, LAYERS.Flatten()])

    model, without = make(make_layer()), make()
    unused_pixels.crop_inputs(model)
    assert not any("call" in vars(layer) for layer in model.layers)
    unused_pixels.crop_inputs(without)
    assert cut_sides(without) == (7, 7)


@pytest.mark.parametrize("name", ["probe", "resnet18"])
def test_models_that_need_all_pixels_are_left_unchanged(name):
    model = models.build(name, (28, 28, 1), 10)
    convolutions = [x for x in model.layers if isinstance(x, LAYERS.Conv2D)]
    assert convolutions
    assert not any("call" in vars(layer) for layer in convolutions)


def test_images_of_another_size_are_refused_and_not_cut():
    model = models.build("cnn", (28, 28, 1), 10)
    with pytest.raises(ValueError, match=r"conv1 takes images of \(28, 28\): got"):
        with layer_override.faster_calls():
            model(tf.zeros([1, 32, 32, 1]))


def test_a_second_model_gets_the_outputs_that_the_layers_declare():
    model = models.build("cnn", (28, 28, 1), 10)
    layers = [model.get_layer(name) for name in ("conv1", "conv2")]
    features = keras.Model(model.inputs, [layer.output for layer in layers])
    images = tf.random.stateless_uniform([2, 28, 28, 1], [7, 8])
    for found, layer in zip(features(images), layers, strict=True):
        assert found.shape[1:] == layer.output.shape[1:]
    with layer_override.faster_calls():  # which it does for a reason
        assert features(images)[0].shape[1:3] == (24, 24)


def test_inputs_that_strides_skip_and_images_of_any_size_are_not_cut():
    strided = keras.Sequential([keras.Input((8, 8, 1)), LAYERS.Conv2D(2, 3, strides=2)])
    of_any_size = keras.Sequential(
        [keras.Input((None, None, 1)), LAYERS.Conv2D(2, 3), LAYERS.MaxPooling2D(2)]
    )
    for model in (strided, of_any_size):
        unused_pixels.crop_inputs(model)
        assert "call" not in vars(model.layers[0])
