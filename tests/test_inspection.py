"""The view of every replica shows what is there, and changes nothing."""

import numpy as np
import pytest
from helpers import (
    build_cnn,
    build_linear,
    make_examples,
    make_strategy,
    replica_copies,
)

from tfmirror import errors, metrics
from tfmirror.diagnostics import inspection

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def view():
    """Three replicas, 2 + 2 + 1 examples."""
    strategy = make_strategy(3)
    examples = make_examples(5)
    return inspection.inspect(
        strategy, build_cnn(strategy), examples.images, examples.labels
    )


def test_every_replica_sees_its_own_part(view):
    examples = make_examples(5)
    assert view.per_replica_batch_sizes == (2, 2, 1) and len(view.devices) == 3
    assert [d.rsplit(":", 1)[1] for d in view.devices] == ["0", "1", "2"]
    np.testing.assert_array_equal(np.concatenate(view.labels), examples.labels)
    model = build_cnn(make_strategy(1))  # the same weights on one device
    expected = model(examples.images.astype(np.float32) / 255.0).numpy()
    np.testing.assert_allclose(
        np.concatenate(view.logits), expected, rtol=1e-4, atol=1e-6
    )


def test_local_gradients_differ_and_add_up_to_the_aggregated_one(view):
    assert len(view.variables) == 8
    for variable in view.variables:
        local, aggregated = variable.local_gradients, variable.aggregated_gradients
        assert len(local) == len(aggregated) == 3
        assert np.abs(local[0] - local[1]).max() > 1e-4
        scale = np.abs(aggregated).max()
        np.testing.assert_allclose(
            local.astype(np.float64).sum(axis=0), aggregated[0], atol=1e-6 * scale
        )
        assert variable.aggregated_drift == variable.weight_drift == 0.0
        assert 0 <= variable.difference_to_single_device < 1e-5 * scale


def test_mean_loss_is_over_the_global_batch(view):
    logits, labels = (
        np.concatenate(view.logits).astype(float),
        np.concatenate(view.labels),
    )
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = -log_p[np.arange(5), labels].mean()
    np.testing.assert_allclose(view.mean_loss, expected, rtol=1e-5)


def test_a_variable_is_found_by_the_end_of_its_path(view):
    assert view.variable("conv2/bias").path == "cnn/conv2/bias"
    assert view.variable("cnn/conv2/bias").path == "cnn/conv2/bias"
    for path in ("kernel", "nv2/bias", "nothing"):
        with pytest.raises(
            errors.InputError, match="variable must be one of cnn/conv1/"
        ):
            view.variable(path)


def test_inspecting_changes_nothing():
    strategy = make_strategy(2)
    model = build_cnn(strategy)
    before = metrics.weights_sha256(model.variables)
    examples = make_examples(4)
    inspection.inspect(strategy, model, examples.images, examples.labels)
    assert metrics.weights_sha256(model.variables) == before


def test_a_copy_that_has_drifted_is_seen():
    strategy = make_strategy(2)
    model = build_linear(strategy)
    copy = strategy.experimental_local_results(model.trainable_variables[0].value)[1]
    copy.assign_add(np.full(copy.shape, 0.25, np.float32))
    examples = make_examples(4, shape=(4, 4, 1))
    view = inspection.inspect(strategy, model, examples.images, examples.labels)
    assert view.variables[0].weight_drift == pytest.approx(0.25, rel=1e-5)
    np.testing.assert_array_equal(
        view.variables[0].weights,
        replica_copies(strategy, model.trainable_variables[0]),
    )


@pytest.mark.parametrize("per_replica_batch_sizes", [(2,), (2, 3), (1, 1, 2)])
def test_part_sizes_that_do_not_fit_are_refused(per_replica_batch_sizes):
    strategy = make_strategy(2)
    examples = make_examples(4)
    with pytest.raises(errors.InputError, match="2 sizes that sum to 4: got"):
        inspection.inspect(
            strategy,
            build_cnn(strategy),
            examples.images,
            examples.labels,
            per_replica_batch_sizes,
        )
