"""A microbatch that is not finite is found by replica, number and variable."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import build_optimizer, make_examples, make_strategy

from tfmirror.diagnostics import non_finite
from tfmirror.parallel import microbatches, segments, step, step_loop

pytestmark = pytest.mark.training


class Poison(keras.layers.Layer):
    """The identity, but infinite for an example whose first value is one."""

    def call(self, x):
        return x + tf.where(x[:, :1] == 1, np.inf, 0.0)


def build_named(strategy):
    """Returns softmax regression behind a Poison."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        return keras.Sequential(
            [
                keras.Input((4, 4, 1)),
                keras.layers.Flatten(),
                Poison(),
                keras.layers.Dense(10, name="first"),
            ]
        )


@pytest.mark.parametrize(
    ("shares", "replica_id"), [((4,), 0), ((2, 2), 1), ((1, 1, 1, 1), 2)]
)
def test_the_step_is_not_taken_and_the_microbatch_is_found(shares, replica_id):
    """Batch 1 of 2 has the poison in its microbatch 2 of 4."""
    strategy = make_strategy(len(shares))
    model = build_named(strategy)
    optimizer = build_optimizer(strategy, model, momentum=0.9)
    examples = make_examples(16, shape=(4, 4, 1))
    np.minimum(examples.images, 254, out=examples.images)
    examples.images[8 + 5, 0, 0] = 255
    (plan,) = microbatches.plan_epoch(16, 8, shares, in_fixed_tree=True)
    (segment,) = segments.make_segments(
        strategy,
        examples,
        [plan],
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    )
    one = segment.run(1, step_loop.zero_totals())
    assert int(one.num_steps) == 1 and np.isfinite(float(one.loss_sum))
    before = [v.numpy() for v in [*model.variables, *optimizer.variables]]
    two = segment.run(1, one)
    assert (int(two.num_steps), float(two.loss_sum)) == (1, float(one.loss_sum))
    for variable, value in zip(
        [*model.variables, *optimizer.variables], before, strict=True
    ):
        np.testing.assert_array_equal(variable.numpy(), value)
    find = non_finite.make_finder(strategy, model, optimizer, plan)
    assert find(examples.images[:8], examples.labels[:8]) == []
    (finding,) = find(examples.images[8:], examples.labels[8:])
    assert (finding.replica_id, finding.microbatch) == (replica_id, 2)
    assert not finding.is_loss_finite and len(finding.variables) == 2
    text = finding.describe()
    assert text.startswith(f"replica {replica_id}, microbatch 2: its loss and the grad")


class PoisonState(keras.layers.Layer):
    """The identity; its state becomes infinite if a first value is one."""

    def build(self, shape):
        self.largest = self.add_weight((), trainable=False, name="largest")

    def call(self, x, training=False):
        if training:
            poison = tf.where(tf.reduce_any(x[:, :1] == 1), np.inf, 0.0)
            self.largest.assign(tf.reduce_max(x) + poison)
        return x


@pytest.mark.parametrize("scales_loss", [False, True])
@pytest.mark.parametrize(("shares", "replica_id"), [((4,), 0), ((2, 1, 1), 1)])
def test_a_new_state_that_is_not_finite_is_not_applied_and_is_found(
    shares, replica_id, scales_loss
):
    """A lower loss scale could not help, so the step is not skipped either."""
    strategy = make_strategy(len(shares))
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4, 4, 1)),
                keras.layers.Flatten(),
                PoisonState(name="poison"),
                keras.layers.Dense(10),
            ]
        )
    optimizer = build_optimizer(strategy, model, scales_loss=scales_loss)
    examples = make_examples(16, shape=(4, 4, 1))
    np.minimum(examples.images, 254, out=examples.images)
    examples.images[8 + 5, 0, 0] = 255
    (plan,) = microbatches.plan_epoch(16, 8, shares, in_fixed_tree=True)
    (segment,) = segments.make_segments(
        strategy,
        examples,
        [plan],
        lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    )
    totals = segment.run(1, step_loop.zero_totals())
    before = [v.numpy() for v in [*model.variables, *optimizer.variables]]
    totals = segment.run(1, totals)
    assert (int(totals.num_steps), int(totals.num_skipped)) == (1, 0)
    for variable, value in zip(
        [*model.variables, *optimizer.variables], before, strict=True
    ):
        np.testing.assert_array_equal(variable.numpy(), value)
    find = non_finite.make_finder(strategy, model, optimizer, plan)
    (finding,) = find(examples.images[8:], examples.labels[8:])
    text = finding.describe()
    assert text.startswith(f"replica {replica_id}, microbatch 2: the new value of ")
    assert text.endswith("poison/largest") and finding.is_loss_finite
