"""What N replicas do, observed for each claim of `verification`.

seen = observe(2, "probe", "cpu")
seen["gradient"]["probe/conv/kernel"]               # an array
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfmirror import models
from tfmirror.data import datasets, pipeline
from tfmirror.data.datasets import ImageDataset
from tfmirror.data.examples import Examples, ExampleSource
from tfmirror.diagnostics import drift, inspection
from tfmirror.diagnostics.verification import Observation
from tfmirror.model_source import ModelSource
from tfmirror.models import keras_defaults, layer_override, own_model, variable_names
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
MICROBATCH_SIZE = 2  # so that two sizes are all that is compiled: 2 and 1
GLOBAL_BATCH_SIZE = NUM_MICROBATCHES * MICROBATCH_SIZE
NUM_FULL_STEPS = 19
NUM_LAST_EXAMPLES = 11  # of the 20th step: microbatches of two and of one
NUM_EVAL_EXAMPLES = GLOBAL_BATCH_SIZE + 3  # a last batch that leaves microbatches empty


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
    num_replicas: int,
    model: str | ModelSource,
    device_type: str,
    dataset: ImageDataset | None = None,
) -> Mapping[str, Observation]:
    """Returns what `num_replicas` replicas do, for each claim.

    Args:
      model: what models.build takes.
      device_type: "auto", "gpu" or "cpu", see devices.set_up.
      dataset: as `make_dataset` makes it; None: images of the usual shape.

    Raises:
      InputError: the model can't be built or trained.
    """
    dataset = dataset or make_dataset(datasets.SYNTHETIC_SHAPE)
    trainee = _build(num_replicas, model, device_type, dataset)
    num_train = NUM_FULL_STEPS * GLOBAL_BATCH_SIZE + NUM_LAST_EXAMPLES
    training = _first(dataset.train, num_train)
    plans = trainee.plan(num_train)
    seen: dict[str, Observation] = {"order of examples": _order(training, plans[0])}
    seen |= _observe_first_batch(trainee, plans[0], training)
    seen["gradient, added by the strategy"] = _gradient_of_strategy(trainee, training)
    seen |= _train(trainee, plans, training)
    evaluation = _first(dataset.eval, NUM_EVAL_EXAMPLES)
    seen["evaluation, some replicas without examples"] = _evaluate(
        trainee, evaluation, training
    )
    names = variable_names.names_of(trainee.model)
    named = dict(zip(names, trainee.model.variables, strict=True))
    named |= trainee.optimizer.named_variables
    drifts = drift.make_check(trainee.strategy, named)()
    seen["all replicas equal after 20 steps"] = describe_drifts(drifts, named)
    return seen


def make_dataset(shape: Sequence[int]) -> ImageDataset:
    """Returns synthetic images of a shape, as many as are needed or a few more.

    Args:
      shape: (H, W, C).
    """
    if tuple(shape) == datasets.SYNTHETIC_SHAPE:
        return datasets.load("synthetic")
    num_train = NUM_FULL_STEPS * GLOBAL_BATCH_SIZE + NUM_LAST_EXAMPLES
    return datasets.make_synthetic(
        shape, {"train": num_train, "eval": NUM_EVAL_EXAMPLES}
    )


def _build(
    num_replicas: int,
    model: str | ModelSource,
    device_type: str,
    dataset: ImageDataset,
) -> _Trainee:
    """Returns a model, mirrored, with an optimizer that does all that it can."""
    chosen = devices.set_up(num_replicas, device_type)
    strategy = devices.make_strategy(chosen)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        shape = dataset.train.images.shape[1:]
        built = models.build(model, shape, dataset.num_classes)
        model_state.rules_of(built)
        if isinstance(model, ModelSource):
            own_model.check_outputs(built)
        optimizer = optimizers.make_optimizer(
            "sgd", 0.05, momentum=0.9, weight_decay=1e-3, clip_norm=0.1
        )
        mirrored = optimizers.MirroredOptimizer(optimizer, built, ema_decay=0.9)
    return _Trainee(
        strategy,
        built,
        mirrored,
        microbatches.share_out(num_replicas, NUM_MICROBATCHES),
        runtime.max_concurrent_microbatches(chosen),
    )


def describe_drifts(
    drifts: Sequence[drift.Drift], names: Iterable[str]
) -> dict[str, np.ndarray]:
    """Returns for each of `names` whether that variable has drifted, and how far."""
    found = {name: np.zeros(2) for name in names}
    for d in drifts:
        # Both: two zeros of different sign differ by zero.
        found[d.name] = np.array([1, d.largest_difference])
    return found


def _first(examples: ExampleSource, number: int) -> Examples:
    """Returns the first `number` examples."""
    return Examples(*examples.read(np.arange(number)))


def _values(variables: Sequence[keras.Variable]) -> dict[str, np.ndarray]:
    """Returns the values of variables by their names."""
    names = variable_names.unique(v.path for v in variables)
    return dict(zip(names, (v.numpy() for v in variables), strict=True))


def _order(examples: Examples, plan: BatchPlan) -> dict[str, np.ndarray]:
    """Returns the images of the second epoch's first batches, in order."""
    batches = pipeline.per_replica_batches(
        examples,
        first=plan.first,
        per_replica_batch_sizes=plan.per_replica_batch_sizes,
        batches_per_epoch=2,
        shuffle_seed=0,
    )
    images = [images.numpy() for images, _ in batches.take(3 * plan.num_replicas)]
    return {"": np.concatenate(images)}


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
    layers, compute_outputs = make_layer_outputs(model, MICROBATCH_SIZE)
    observe_replica = functools.partial(
        _replica_outputs_and_masks, model, compute_outputs, plan
    )
    run = tf.function(
        lambda *parts: (
            strategy.run(observe_replica, parts),
            strategy.run(replica_gradients, parts),
        ),
        autograph=False,
    )
    (outputs, masks), mean_gradients = run(*parts)
    first = replicas.first(strategy, mean_gradients)
    names = variable_names.unique(v.path for v in model.trainable_variables)
    has_dropout = bool(model_state.rules_of(model).seeds)
    return {
        "outputs of every layer, logits": {
            layer: _joined(strategy, value)
            for layer, value in zip(layers, outputs, strict=True)
        },
        "dropout masks": {"": _joined(strategy, masks)}
        if has_dropout
        else f"{model.name} has no dropout",
        "gradient": dict(zip(names, (g.numpy() for g in first), strict=True)),
    }


