"""Whether N replicas do what one does: the same things observed on both, and compared.

one, two = observe(1, "probe", "cpu"), observe(2, "probe", "cpu")
compare(one["gradient"], two["gradient"], tolerance=0.0)     # Outcome
"""

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf

from tfmirror import models
from tfmirror.data import datasets, pipeline
from tfmirror.diagnostics import drift, inspection
from tfmirror.parallel import (
    devices,
    gradients,
    microbatches,
    optimizers,
    reduction,
    segments,
    step,
    subtrees,
)

NUM_MICROBATCHES = 8
MICROBATCH_SIZE = 4
GLOBAL_BATCH_SIZE = NUM_MICROBATCHES * MICROBATCH_SIZE
NUM_FULL_STEPS = 19
NUM_LAST_EXAMPLES = 11  # of the 20th step: microbatches of two and of one
NUM_EVAL_EXAMPLES = GLOBAL_BATCH_SIZE + 3  # a last batch that leaves microbatches empty

# Claim -> largest difference relative to the largest entry; 0: the same bits are
# promised. Without a fixed tree float32 sums are in another order.
CLAIMS = {
    "order of examples": 0.0,
    "logits": 0.0,
    "dropout masks": 0.0,
    "gradient": 0.0,
    "gradient, added by the strategy": 1e-5,
    "weights after a clipped step": 0.0,
    "batch-norm state": 0.0,
    "optimizer slots": 0.0,
    "weights after 19 steps": 0.0,
    "weights after an uneven last batch": 0.0,
    "moving average of the weights": 0.0,
    "training loss and accuracy": 0.0,
    "evaluation, some replicas without examples": 0.0,
    "all replicas equal after 20 steps": 0.0,
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One cell of the table."""

    is_met: bool
    text: str


def compare(expected, found, tolerance):
    """Returns the Outcome of two observations: lists of arrays, or why there are none.

    Args:
      tolerance: of the largest difference, relative to the largest entry, if that is
        not 0; 0: the bits must be equal.
    """
    if isinstance(expected, str):
        return Outcome(True, f"n/a: {expected}")
    if all(a.tobytes() == b.tobytes() for a, b in zip(expected, found, strict=True)):
        return Outcome(True, "same bits")
    largest = max(
        np.abs(a.astype(np.float64) - b).max() / (np.abs(a).max() or 1.0)
        for a, b in zip(expected, found, strict=True)
        if a.size
    )
    is_met = tolerance > 0 and bool(largest <= tolerance)
    return Outcome(is_met, f"differs by {largest:.1e}")


def observe(num_replicas, model_name, device_type):
    """Returns {claim: arrays, or text why there are none} on so many replicas.

    Args:
      model_name: of models.build.
      device_type: of devices.choose.
    """
    chosen = devices.choose(num_replicas, device_type)
    max_concurrent = devices.max_concurrent_microbatches(chosen)
    strategy = devices.make_strategy(chosen)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = models.build(model_name, datasets.SYNTHETIC_SHAPE, 10)
        optimizer = optimizers.make_optimizer("sgd", 0.05, 0.9, 1e-3, clip_norm=0.1)
        optimizer = optimizers.MirroredOptimizer(optimizer, model, ema_decay=0.9)
    dataset = datasets.load("synthetic")
    num_train = NUM_FULL_STEPS * GLOBAL_BATCH_SIZE + NUM_LAST_EXAMPLES
    training = _first(dataset.train, num_train)
    shares = microbatches.share_out(num_replicas, NUM_MICROBATCHES)
    plans = microbatches.plan_epoch(num_train, GLOBAL_BATCH_SIZE, shares, True)
    seen = {"order of examples": _order(training, plans[0])}
    seen |= _look(strategy, model, plans[0], training, max_concurrent)
    seen["gradient, added by the strategy"] = _gradient_of_strategy(strategy, training)
    seen |= _train(strategy, model, optimizer, plans, training, max_concurrent)
    evaluation = _first(dataset.eval, NUM_EVAL_EXAMPLES)
    seen["evaluation, some replicas without examples"] = _evaluate(
        strategy, model, optimizer, evaluation, shares, max_concurrent
    )
    variables = {v.path: v for v in [*model.variables, *optimizer.variables]}
    drifts = drift.make_check(strategy, variables)()
    seen["all replicas equal after 20 steps"] = describe_drifts(drifts)
    return seen


def describe_drifts(drifts):
    """Returns as arrays how many variables have drifted, and how far together."""
    # How many: a zero of another sign differs by zero.
    total = sum(d.largest_difference for d in drifts)
    return [np.array([len(drifts), total], np.float64)]


def _first(examples, number):
    """Returns the first examples."""
    return datasets.Examples(examples.images[:number], examples.labels[:number])


def _values(variables):
    """Returns the values of variables as arrays."""
    return [v.numpy() for v in variables]


def _order(examples, plan):
    """Returns the images of the second epoch's first batches, in order."""
    parts = pipeline.batch_parts(
        examples,
        first=plan.first,
        per_replica_batch_sizes=plan.per_replica_batch_sizes,
        batches_per_epoch=2,
        shuffle_seed=0,
    )
    num_parts = 3 * len(plan.microbatches_per_replica)
    images = [images.numpy() for images, _ in parts.take(num_parts)]
    return [np.concatenate(images)]


def _look(strategy, model, plan, examples, max_concurrent):
    """Returns what the first batch shows while nothing is trained yet."""
    batch = _first(examples, GLOBAL_BATCH_SIZE)
    parts = [
        inspection.split_global_batch(strategy, array, plan.per_replica_batch_sizes)
        for array in (batch.images, batch.labels)
    ]
    microbatch = functools.partial(gradients.microbatch_gradients, model)
    sums = subtrees.compile_sums(
        microbatch, model, *subtrees.TRAINING_SPECS, max_concurrent=max_concurrent
    )
    seeds = [v for v in model.non_trainable_variables if not gradients.is_averaged(v)]

    def replica_look(images, labels):
        weights = gradients.local_values(model.trainable_variables)
        state = gradients.local_values(model.non_trainable_variables)
        logits, masks = [tf.zeros([0, 10])], [tf.zeros([0, 8])]
        for k, own in step.microbatches_of_replica(plan, images, labels).items():
            logits.append(gradients.inference_logits(model, weights, state, own[0]))
            drawn = [gradients.seeds_of_microbatch(seed.value, k) for seed in seeds]
            masks += [tf.random.stateless_uniform([1, 8], seed) for seed in drawn]
        found = step.sums_of_blocks(
            plan,
            images,
            labels,
            lambda sizes, *part_and_k: sums(sizes, weights, state, *part_and_k, 1.0),
        )
        total = step.total_sums(plan, found, like=found[0])
        mean_gradients = [g / GLOBAL_BATCH_SIZE for g in total.gradients]
        return tf.concat(logits, 0), tf.concat(masks, 0), mean_gradients

    reduction.disable_arithmetic_optimizer()
    run = tf.function(lambda *parts: strategy.run(replica_look, parts), autograph=False)
    logits, masks, mean_gradients = run(*parts)
    local = strategy.experimental_local_results
    return {
        "logits": [np.concatenate([part.numpy() for part in local(logits)])],
        "dropout masks": [np.concatenate([part.numpy() for part in local(masks)])]
        if seeds
        else f"{model.name} has no dropout",
        "gradient": [local(gradient)[0].numpy() for gradient in mean_gradients],
    }


def _gradient_of_strategy(strategy, examples):
    """Returns the cnn's gradient of the first batch, added as the strategy does.

    The cnn's, since batch norm would take the replicas' parts for its microbatches.
    """
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = models.build("cnn", datasets.SYNTHETIC_SHAPE, 10)
    batch = _first(examples, GLOBAL_BATCH_SIZE)
    view = inspection.inspect(strategy, model, batch.images, batch.labels)
    return [variable.aggregated_gradients[0] for variable in view.variables]


def _train(strategy, model, optimizer, plans, examples, max_concurrent):
    """Returns what 20 steps leave behind, the first and the last looked at apart."""
    full, last = segments.make_segments(
        strategy,
        examples,
        plans,
        functools.partial(
            step.make_train_steps,
            strategy,
            model,
            optimizer,
            max_concurrent=max_concurrent,
        ),
        shuffle_seed=0,
    )
    seen = {}
    totals = full.run(1, step.zero_totals())
    seen["weights after a clipped step"] = _values(model.trainable_variables)
    totals = full.run(NUM_FULL_STEPS - 1, totals)
    seen["weights after 19 steps"] = _values(model.trainable_variables)
    totals = last.run(1, totals)
    state = gradients.averaged_state(model)
    return seen | {
        "weights after an uneven last batch": _values(model.trainable_variables),
        "batch-norm state": _values(state) or f"{model.name} has no batch norm",
        "optimizer slots": _values(optimizer.keras_optimizer.variables),
        "moving average of the weights": _values(optimizer.evaluated_variables),
        "training loss and accuracy": [np.asarray(value.numpy()) for value in totals],
    }


def _evaluate(strategy, model, optimizer, examples, shares, max_concurrent):
    """Returns loss and number correct of the moving averages of the weights."""
    plans = microbatches.plan_epoch(len(examples), GLOBAL_BATCH_SIZE, shares, True)
    make_steps = functools.partial(
        step.make_eval_steps,
        strategy,
        model,
        weights=optimizer.evaluated_variables,
        max_concurrent=max_concurrent,
    )
    totals = step.zero_totals()
    for segment in segments.make_segments(strategy, examples, plans, make_steps):
        totals = segment.run(segment.num_steps, totals)
    return [np.asarray(value.numpy()) for value in totals]
