"""The parts of a training step on their own, to see where its time goes.

    compute = make_compute(strategy, model, optimizer, plan, max_concurrent=1)
    seconds = timed(compute, 100)                  # of 100 steps' forward and backward

Each is compiled as the step is: a loop in a graph that depends on what it computes.
"""

import functools
import time

import numpy as np
import tensorflow as tf

from tfmirror.diagnostics import inspection
from tfmirror.parallel import gradients, reduction, step, subtrees


def timed(steps, num_steps):
    """Returns the seconds that compiled `steps` take for so many, waiting for them."""
    start = time.perf_counter()
    float(steps(tf.constant(num_steps, tf.int64)))
    return time.perf_counter() - start


def make_input(strategy, iterator):
    """Returns compiled steps that take one global batch after another."""

    def take():
        images, labels = next(iterator)
        return images, labels

    return _make_steps(take, strategy)


def make_compute(strategy, model, optimizer, plan, max_concurrent):
    """Returns compiled steps of what replicas compute: neither added nor applied.

    Each replica takes its microbatches of one global batch, forward and backward.

    Args:
      max_concurrent: of subtrees.compile_sums.
    """
    microbatch = functools.partial(gradients.microbatch_gradients, model)
    sums = subtrees.compile_sums(
        microbatch, model, *subtrees.TRAINING_SPECS, max_concurrent=max_concurrent
    )
    shape = (plan.global_batch_size, *model.input_shape[1:])
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, shape).astype(np.uint8)
    labels = rng.integers(0, model.output_shape[-1], len(images)).astype(np.int32)
    parts = [
        inspection.split_global_batch(strategy, array, plan.per_replica_batch_sizes)
        for array in (images, labels)
    ]

    def replica(images, labels):
        weights = gradients.local_values(model.trainable_variables)
        state = gradients.local_values(model.non_trainable_variables)
        scale = optimizer.loss_scale()
        found = step.sums_of_blocks(
            plan,
            images,
            labels,
            lambda sizes, *part_and_k: sums(sizes, weights, state, *part_and_k, scale),
        )
        return tf.nest.flatten(found)

    return _make_steps(lambda: strategy.run(replica, args=parts), strategy)


def make_reduction(strategy, shapes, plan=None):
    """Returns compiled steps that add tensors of these shapes over the replicas.

    Args:
      shapes: of float32 tensors, such as those of a model's weights.
      plan: microbatches.BatchPlan whose tree is to be finished; None: as the strategy
        adds.
    """
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    parts = [
        strategy.experimental_distribute_values_from_function(
            lambda context, array=array: tf.constant(array)
        )
        for array in arrays
    ]

    def replica(tensors):
        if plan is None or not plan.in_fixed_tree:
            return reduction.all_reduce(tensors)
        blocks = step.subtrees_of_replicas(plan)[step.replica_id()]
        return step.total_sums(plan, [tensors for _ in blocks], tensors)

    return _make_steps(lambda: strategy.run(replica, args=(parts,)), strategy)


def _make_steps(take, strategy):
    """Returns the compiled loop around `take`, which gives (distributed) tensors."""

    @tf.autograph.experimental.do_not_convert
    def touched():
        values = [
            of_replica
            for value in tf.nest.flatten(take())
            for of_replica in strategy.experimental_local_results(value)
        ]
        # A number of each, or nothing would be computed.
        first = [tf.reshape(value, [-1])[:1] for value in values]
        return tf.add_n([tf.reduce_sum(tf.cast(v, tf.float32)) for v in first])

    @tf.function
    def steps(num_steps):
        total = tf.zeros([])
        for _ in tf.range(num_steps):
            total += touched()
        return total

    return steps
