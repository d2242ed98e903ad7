"""Whether N replicas do what one does: the same things observed on both, and compared.

one, two = observe(1, "probe", "cpu"), observe(2, "probe", "cpu")
compare(one["gradient"], two["gradient"], tolerance=0.0)     # Outcome
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfmirror import models
from tfmirror.data import datasets, pipeline
from tfmirror.data.examples import Examples, ExampleSource
from tfmirror.diagnostics import drift, inspection
from tfmirror.models import keras_defaults, variable_names
from tfmirror.parallel import (
    batch_statistics,
    devices,
    eval_step,
    gradients,
    microbatches,
    model_state,
    optimizers,
    reduction,
    replicas,
    runtime,
    segments,
    step,
    step_loop,
)
from tfmirror.parallel.microbatches import BatchPlan

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


# What was observed: arrays, or a text that says why there are none.
Observation = Sequence[np.ndarray] | str


def compare(expected: Observation, found: Observation, tolerance: float) -> Outcome:
    """Returns the Outcome of comparing two observations.

    Args:
      tolerance: largest difference allowed, relative to the largest entry; 0: the bits
        must be equal.
    """
    if isinstance(expected, str) or isinstance(found, str):
        # The model decides what can't be observed, so both sides must say the same.
        if isinstance(expected, str) and expected == found:
            return Outcome(True, f"n/a: {expected}")
        return Outcome(False, "observed on one side only")
    pairs = list(zip(expected, found, strict=True))
    if all(a.tobytes() == b.tobytes() for a, b in pairs):
        return Outcome(True, "same bits")
    largest = max(
        np.abs(a.astype(np.float64) - b).max() / (np.abs(a).max() or 1.0)
        for a, b in pairs
        if a.size
    )
    is_met = tolerance > 0 and bool(largest <= tolerance)
    return Outcome(is_met, f"differs by {largest:.1e}")


@dataclasses.dataclass(frozen=True)
class _Trainee:
    """A mirrored model, and how it is trained."""

    strategy: tf.distribute.Strategy
    model: keras.Model
    optimizer: optimizers.MirroredOptimizer
    microbatches_per_replica: tuple[int, ...]
    max_concurrent: int

    def plan(self, num_examples: int) -> tuple[BatchPlan, ...]:
        """Returns the BatchPlans of a pass over examples."""
        return microbatches.plan_epoch(
            num_examples,
            GLOBAL_BATCH_SIZE,
            self.microbatches_per_replica,
            in_fixed_tree=True,
        )


@keras_defaults.scope()
def observe(
    num_replicas: int, model_name: str, device_type: str
) -> Mapping[str, Observation]:
    """Returns what `num_replicas` replicas do, for each claim.

    Args:
      model_name: a name that models.build knows.
      device_type: "auto", "gpu" or "cpu", see devices.set_up.
    """
    trainee = _build(num_replicas, model_name, device_type)
    dataset = datasets.load("synthetic")
    num_train = NUM_FULL_STEPS * GLOBAL_BATCH_SIZE + NUM_LAST_EXAMPLES
    training = _first(dataset.train, num_train)
    plans = trainee.plan(num_train)
    seen: dict[str, Observation] = {"order of examples": _order(training, plans[0])}
    seen |= _observe_first_batch(trainee, plans[0], training)
    seen["gradient, added by the strategy"] = _gradient_of_strategy(
        trainee.strategy, training
    )
    seen |= _train(trainee, plans, training)
    evaluation = _first(dataset.eval, NUM_EVAL_EXAMPLES)
    seen["evaluation, some replicas without examples"] = _evaluate(
        trainee, evaluation, training
    )
    all_variables = [*trainee.model.variables, *trainee.optimizer.variables]
    names = variable_names.unique(variable.path for variable in all_variables)
    named = dict(zip(names, all_variables, strict=True))
    drifts = drift.make_check(trainee.strategy, named)()
    seen["all replicas equal after 20 steps"] = describe_drifts(drifts)
    return seen


def _build(num_replicas: int, model_name: str, device_type: str) -> _Trainee:
    """Returns a model, mirrored, with an optimizer that does all that it can."""
    chosen = devices.set_up(num_replicas, device_type)
    strategy = devices.make_strategy(chosen)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = models.build(model_name, datasets.SYNTHETIC_SHAPE, 10)
        optimizer = optimizers.make_optimizer(
            "sgd", 0.05, momentum=0.9, weight_decay=1e-3, clip_norm=0.1
        )
        mirrored = optimizers.MirroredOptimizer(optimizer, model, ema_decay=0.9)
    return _Trainee(
        strategy,
        model,
        mirrored,
        microbatches.share_out(num_replicas, NUM_MICROBATCHES),
        runtime.max_concurrent_microbatches(chosen),
    )


def describe_drifts(drifts: Sequence[drift.Drift]) -> list[np.ndarray]:
    """Returns as arrays how many variables have drifted, and how far together."""
    # The number too: two zeros of different sign differ by zero.
    total = sum(d.largest_difference for d in drifts)
    return [np.array([len(drifts), total], np.float64)]


def _first(examples: ExampleSource, number: int) -> Examples:
    """Returns the first `number` examples."""
    return Examples(*examples.read(np.arange(number)))


def _values(variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    """Returns the values of variables as arrays."""
    return [v.numpy() for v in variables]


def _order(examples: Examples, plan: BatchPlan) -> list[np.ndarray]:
    """Returns the images of the second epoch's first batches, in order."""
    batches = pipeline.per_replica_batches(
        examples,
        first=plan.first,
        per_replica_batch_sizes=plan.per_replica_batch_sizes,
        batches_per_epoch=2,
        shuffle_seed=0,
    )
    images = [images.numpy() for images, _ in batches.take(3 * plan.num_replicas)]
    return [np.concatenate(images)]


