"""One training step on N replicas, from the forward pass to the update.

    train_steps = make_train_steps(strategy, model, optimizer, plan)
    totals = train_steps(iterator, num_steps, step_loop.zero_totals())

In reading order:

    replica_total       on each replica: forward and backward pass, one reduction
    replica_update      on each replica: divide once, apply
    make_train_steps    over all replicas: both, and between them the test for values
                        that are not finite
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfmirror.parallel import gradients, model_state, reduction, replicas, step_loop
from tfmirror.parallel.gradients import MicrobatchSums
from tfmirror.parallel.microbatches import BatchPlan
from tfmirror.parallel.optimizers import MirroredOptimizer


def replica_total(
    model: keras.Model,
    optimizer: MirroredOptimizer,
    plan: BatchPlan,
    compute_sums: reduction.ComputeSums,
    pack_bytes: int,
    images: tf.Tensor,
    labels: tf.Tensor,
) -> MicrobatchSums:
    """Returns the MicrobatchSums of the global batch, the same on every replica.

    Runs in replica context and changes no variable.

    Args:
      plan: how the global batch is cut.
      compute_sums: `gradients.microbatch_gradients`, compiled by
        `reduction.compile_sums`.
      pack_bytes: bytes to join into one message of the strategy's reduction; 0: none.
      images: [b, H, W, C] uint8, this replica's part of the global batch.
      labels: [b] int32 in [0, K).
    """
    optimizer.check_trainable(model)
    weights, state = replicas.weights_and_state(model)
    step, loss_scale = tf.cast(optimizer.step(), tf.int32), optimizer.loss_scale()

    def compute(sizes, images, labels, k):
        # Dropout and augmentation draw from the microbatch's number over all steps.
        microbatch_index = step * plan.num_microbatches + k
        return compute_sums(
            sizes, weights, state, images, labels, microbatch_index, loss_scale
        )

    # Forward and backward pass of this replica's microbatches.
    subtree_sums = reduction.sum_subtrees(plan, compute, images, labels)
    # The step's only communication.
    structure = gradients.sums_structure(model)
    return reduction.total(plan, subtree_sums, structure, pack_bytes)


def replica_update(
    model: keras.Model,
    optimizer: MirroredOptimizer,
    plan: BatchPlan,
    total: MicrobatchSums,
) -> None:
    """Applies the global batch's gradient to this replica's variables.

    With B examples in the global batch, the gradient of its mean loss is (1/B) times
    the sum of the microbatches' gradients. `total` is the same on every replica, so
    their copies of the variables stay equal. Runs in replica context.

    Args:
      total: MicrobatchSums of the global batch, all of them finite.
    """
    # Moving statistics of batch norm: their mean over the microbatches with examples.
    num_nonempty = sum(size > 0 for size in plan.microbatch_sizes)
    optimizer.apply(
        [gradient / plan.global_batch_size for gradient in total.gradients],
        model_state.averaged_variables(model),
        [value / num_nonempty for value in total.state],
    )


def make_train_steps(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: MirroredOptimizer,
    plan: BatchPlan,
    *,
    augment: gradients.Augment | None = None,
    label_smoothing: float = 0.0,
    has_cross_replica_ops: bool = False,
    pack_bytes: int = 0,
    max_concurrent: int = 1,
) -> step_loop.StepLoop:
    """Returns a compiled function that takes many training steps in one call.

    The function takes (iterator, num_steps, totals): a distributed iterator of
    (images, labels) as `plan` cuts them, a scalar int64, and the StepTotals so far. It
    returns the StepTotals after `num_steps` more steps. A call of 0 steps traces it and
    changes nothing. One trace serves every number of steps.

    It stops before a step whose loss, gradient or new state is not finite: variables
    and totals keep their values, so fewer steps are counted. With a loss scale above 1
    (float16), a gradient that is not finite does not stop it: the update is skipped,
    the scale is lowered, and the step is counted as skipped.

    Args:
      augment: function of (images, microbatch_index) that changes training images.
      label_smoothing: see `gradients.per_example_loss`.
      has_cross_replica_ops: whether layers reduce over replicas (synchronized batch
        norm). They can only if each replica has one microbatch.
      pack_bytes: see `replica_total`.
      max_concurrent: microbatches that a replica may compute at the same time.

    Raises:
      InputError: the model has state that can't be averaged over microbatches, or
        trains other variables than those that `optimizer` was made for.
    """
    model_state.rules_of(model)  # refuses state that no rule fits
    optimizer.check_trainable(model)
    compute_sums = reduction.compile_sums(
        functools.partial(
            gradients.microbatch_gradients,
            model,
            augment=augment,
            label_smoothing=label_smoothing,
            scales_loss=optimizer.scales_loss,
        ),
        model,
        with_loss_scale=True,
        max_concurrent=max_concurrent,
        is_inlined=has_cross_replica_ops,
    )
    compute = functools.partial(
        replica_total, model, optimizer, plan, compute_sums, pack_bytes
    )
    update = functools.partial(replica_update, model, optimizer, plan)

    def train_step(images, labels):
        total = strategy.run(compute, args=(images, labels))
        first = replicas.first(strategy, total)  # every replica holds the same
        is_finite = step_loop.is_finite(first.gradients)
        # A lower loss scale helps neither a loss nor a state: they don't contain it.
        goes_on = step_loop.is_finite([first.loss, first.state])
        goes_on &= is_finite | optimizer.can_skip()
        is_skipped = goes_on & ~is_finite
        # Why a second strategy.run: the update depends on the total, and inside a
        # replica a tf.cond may hold no communication, which Keras' optimizers do
        # (merge_call, TensorFlow 2.21). Around strategy.run it may.
        tf.cond(
            goes_on & is_finite,
            lambda: _run_branch(strategy, update, total),
            lambda: tf.cond(
                is_skipped, lambda: _run_branch(strategy, optimizer.skip), lambda: 0
            ),
        )
        return step_loop.StepResult(first.loss, first.num_correct, goes_on, is_skipped)

    return step_loop.make_step_loop(train_step, plan)


def _run_branch(
    strategy: tf.distribute.Strategy, replica_function: Callable, *args: Any
) -> int:
    """Runs a function on every replica; returns 0, since a branch returns a value."""
    strategy.run(replica_function, args=args)
    return 0
