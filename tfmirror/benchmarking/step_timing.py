"""Times the parts of a training step, each on its own, to see where the time goes.

    compute = make_compute(strategy, model, optimizer, plan=plan, max_concurrent=1)
    run_seconds(compute, 100)          # of 100 forward and backward passes
    seconds_per_step(compute)          # median, after a warm-up

Like the training step, each part is compiled as a loop in a graph. The loop's result
depends on everything that is computed, so that nothing is optimized away.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfmirror.parallel import (
    all_reduce,
    gradients,
    microbatches,
    optimizers,
    reduction,
    replicas,
)

# A compiled loop: number of steps, scalar int64 -> scalar float32 without a meaning.
Steps = Callable[[tf.Tensor], tf.Tensor]


def run_seconds(steps: Steps, num_steps: int) -> float:
    """Returns the seconds of `num_steps` steps, until their result has arrived."""
    start = time.perf_counter()
    float(steps(tf.constant(num_steps, tf.int64)))
    return time.perf_counter() - start


def seconds_per_step(steps: Steps, seconds: float = 0.5) -> float:
    """Returns the median seconds per step of three runs, after a warm-up.

    Args:
      steps: as made here.
      seconds: about how long each of the three runs takes; at least two steps.
    """
    run_seconds(steps, 1)
    estimate = run_seconds(steps, 2) / 2
    num_steps = max(2, int(seconds / max(estimate, 1e-6)))
    times = [run_seconds(steps, num_steps) for _ in range(3)]
    return statistics.median(times) / num_steps


def make_input(strategy: tf.distribute.Strategy, iterator: Iterator) -> Steps:
    """Returns compiled steps that each take one global batch from the input pipeline.

    Args:
      strategy: of the replicas.
      iterator: a distributed iterator of (images, labels); it is moved on.
    """

    def take() -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = next(iterator)
        return images, labels

    return _make_steps(take, strategy)


def make_compute(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: optimizers.MirroredOptimizer,
    *,
    plan: microbatches.BatchPlan,
    max_concurrent: int,
) -> Steps:
    """Returns compiled steps of the forward and backward pass on all replicas.

    Every step takes the same random global batch. Gradients are neither added over the
    replicas nor applied.

    Args:
      strategy: of the replicas.
      model: made under `strategy`.
      optimizer: scales the loss.
      plan: how the global batch is divided.
      max_concurrent: how many of its microbatches a replica may compute at a time.
    """
    compute_sums = reduction.compile_sums(
        functools.partial(gradients.microbatch_gradients, model),
        model,
        with_loss_scale=True,
        max_concurrent=max_concurrent,
    )
    parts = [
        replicas.split(strategy, array, plan.per_replica_batch_sizes)
        for array in _random_batch(model, plan.global_batch_size)
    ]

    def replica(images, labels):
        weights, state = replicas.weights_and_state(model)
        scale = optimizer.loss_scale()

        def compute(sizes, images, labels, k):
            return compute_sums(sizes, weights, state, images, labels, k, scale)

        return tf.nest.flatten(reduction.sum_subtrees(plan, compute, images, labels))

    return _make_steps(lambda: strategy.run(replica, args=parts), strategy)


def _random_batch(
    model: keras.Model, global_batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [B, H, W, C] uint8 and labels [B] int32 that fit `model`."""
    rng = np.random.default_rng(0)
    shape = (global_batch_size, *model.input_shape[1:])
    images = rng.integers(0, 256, shape).astype(np.uint8)
    labels = rng.integers(0, model.output_shape[-1], len(images)).astype(np.int32)
    return images, labels


def make_reduction(
    strategy: tf.distribute.Strategy,
    shapes: Sequence[Sequence[int]],
    plan: microbatches.BatchPlan | None = None,
) -> Steps:
    """Returns compiled steps that add float32 tensors over the replicas.

    Args:
      strategy: of the replicas.
      shapes: of the tensors, such as those of a model's weights.
      plan: if its microbatches are added in a fixed tree, the top of that tree is
        computed; else, or if None, the strategy's own all-reduce.
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
            return all_reduce.all_reduce(tensors)
        subtrees = reduction.subtrees_of_replicas(plan)[replicas.replica_id()]
        return reduction.total(plan, [tensors for _ in subtrees], tensors)

    return _make_steps(lambda: strategy.run(replica, args=(parts,)), strategy)


def _make_steps(
    take_step: Callable[[], object], strategy: tf.distribute.Strategy
) -> Steps:
    """Returns a compiled loop of `take_step`.

    Args:
      take_step: takes one step, and returns a nest of distributed tensors.
      strategy: of the replicas.
    """

    @tf.autograph.experimental.do_not_convert
    def use_all_values() -> tf.Tensor:
        values = [
            of_replica
            for value in tf.nest.flatten(take_step())
            for of_replica in strategy.experimental_local_results(value)
        ]
        # One number of each tensor, so that all of them have to be computed.
        first = [tf.reshape(value, [-1])[:1] for value in values]
        return tf.add_n([tf.reduce_sum(tf.cast(v, tf.float32)) for v in first])

    @tf.function
    def steps(num_steps: tf.Tensor) -> tf.Tensor:
        total = tf.zeros([])
        for _ in tf.range(num_steps):
            total += use_all_values()
        return total

    return steps