def _observe_first_batch(
    trainee: _Trainee, plan: BatchPlan, examples: Examples
) -> dict[str, Observation]:
    """Returns logits, dropout masks and gradient of the first batch; trains nothing."""
    strategy, model = trainee.strategy, trainee.model
    batch = _first(examples, GLOBAL_BATCH_SIZE)
    parts = [
        replicas.split(strategy, array, plan.per_replica_batch_sizes)
        for array in (batch.images, batch.labels)
    ]
    compute_sums = reduction.compile_sums(
        functools.partial(gradients.microbatch_gradients, model),
        model,
        with_loss_scale=True,
        max_concurrent=trainee.max_concurrent,
    )

    def replica_gradients(images, labels):
        weights, state = replicas.weights_and_state(model)

        def compute(sizes, x, y, k):
            return compute_sums(sizes, weights, state, x, y, k, 1.0)

        subtree_sums = reduction.sum_subtrees(plan, compute, images, labels)
        structure = gradients.sums_structure(model)
        total = reduction.total(plan, subtree_sums, structure)
        return [g / GLOBAL_BATCH_SIZE for g in total.gradients]

    runtime.disable_arithmetic_optimizer()
    run = tf.function(
        lambda *parts: (
            strategy.run(_replica_logits_and_masks, (model, plan, *parts)),
            strategy.run(replica_gradients, parts),
        ),
        autograph=False,
    )
    (logits, masks), mean_gradients = run(*parts)
    has_dropout = bool(model_state.rules_of(model).seeds)
    return {
        "logits": _joined(strategy, logits),
        "dropout masks": _joined(strategy, masks)
        if has_dropout
        else f"{model.name} has no dropout",
        "gradient": [g.numpy() for g in replicas.first(strategy, mean_gradients)],
    }


