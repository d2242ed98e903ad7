"""The models have the chapters' parameters, initializers and precisions."""

import keras
import numpy as np
import pytest

from tfmirror import errors, models
from tfmirror.models import variable_shapes


def test_the_cnn_has_the_chapters_parameters():
    model = models.build("cnn", (28, 28, 1), 10)
    assert [tuple(v.shape) for v in model.trainable_variables] == [
        (3, 3, 1, 20), (20,), (5, 5, 20, 50), (50,), (800, 128), (128,),
        (128, 10), (10,),
    ]  # fmt: skip
    # 9*20+20 + 25*20*50+50 + 800*128+128 + 128*10+10
    assert model.count_params() == 200 + 25_050 + 102_528 + 1_290 == 129_068
    assert model.output_shape == (None, 10)


def test_resnet18_has_the_chapters_parameters():
    """Adds up in x out x k x k + out per convolution, batch norm, and the head."""
    model = models.build("resnet18", (28, 28, 1), 10)
    convolutions = 1 * 64 * 9 + 64
    norms, channels = 64, 64
    for stage, out in enumerate((64, 128, 256, 512)):
        for block in range(2):
            convolutions += channels * out * 9 + out + out * out * 9 + out
            if stage and not block:
                convolutions += channels * out + out  # the shortcut has no batch norm
            channels = out
            norms += 2 * out
    assert norms == 3904
    head = 512 * 10 + 10
    trainable = sum(v.shape.num_elements() for v in model.trainable_variables)
    assert trainable == convolutions + 2 * norms + head
    assert model.count_params() == trainable + 2 * norms == 11_183_626
    assert models.build("resnet18", (32, 32, 3), 7).output_shape == (None, 7)


def test_resnet18_starts_from_small_normal_weights():
    keras.utils.set_random_seed(0)
    model = models.build("resnet18", (28, 28, 1), 10)
    kernels = [
        v.numpy() for v in model.trainable_variables if v.path.endswith("kernel")
    ]
    assert len(kernels) == 1 + 16 + 3 + 1
    for kernel in kernels[1:-1]:
        assert kernel.std() == pytest.approx(0.01, rel=0.05)
        assert abs(kernel.mean()) < 5 * 0.01 / kernel.size**0.5


def kernels_of(model):
    """Returns the values of all kernels."""
    variables = model.trainable_variables
    return [v.numpy() for v in variables if v.path.endswith("kernel")]


@pytest.mark.parametrize("name", models.BUILDERS)
@pytest.mark.parametrize(
    ("init", "deviation"),
    [
        ("normal", lambda fan_in, fan_out: 0.01),
        ("he", lambda fan_in, fan_out: (2 / fan_in) ** 0.5),
        ("glorot", lambda fan_in, fan_out: (2 / (fan_in + fan_out)) ** 0.5),
    ],
)
def test_kernels_have_the_deviation_of_their_initializer(name, init, deviation):
    keras.utils.set_random_seed(0)
    kernels = kernels_of(models.build(name, (28, 28, 1), 10, init=init))
    for kernel in kernels:
        receptive_field = np.prod(kernel.shape[:-2])
        fans = receptive_field * np.array(kernel.shape[-2:])
        tolerance = 0.05 + 2 / kernel.size**0.5
        assert kernel.std() == pytest.approx(deviation(*fans), rel=tolerance)
    assert len({kernel.ravel()[0] for kernel in kernels}) == len(kernels)


@pytest.mark.training
def test_each_model_starts_as_its_chapter_does():
    for name, init in (("cnn", "glorot"), ("resnet18", "normal")):
        keras.utils.set_random_seed(0)
        own = kernels_of(models.build(name, (28, 28, 1), 10))
        keras.utils.set_random_seed(0)
        named = kernels_of(models.build(name, (28, 28, 1), 10, init=init))
        for one, other in zip(own, named, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_arithmetic_has_the_precision_and_variables_are_float32(name, precision):
    model = models.build(name, (28, 28, 1), 10, precision=precision)
    assert {v.dtype for v in model.variables} == {"float32"}
    assert {layer.compute_dtype for layer in model.layers[1:-1]} == {precision}
    assert model.layers[-1].compute_dtype == "float32"
    assert keras.config.dtype_policy().name == "float32"  # as before


def test_the_cnn_takes_other_images_and_refuses_too_small_ones():
    assert models.build("cnn", (32, 32, 3), 7).output_shape == (None, 7)
    assert models.build("cnn", (14, 14, 1), 2).output_shape == (None, 2)
    with pytest.raises(errors.InputError, match="at least 14 pixels .* got 13x20"):
        models.build("cnn", (13, 20, 1), 10)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(errors.InputError, match="model must be one of cnn, .* 'typo'"):
        models.build("typo", (28, 28, 1), 10)
    with pytest.raises(errors.InputError, match="init must be one of .*he.* 'zeros'"):
        models.build("cnn", (28, 28, 1), 10, init="zeros")


@pytest.mark.parametrize("name", models.BUILDERS)
def test_shapes_of_variables_are_known_without_the_variables(name):
    def build():
        return models.build(name, (28, 28, 1), 10)

    found = variable_shapes.variable_shapes(build)
    assert found == [tuple(variable.shape) for variable in build().variables]


def test_shapes_of_variables_take_no_memory():
    """The kernel would take 640 GB."""

    def build():
        return models.build("cnn", (20_000, 20_000, 1), 10)

    assert (1_248_500_450, 128) in variable_shapes.variable_shapes(build)


def test_an_error_while_shapes_are_found_is_passed_on():
    def build():
        raise KeyError("as it was")

    with pytest.raises(KeyError, match="as it was"):
        variable_shapes.variable_shapes(build)
    assert keras.Variable(3.0).numpy() == 3.0  # the scope has ended
