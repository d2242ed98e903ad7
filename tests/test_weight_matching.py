"""Weights go to the variables of their names, or it is said what does not fit."""

import keras
import numpy as np
import pytest

from tfmirror.models import layer_weights, weight_files, weight_matching

layers = keras.layers


def backbone(name="backbone", width=4):
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(width, 3, name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.5, name="dropout"),
            layers.GlobalAveragePooling2D(),
        ],
        name=name,
    )


def whole(num_classes=3, head="logits", name="outer", **options):
    """Returns a model of a model and a layer; weights of no two values."""
    logits = layers.Dense(num_classes, name=head)
    return drawn(
        keras.Sequential(
            [keras.Input((6, 6, 1)), backbone(**options), logits], name=name
        )
    )


def drawn(model):
    rng = np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(rng.uniform(1, 2, variable.shape))
    return model


def through_a_file(model, folder):
    model.save_weights(folder / "a.weights.h5")
    return weight_files.read_weights(folder / "a.weights.h5")


def assign(found):
    assert found.problems() == ()
    for variable, value in found.taken.values():
        variable.assign(value)


NAMES = (
    "backbone/conv/kernel", "backbone/conv/bias", "backbone/norm/gamma",
    "backbone/norm/beta", "backbone/norm/moving_mean", "backbone/norm/moving_variance",
    "logits/kernel", "logits/bias",
)  # fmt: skip


@pytest.mark.parametrize("from_file", [False, True])
def test_all_weights_are_taken_and_no_seed(tmp_path, from_file):
    source = whole()
    saved = layer_weights.saved_weights(source)
    if from_file:
        saved = through_a_file(source, tmp_path)
    model = whole(name="of_another_name")
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]
    before = [seed.numpy() for seed in seeds]
    assert len(seeds) == 1
    for variable in model.weights:
        variable.assign(variable * 0)
    found = weight_matching.match(saved, model)
    assert tuple(found.taken) == NAMES
    assign(found)
    for mine, theirs in zip(model.weights, source.weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    np.testing.assert_array_equal(seeds[0].numpy(), before[0])


@pytest.mark.parametrize("from_file", [False, True])
def test_weights_of_a_model_fit_where_it_is_held_under_its_name(tmp_path, from_file):
    source = drawn(backbone())
    saved = layer_weights.saved_weights(source)
    if from_file:
        saved = through_a_file(source, tmp_path)
    found = weight_matching.match(saved, whole(), new_head=True)
    assert found.problems() == () and found.new_head == "logits"
    assert tuple(found.taken) == NAMES[:6]
    found = weight_matching.match(saved, whole())
    assert found.problems() == ("not there: logits/kernel, logits/bias",)
    # Under another name they could be anything.
    other = drawn(backbone(name="other"))
    found = weight_matching.match(layer_weights.saved_weights(other), whole())
    assert len(found.missing) == 8 and len(found.foreign) == 6


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize(
    ("source", "new_head", "problems"),
    [
        (
            lambda: whole(num_classes=5),
            False,
            "of another shape: logits/kernel float32 [4, 5] there, float32 [4, 3] here,"
            " logits/bias float32 [5] there, float32 [3] here",
        ),
        (lambda: whole(num_classes=5), True, ""),
        (whole, True, ""),  # also if they would fit
        (lambda: whole(head="predictions"), True, ""),
        (
            lambda: whole(head="predictions"),
            False,
            "not there: logits/kernel, logits/bias; "
            "not in the model: predictions/kernel, predictions/bias",
        ),
        (
            lambda: whole(width=2),
            True,
            "of another shape: "
            "backbone/conv/kernel float32 [3, 3, 1, 2] there, float32 [3, 3, 1, 4] here"
            + "".join(
                f", backbone/{name} float32 [2] there, float32 [4] here"
                for name in "conv/bias norm/gamma norm/beta norm/moving_mean "
                "norm/moving_variance".split()
            ),
        ),
    ],
)
def test_what_does_not_fit_is_listed(tmp_path, source, new_head, problems, from_file):
    saved = layer_weights.saved_weights(source())
    if from_file:
        saved = through_a_file(source(), tmp_path)
        problems = problems.replace("predictions/kernel", "predictions/0")
        problems = problems.replace("predictions/bias", "predictions/1")
    found = weight_matching.match(saved, whole(), new_head=new_head)
    assert "; ".join(found.problems()) == problems
    assert found.new_head == ("logits" if new_head else "")
    assert not (new_head and "logits/kernel" in found.taken)


def test_a_layer_too_many_is_no_head_if_the_head_is_there():
    """Or a part of the model would be left out in silence."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(3, name="logits")])
    other = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(3, name="hidden"),
            layers.Dense(3, name="logits"),
        ]
    )
    saved = layer_weights.saved_weights(other)
    found = weight_matching.match(saved, model, new_head=True)
    assert found.problems() == ("not in the model: hidden/kernel, hidden/bias",)


def test_without_names_a_layer_of_another_number_of_weights_does_not_fit(tmp_path):
    """Its first weights could be anything: here beta where there is gamma."""

    def build(scale):
        norm = layers.BatchNormalization(scale=scale, name="norm")
        return keras.Sequential([keras.Input((3,)), norm, layers.Dense(2, name="d")])

    saved = through_a_file(build(scale=False), tmp_path)
    found = weight_matching.match(saved, build(scale=True))
    assert found.missing == tuple(
        f"norm/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    assert found.foreign == ("norm/0", "norm/1", "norm/2")


def test_other_dtypes_do_not_fit():
    policy = keras.DTypePolicy("float16")
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="d")])
    half = keras.Sequential(
        [keras.Input((3,)), layers.Dense(2, name="d", dtype=policy)]
    )
    found = weight_matching.match(layer_weights.saved_weights(half), model)
    (problem,) = found.problems()
    assert "d/kernel float16 [3, 2] there, float32 [3, 2] here" in problem


def test_long_lists_are_cut():
    many = [layers.Dense(3, name=f"dense{k}") for k in range(9)]
    large = keras.Sequential([keras.Input((3,)), *many])
    small = keras.Sequential([keras.Input((3,)), layers.Dense(3, name="dense8")])
    found = weight_matching.match(layer_weights.saved_weights(large), small)
    (problem,) = found.problems()
    assert problem.endswith("dense3/kernel, dense3/bias and 8 more")


def test_the_head_is_the_last_layer_with_weights_also_of_a_model_within():
    assert layer_weights.head_of(whole()) == "logits"
    inner = keras.Sequential(
        [keras.Input((3,)), layers.Dense(3, name="a"), layers.Dense(2, name="b")],
        name="top",
    )
    outer = keras.Sequential(
        [keras.Input((3,)), layers.Dense(3, name="c"), inner, layers.Softmax()]
    )
    assert layer_weights.head_of(outer) == "top/b"


def test_a_layer_in_two_places_has_one_path_and_a_wrapper_none_of_its_own():
    shared = layers.Dense(3, name="shared")
    inputs = keras.Input((3,))
    first = keras.Model(inputs, shared(inputs), name="first")
    second = keras.Model(inputs, shared(inputs), name="second")
    model = keras.Model(inputs, second(first(inputs)))
    assert list(layer_weights.weights_by_layer(model)) == ["first/shared"]
    image = keras.Input((4, 3))
    wrapped = layers.TimeDistributed(layers.Dense(2, name="inner"), name="outer")
    model = keras.Model(image, wrapped(image))
    assert list(layer_weights.weights_by_layer(model)) == ["outer/inner"]
