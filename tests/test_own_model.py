"""Models of a user's own are made ready, or one line says why they can't be."""

import keras
import numpy as np
import own_models
import pytest
from helpers import make_strategy

from tfmirror import config, errors, model_source, models
from tfmirror.models import own_model
from tfmirror.parallel import devices
from tfmirror.training import setup

SHAPE = (28, 28, 1)


def prepare(function, **settings):
    """Builds all that a run of the model would train with, on two replicas."""
    settings = config.TrainConfig(gpus=2, device_type="cpu", **settings)
    given = setup.Given(model_source.of_function(function))
    settings = config.dataclasses.replace(settings, model=given.model.name)
    config.check(settings)
    return setup.prepare(*reversed(setup.choose(settings, given)), given=given)


@pytest.mark.parametrize("function", own_models.TRAINABLE)
def test_models_of_all_kinds_are_mirrored(function):
    made = prepare(function)
    assert made.devices.num_replicas == 2
    assert (made.model.input_shape, made.model.output_shape) == (
        (None, *SHAPE),
        (None, 10),
    )
    images = np.random.default_rng(0).uniform(size=(3, *SHAPE)).astype(np.float32)
    keras.utils.set_random_seed(0)
    plain = function(SHAPE, 10)
    plain(images)
    for variable in made.model.variables:
        assert len(made.strategy.experimental_local_results(variable.value)) == 2
    assert [v.shape for v in plain.variables] == [v.shape for v in made.model.variables]
    plain.set_weights(made.model.get_weights())
    np.testing.assert_allclose(made.model(images), plain(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "says"),
    own_models.REFUSED.items(),
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_what_can_not_be_trained_is_refused_in_one_line(function, says):
    with pytest.raises(errors.InputError, match=says) as caught:
        prepare(function)
    assert "\n" not in str(caught.value)


def test_a_model_has_the_same_names_when_it_is_built_again():
    keras.layers.Dense(1)  # which Keras counts
    names = [
        [v.path for v in models.build(source, SHAPE, 10).variables]
        for source in [model_source.of_function(own_models.small)] * 2
    ]
    assert names[0] == names[1]
    assert "sequential/conv2d/kernel" in names[0]
    assert "seed_generator/seed_generator_state" in " ".join(names[0])
    assert keras.layers.Dense(1).name != "dense"  # the user's own are counted as before


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_layers_compute_in_the_precision_of_the_run(precision):
    source = model_source.of_function(own_models.small)
    model = models.build(source, SHAPE, 10, precision=precision)
    assert {layer.compute_dtype for layer in model.layers} == {precision}
    assert {v.dtype for v in model.trainable_variables} == {"float32"}


def test_a_precision_without_effect_is_refused():
    def in_float32(input_shape, num_classes):
        parts = keras.layers.Flatten(), keras.layers.Dense(10, dtype="float32")
        return keras.Sequential([keras.Input(input_shape), *parts])

    with pytest.raises(errors.InputError, match="precision=bfloat16 has no effect.*32"):
        prepare(in_float32, precision="bfloat16")


def test_float16_without_a_loss_scale_is_refused():
    def in_float16(input_shape, num_classes):
        dense = keras.layers.Dense(10, dtype="mixed_float16"), keras.layers.Dense(10)
        return keras.Sequential(
            [keras.Input(input_shape), keras.layers.Flatten(), *dense]
        )

    with pytest.raises(errors.InputError, match="compute in float16: give --precision"):
        prepare(in_float16)


def test_an_initializer_is_refused_which_would_have_no_effect():
    with pytest.raises(errors.InputError, match="init has no effect on model .*small"):
        prepare(own_models.small, init="he")


def test_outputs_are_those_that_are_checked():
    """Not logits that happen to be in [0, 1], as those of weights of zero are."""
    with make_strategy(2).scope():
        model = keras.Sequential(
            [
                keras.Input(SHAPE),
                keras.layers.Flatten(),
                keras.layers.Dense(10, kernel_initializer="zeros"),
            ]
        )
    own_model.check_outputs(model)


@pytest.mark.parametrize("name", ["cnn", "resnet18", "probe"])
def test_the_models_of_this_package_would_pass(name):
    def build(input_shape, num_classes):
        return models.build(name, input_shape, num_classes)

    source = model_source.of_function(build)
    own_model.check_outputs(models.build(source, SHAPE, 10))
    assert devices.count_gpus("cpu") == 0
