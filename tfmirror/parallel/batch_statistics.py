"""Batch norm's moving statistics, estimated anew for averaged weights.

    segments = make_segments(strategy, examples, plans, make_steps, shuffle_seed=0)
    evaluated = [*segments, *eval_segments]

The moving statistics that training keeps are those of the raw weights. With averaged
weights the layers' inputs have other means and variances, so these are estimated over
training examples before an evaluation: the mean over some batches of what batch norm
computes in training mode (Izmailov et al., 2018, section 3.2, and PyTorch's
swa_utils.update_bn). Training goes on with the raw weights and their own statistics.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfmirror.data import pipeline
from tfmirror.data.examples import ExampleSource
from tfmirror.models import layer_override, nested_layers
from tfmirror.parallel import gradients, reduction, replicas, segments, step_loop
from tfmirror.parallel.microbatches import BatchPlan
from tfmirror.parallel.step_loop import StepLoop, StepResult

# Full training batches to estimate over, or as many as an epoch has.
MAX_BATCHES = 32


def indices(model: keras.Model) -> list[int]:
    """Returns where in model.non_trainable_variables the statistics to estimate are.

    These are the moving means and variances of BatchNormalization layers, in nested
    models too. A layer that is frozen, never updates them (momentum 1), or normalizes
    with them in training (renorm) keeps its own, as does state of any other kind.
    """
    found = [
        statistic
        for layer in nested_layers.all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and layer.momentum < 1
        and not layer.renorm
        for statistic in (layer.moving_mean, layer.moving_variance)
    ]
    state = model.non_trainable_variables
    return [k for k, v in enumerate(state) if any(v is f for f in found)]


@layer_override.faster_calls()
def microbatch_statistics(
    model: keras.Model,
    weights: list[tf.Tensor],
    state: list[tf.Tensor],
    images: tf.Tensor,
    labels: tf.Tensor,
    microbatch_index: tf.Tensor | int = 0,
    *,
    augment: gradients.Augment | None = None,
) -> list[tf.Tensor]:
    """Returns the statistics of a microbatch, one for each of `indices`; changes none.

    A moving statistic becomes d times its old value plus 1 - d times the microbatch's,
    with d the layer's momentum (its square if the layer is called twice). So from 0 it
    becomes the latter alone, and d is the derivative.

    Args:
      weights, state, images, labels, microbatch_index, augment: see
        `gradients.microbatch_gradients`. Without examples the statistics are zeros.
    """
    del labels  # `reduction.compile_sums` passes them to every function
    estimated = indices(model)
    zeros = [tf.zeros_like(state[k]) for k in estimated]
    if images.shape[0] == 0:
        return zeros
    state = gradients.state_of_microbatch(model, state, microbatch_index)
    for k, zero in zip(estimated, zeros, strict=True):
        state[k] = zero
    if augment:
        images = augment(images, microbatch_index)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(zeros)
        _, new_state = model.stateless_call(
            weights, state, pipeline.to_unit_range(images), training=True
        )
        new = [new_state[k] for k in estimated]
    kept = tape.gradient(new, zeros, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [value / (1 - share) for value, share in zip(new, kept, strict=True)]


def make_statistics_steps(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    plan: BatchPlan,
    *,
    weights: list[keras.Variable],
    statistics: list[keras.Variable],
    augment: gradients.Augment | None = None,
    has_cross_replica_ops: bool = False,
    pack_bytes: int = 0,
    max_concurrent: int = 1,
) -> StepLoop:
    """Returns a compiled function that adds many global batches to the estimates.

    It takes and returns what the function of `step.make_train_steps` does, and counts
    steps alone. With every `plan.num_batches` steps the estimates begin anew. It stops
    at a step whose statistics are not finite.

    Args:
      weights: variables to use instead of the model's trainable ones.
      statistics: variables for the estimates, one for each of `indices`.
      augment, has_cross_replica_ops, pack_bytes, max_concurrent: see
        `step.make_train_steps`.
    """
    compute_sums = reduction.compile_sums(
        functools.partial(microbatch_statistics, model, augment=augment),
        model,
        max_concurrent=max_concurrent,
        is_inlined=has_cross_replica_ops,
    )
    with strategy.scope():
        counter = keras.Variable(0, dtype="int32", trainable=False, name="batches")
    num_nonempty = sum(size > 0 for size in plan.microbatch_sizes)
    num_averaged = plan.num_batches * num_nonempty

    def replica_step(images, labels):
        batch = counter.value % plan.num_batches
        values = replicas.read(weights)
        state = replicas.read(model.non_trainable_variables)

        def compute(sizes, images, labels, k):
            index = batch * plan.num_microbatches + k
            return compute_sums(sizes, values, state, images, labels, index)

        subtree_sums = reduction.sum_subtrees(plan, compute, images, labels)
        total = reduction.total(plan, subtree_sums, statistics, pack_bytes)
        for variable, value in zip(statistics, total, strict=True):
            before = tf.where(batch > 0, variable.value, tf.zeros_like(variable.value))
            variable.assign(before + value / num_averaged)
        counter.assign_add(1)
        return tf.reduce_all([step_loop.is_finite(value) for value in total])

    def step(images, labels):
        is_finite = strategy.run(replica_step, args=(images, labels))
        zero = tf.zeros([])
        return StepResult(zero, zero, goes_on=replicas.first(strategy, is_finite))

    return step_loop.make_step_loop(step, plan)


def make_segments(
    strategy: tf.distribute.Strategy,
    examples: ExampleSource,
    train_plans: Sequence[BatchPlan],
    make_steps: Callable[[BatchPlan], StepLoop],
    *,
    shuffle_seed: int | None,
    epochs: int = 0,
) -> list[segments.Segment]:
    """Returns the Segment to run before each evaluation, in a list of one.

    It reads the first batches of the epoch that was trained last: the same ones
    whenever and wherever the run was resumed.

    Args:
      train_plans: of the training epochs over `examples`.
      make_steps: compiles `make_statistics_steps` of a BatchPlan.
      shuffle_seed: seed of the epochs' orders.
      epochs: evaluations that were made before.
    """
    full = train_plans[0]
    plan = dataclasses.replace(full, num_batches=min(MAX_BATCHES, full.num_batches))
    made = segments.make_segments(
        strategy,
        examples,
        [plan],
        make_steps,
        shuffle_seed=shuffle_seed,
        epochs=epochs,
    )
    # Its examples are not among those that are evaluated.
    return [dataclasses.replace(segment, global_batch_size=0) for segment in made]