def _replica_logits_and_masks(
    model: keras.Model, plan: BatchPlan, images: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns this replica's logits, and random numbers from its dropout seeds."""
    weights, state = replicas.weights_and_state(model)
    seeds = [state[k] for k in model_state.rules_of(model).seeds]
    logits, masks = [tf.zeros([0, 10])], [tf.zeros([0, 8])]
    own = plan.microbatches_of(replicas.replica_id())
    pieces = microbatches.split(images, labels, [plan.microbatch_sizes[k] for k in own])
    for k, (x, _) in zip(own, pieces, strict=True):
        logits.append(gradients.inference_logits(model, weights, state, x))
        drawn = [gradients.seeds_of_microbatch(seed, k) for seed in seeds]
        masks += [tf.random.stateless_uniform([1, 8], seed) for seed in drawn]
    return tf.concat(logits, 0), tf.concat(masks, 0)


def _joined(strategy: tf.distribute.Strategy, value: tf.Tensor) -> list[np.ndarray]:
    """Returns the replicas' values, joined in order, as one array in a list."""
    return [np.concatenate([v.numpy() for v in replicas.local_values(strategy, value)])]


def _gradient_of_strategy(
    strategy: tf.distribute.Strategy, examples: Examples
) -> list[np.ndarray]:
    """Returns the cnn's gradient of the first batch, added as the strategy does.

    The cnn's, since batch norm would take statistics of each replica's examples.
    """
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = models.build("cnn", datasets.SYNTHETIC_SHAPE, 10)
    batch = _first(examples, GLOBAL_BATCH_SIZE)
    view = inspection.inspect(strategy, model, batch.images, batch.labels)
    return [variable.aggregated_gradients[0] for variable in view.variables]


def _train(
    trainee: _Trainee, plans: Sequence[BatchPlan], examples: Examples
) -> dict[str, Observation]:
    """Trains 20 steps; returns the state after the first, the 19th and the last."""
    model, optimizer = trainee.model, trainee.optimizer
    make_steps = functools.partial(
        step.make_train_steps,
        trainee.strategy,
        model,
        optimizer,
        max_concurrent=trainee.max_concurrent,
    )
    full, last = segments.make_segments(
        trainee.strategy, examples, plans, make_steps, shuffle_seed=0
    )
    seen: dict[str, Observation] = {}
    totals = full.run(1, step_loop.zero_totals())
    seen["weights after a clipped step"] = _values(model.trainable_variables)
    totals = full.run(NUM_FULL_STEPS - 1, totals)
    seen["weights after 19 steps"] = _values(model.trainable_variables)
    totals = last.run(1, totals)
    state = model_state.averaged_variables(model)
    return seen | {
        "weights after an uneven last batch": _values(model.trainable_variables),
        "batch-norm state": _values(state) or f"{model.name} has no batch norm",
        "optimizer slots": _values(optimizer.keras_optimizer.variables),
        "moving average of the weights": _values(optimizer.evaluated_variables),
        "training loss and accuracy": [np.asarray(value.numpy()) for value in totals],
    }


def _evaluate(
    trainee: _Trainee, examples: Examples, training: Examples
) -> list[np.ndarray]:
    """Returns loss and number correct with the moving averages of the weights.

    Before them come batch norm's statistics, estimated over the examples `training`.
    """
    weights = trainee.optimizer.evaluated_variables
    statistics = trainee.optimizer.statistics
    make_statistics_steps = functools.partial(
        batch_statistics.make_statistics_steps,
        trainee.strategy,
        trainee.model,
        weights=weights,
        statistics=statistics,
        max_concurrent=trainee.max_concurrent,
    )
    if statistics:
        plans = trainee.plan(len(training))
        (segment,) = batch_statistics.make_segments(
            trainee.strategy, training, plans, make_statistics_steps, shuffle_seed=0
        )
        segment.run(segment.num_steps, step_loop.zero_totals())
    make_steps = functools.partial(
        eval_step.make_eval_steps,
        trainee.strategy,
        trainee.model,
        weights=weights,
        state=trainee.optimizer.evaluated_state,
        max_concurrent=trainee.max_concurrent,
    )
    totals = step_loop.zero_totals()
    for segment in segments.make_segments(
        trainee.strategy, examples, trainee.plan(len(examples)), make_steps
    ):
        totals = segment.run(segment.num_steps, totals)
    return [*_values(statistics), *(np.asarray(value.numpy()) for value in totals)]