def make_layer_outputs(
    model: keras.Model, batch_size: int
) -> tuple[list[str], Callable[..., list[tf.Tensor]]]:
    """Returns the names of the model's layers and of its logits, and a function.

    The function is compiled once for all replicas. It takes the values of the model's
    trainable and non-trainable variables, and images [b, H, W, C] uint8, and returns a
    tensor for each name, in inference mode. Layers that are called several times or
    give several tensors are left out.

    Args:
      batch_size: b.
    """
    outputs = {}
    for layer in model.layers:
        try:
            outputs[layer.name] = layer.output
        except (AttributeError, ValueError):  # not one output
            continue
    outputs = {n: o for n, o in outputs.items() if isinstance(o, keras.KerasTensor)}
    outputs["the logits"] = model.outputs[0]
    features = keras.Model(model.inputs, list(outputs.values()))

    @layer_override.faster_calls()
    def compute(weights, state, images):
        values = zip(
            [*model.trainable_variables, *model.non_trainable_variables],
            [*weights, *state],
            strict=True,
        )
        with keras.StatelessScope(state_mapping=list(values)):
            return features(pipeline.to_unit_range(images), training=False)

    weights, state = (
        [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    images = tf.TensorSpec([batch_size, *model.input_shape[1:]], tf.uint8)
    compiled = tf.function(compute, autograph=False)
    return list(outputs), compiled.get_concrete_function(weights, state, images)


def _replica_outputs_and_masks(
    model: keras.Model,
    compute_outputs: Callable[..., list[tf.Tensor]],
    plan: BatchPlan,
    images: tf.Tensor,
    labels: tf.Tensor,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns what the layers give this replica, and numbers from its dropout seeds."""
    weights, state = replicas.weights_and_state(model)
    weights, state = tf.nest.map_structure(tf.convert_to_tensor, (weights, state))
    seeds = [state[k] for k in model_state.rules_of(model).seeds]
    outputs, masks = [], [tf.zeros([0, 8])]
    own = plan.microbatches_of(replicas.replica_id())
    pieces = microbatches.split(images, labels, [plan.microbatch_sizes[k] for k in own])
    for k, (x, _) in zip(own, pieces, strict=True):
        outputs.append(compute_outputs(weights, state, x))
        drawn = [gradients.seeds_of_microbatch(seed, k) for seed in seeds]
        masks += [tf.random.stateless_uniform([1, 8], seed) for seed in drawn]
    joined = [tf.concat(parts, 0) for parts in zip(*outputs, strict=True)]
    return joined, tf.concat(masks, 0)


def _joined(strategy: tf.distribute.Strategy, value: tf.Tensor) -> np.ndarray:
    """Returns the replicas' values, joined in order, as one array."""
    return np.concatenate([v.numpy() for v in replicas.local_values(strategy, value)])


def _gradient_of_strategy(trainee: _Trainee, examples: Examples) -> Observation:
    """Returns a gradient of the first batch, added as the strategy does.

    The cnn's for a model of this package with batch norm or dropout, which see each
    replica's examples apart; none for such a model of the user's own.
    """
    model = trainee.model
    rules = model_state.rules_of(model)
    if rules.averaged or rules.seeds:
        if model.name not in models.BUILDERS:
            return "batch norm and dropout see each replica's examples apart"
        keras.utils.set_random_seed(0)
        with trainee.strategy.scope():
            model = models.build("cnn", datasets.SYNTHETIC_SHAPE, 10)
    batch = _first(examples, GLOBAL_BATCH_SIZE)
    view = inspection.inspect(trainee.strategy, model, batch.images, batch.labels)
    return {v.path: v.aggregated_gradients[0] for v in view.variables}


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
        "optimizer slots": _slots(optimizer),
        "moving average of the weights": _values(optimizer.evaluated_variables),
        "training loss and accuracy": _of_totals(totals),
    }


def _slots(optimizer: optimizers.MirroredOptimizer) -> dict[str, np.ndarray]:
    """Returns the values of the Keras optimizer's variables by their names."""
    number = len(optimizer.keras_optimizer.variables)
    named = list(optimizer.named_variables.items())[:number]
    return {name: variable.numpy() for name, variable in named}


def _evaluate(
    trainee: _Trainee, examples: Examples, training: Examples
) -> dict[str, np.ndarray]:
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
    return _values(statistics) | _of_totals(totals)


def _of_totals(totals: step_loop.StepTotals) -> dict[str, np.ndarray]:
    """Returns the totals of a pass by their names."""
    return {name: np.asarray(v.numpy()) for name, v in totals._asdict().items()}
