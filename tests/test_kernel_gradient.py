"""A kernel's gradient as matrix products equals TensorFlow's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfmirror import hardware, models
from tfmirror.models import kernel_gradient, layer_override


def gradients(convolve, images, kernel):
    """Returns the outputs, and the gradients of their sum with random weights."""
    with tf.GradientTape() as tape:
        tape.watch([images, kernel])
        outputs = convolve(images, kernel)
        factors = tf.random.stateless_normal(outputs.shape, [1, 2], dtype=tf.float64)
        scalar = tf.reduce_sum(outputs * factors)
    return [outputs, *tape.gradient(scalar, [images, kernel])]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("sides", [(3, 3), (1, 1), (5, 2)])
@pytest.mark.parametrize("shape", [(7, 7), (4, 9), (1, 2)])
def test_outputs_and_gradients_are_tensorflows_own(stride, sides, shape):
    images = tf.random.stateless_normal([3, *shape, 4], [3, 4], dtype=tf.float64)
    kernel = tf.random.stateless_normal([*sides, 4, 5], [5, 6], dtype=tf.float64)

    def own(images, kernel):
        return tf.nn.conv2d(images, kernel, stride, "SAME")

    def products(images, kernel):
        return kernel_gradient.convolve(images, kernel, stride)

    expected = gradients(own, images, kernel)
    found = gradients(products, images, kernel)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("flag", "stages"),
    [("amx_bf16", ("stage2", "stage3", "stage4")), ("avx512f", ("stage3", "stage4"))],
)
def test_it_is_used_in_the_layers_that_gain_and_in_no_others(
    tmp_path, monkeypatch, flag, stages
):
    (tmp_path / "cpuinfo").write_text(f"model name: A\nflags: fpu {flag}\n")
    monkeypatch.setattr(hardware, "CPUINFO", tmp_path / "cpuinfo")
    model = models.build("resnet18", (28, 28, 1), 10, precision="bfloat16")
    kernel_gradient.use_matrix_products(model)
    overridden = {
        layer.name
        for layer in model.layers
        if isinstance(layer, keras.layers.Conv2D) and "call" in vars(layer)
    }
    assert len(overridden) == len(stages) * 5  # of 14x14, 7x7, 4x4, shortcuts included
    assert all(name.startswith(stages) for name in overridden)
    model = models.build("resnet18", (28, 28, 1), 10)  # float32
    kernel_gradient.use_matrix_products(model)
    convolutions = [x for x in model.layers if isinstance(x, keras.layers.Conv2D)]
    assert not any("call" in vars(layer) for layer in convolutions)


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("use_bias", [True, False])
def test_a_layer_that_uses_it_gives_the_same_results(activation, use_bias):
    layer = keras.layers.Conv2D(
        6,
        3,
        2,
        "same",
        activation=activation,
        use_bias=use_bias,
        bias_initializer="ones",
        dtype="mixed_bfloat16",
    )
    model = keras.Sequential([keras.Input((9, 9, 4)), layer])
    images = tf.random.stateless_normal([5, 9, 9, 4], [1, 2])

    @layer_override.faster_calls()
    def results():
        with tf.GradientTape() as tape:
            scalar = tf.reduce_sum(tf.cast(model(images), tf.float32) ** 2)
        found = tape.gradient(scalar, model.trainable_variables)
        return [scalar.numpy(), *(g.numpy() for g in found)]

    expected = results()
    kernel_gradient.use_matrix_products(model)
    assert "call" in vars(layer)
    for one, other in zip(expected, results(), strict=True):
        np.testing.assert_allclose(other, one, atol=4e-2 * np.abs(one).max())
