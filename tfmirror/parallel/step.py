"""One training step on N replicas, with every part of it in sight.

    train_steps = make_train_steps(strategy, model, optimizer, part_sizes=(64, 64))
    totals = train_steps(iterator, num_steps, zero_totals())

What a replica does with its part of the global batch is a pure function of weights,
state and examples (`replica_sums`). What the replicas found is added
(`aggregate`), divided by the number of examples once, and applied by each replica to
its own copy of the variables, which therefore stay equal.
"""

import dataclasses
import typing
from collections.abc import Callable

import tensorflow as tf

from tfmirror import config
from tfmirror.data import pipeline
from tfmirror.parallel import microbatches


class Sums(typing.NamedTuple):
    """What examples contribute: the Sums of two sets add up to their union's."""

    loss: tf.Tensor  # scalar float32: sum over examples of the cross-entropy, nats
    num_correct: tf.Tensor  # scalar float32, a whole number: one all-reduce, one dtype
    gradients: list[tf.Tensor]  # of `loss`, ordered as model.trainable_variables
    state: list[
        tf.Tensor
    ]  # new model.non_trainable_variables, over parts that have one


class Totals(typing.NamedTuple):
    """What steps add up to on the device; `metrics.Totals` is what it becomes."""

    loss_sum: tf.Tensor  # scalar float64, nats
    num_correct: tf.Tensor  # scalar int64


def zero_totals():
    """Returns the Totals of no step."""
    return Totals(tf.zeros([], tf.float64), tf.zeros([], tf.int64))


def per_example_loss(labels, logits):
    """Returns the cross-entropy of each example, [b] float32 in nats."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def count_correct(labels, logits):
    """Returns how many examples have their largest logit at their label, float32."""
    predictions = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return tf.reduce_sum(tf.cast(predictions == labels, tf.float32))


def local_values(variables):
    """Returns each variable's value on this replica. Runs in replica context."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def replica_sums(model, weights, state, images, labels):
    """Returns the Sums of examples, as a pure function: nothing is changed.

    Keras' own Loss objects divide by the number of replicas; this sums, so that shares
    of unequal size, or of none, add up to what one device would have computed.

    Args:
      weights, state: values for model.trainable_variables and .non_trainable_variables.
      images: [b, H, W, C] uint8, with b known when traced.
      labels: [b] int32 in [0, K).
    """
    if images.shape[0] == 0:  # nothing to compute, and some layers refuse it
        zero = tf.zeros([], tf.float32)
        return Sums(
            zero,
            zero,
            [tf.zeros_like(w) for w in weights],
            [tf.zeros_like(s) for s in state],
        )
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights)
        logits, new_state = model.stateless_call(
            weights, state, pipeline.to_unit_range(images), training=True
        )
        loss = tf.reduce_sum(per_example_loss(labels, logits))
    gradients = tape.gradient(
        loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return Sums(loss, count_correct(labels, logits), gradients, list(new_state))


def replica_logits(model, images):
    """Returns the model's logits [b, K] in inference mode, for b of 0 too.

    Args:
      images: [b, H, W, C] uint8, with b known when traced.
    """
    if images.shape[0] == 0:
        return tf.zeros([0, model.output_shape[-1]])
    return model(pipeline.to_unit_range(images), training=False)


def aggregate(sums):
    """Returns the total of every replica's `sums`, the same on all of them.

    This is the step's only communication. Runs in replica context.
    """
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, sums)


def replica_train_step(model, optimizer, images, labels, part_sizes):
    """Takes one step on this replica; returns the aggregated Sums.

    With B examples in the global batch, the gradient of the mean loss is
    (1/B) times the sum over replicas of the gradients of their loss sums.

    Runs in replica context. `optimizer` must not add gradients over replicas itself
    (`applies_aggregated_gradients`).
    """
    weights = local_values(model.trainable_variables)
    state = local_values(model.non_trainable_variables)
    total = aggregate(replica_sums(model, weights, state, images, labels))
    global_batch_size = sum(part_sizes)
    gradients = [gradient / global_batch_size for gradient in total.gradients]
    optimizer.apply(gradients, model.trainable_variables)
    # Batch norm's moving statistics: the mean over the parts that have examples.
    num_parts = sum(size > 0 for size in part_sizes)
    for variable, value in zip(model.non_trainable_variables, total.state, strict=True):
        variable.assign(value / num_parts)
    return total


def with_static_size(images, labels, part_sizes):
    """Returns both with this replica's part size in their shape. Replica context."""
    context = tf.distribute.get_replica_context()
    size = part_sizes[tf.get_static_value(context.replica_id_in_sync_group)]
    return (
        tf.ensure_shape(images, [size, *images.shape[1:]]),
        tf.ensure_shape(labels, [size]),
    )


def make_train_steps(strategy, model, optimizer, part_sizes):
    """Returns a compiled function that takes many training steps in one call.

    The function takes (iterator, num_steps, totals): a distributed iterator of
    (images, labels) parts of `part_sizes`, a scalar int64, and the Totals so far; it
    returns the Totals after `num_steps` more steps. Called with 0 steps it is traced
    and changes nothing. One trace serves every number of steps.

    Args:
      part_sizes: examples on each replica.

    Raises:
      InputError: the model keeps a state that can't be averaged (a layer with random
        numbers, such as Dropout).
    """
    check_state_can_be_averaged(model)
    applies_aggregated_gradients(optimizer)

    def replica_step(images, labels):
        images, labels = with_static_size(images, labels, part_sizes)
        return replica_train_step(model, optimizer, images, labels, part_sizes)[:2]

    return _make_steps(strategy, replica_step)


def make_eval_steps(strategy, model, part_sizes):
    """Returns a compiled function as `make_train_steps` does, which only looks.

    It runs the model in inference mode and changes no variable.
    """

    def replica_step(images, labels):
        images, labels = with_static_size(images, labels, part_sizes)
        logits = replica_logits(model, images)
        loss = tf.reduce_sum(per_example_loss(labels, logits))
        return aggregate((loss, count_correct(labels, logits)))

    return _make_steps(strategy, replica_step)


@dataclasses.dataclass(frozen=True)
class Segment:
    """Steps of one pass over examples that one trace serves."""

    num_steps: int
    global_batch_size: int
    run: Callable  # (number of steps, Totals so far) -> Totals, waiting for neither


def make_segments(strategy, examples, global_batch_size, make_steps, shuffle_seed=None):
    """Returns the Segments of a pass: full batches, then an uneven last one.

    Run whole and in order, they meet every example exactly once; the next run of all of
    them is the next epoch.

    Args:
      make_steps: part_sizes -> compiled steps, as of `make_train_steps`.
      shuffle_seed: see pipeline.batch_parts.
    """
    num_replicas = strategy.num_replicas_in_sync
    plan = microbatches.plan_epoch(len(examples), global_batch_size, num_replicas)
    return [
        _make_segment(strategy, examples, batches, make_steps, shuffle_seed)
        for batches in plan
    ]


def _make_segment(strategy, examples, batches, make_steps, shuffle_seed):
    """Returns the Segment of one microbatches.BatchSequence, with its own iterator."""
    parts = pipeline.batch_parts(
        examples,
        first=batches.first,
        part_sizes=batches.part_sizes,
        batches_per_epoch=batches.num_batches,
        shuffle_seed=shuffle_seed,
    )
    iterator = iter(strategy.distribute_datasets_from_function(lambda context: parts))
    steps = make_steps(batches.part_sizes)

    def run(num_steps, totals):
        return steps(iterator, tf.constant(num_steps, tf.int64), totals)

    return Segment(batches.num_batches, batches.global_batch_size, run)


def _make_steps(strategy, replica_step):
    """Returns the compiled loop around `replica_step`, which gives (loss, correct)."""

    @tf.function
    def steps(iterator, num_steps, totals):
        for _ in tf.range(num_steps):
            results = strategy.run(replica_step, args=next(iterator))
            # Aggregated, so every replica has the same: the first one's will do.
            loss, correct = (strategy.experimental_local_results(r)[0] for r in results)
            totals = Totals(
                totals.loss_sum + tf.cast(loss, tf.float64),
                totals.num_correct + tf.cast(correct, tf.int64),
            )
        return totals

    return steps


def check_state_can_be_averaged(model):
    """Raises InputError if a non-trainable variable isn't of a floating type."""
    for variable in model.non_trainable_variables:
        if not tf.as_dtype(variable.dtype).is_floating:
            raise config.InputError(
                f"model {model.name} must keep only floating-point state: "
                f"{variable.path} is {variable.dtype}; layers with random numbers, "
                "such as Dropout, are not supported yet"
            )


def applies_aggregated_gradients(optimizer):
    """Makes a Keras `optimizer` apply the gradients that it is given as they are.

    In replica context a Keras optimizer sums gradients over replicas before it applies
    them, and has no public switch for it. Ours are summed already: we show, check and
    divide the sum ourselves. The hook is private (Keras 3.15.1,
    backend/tensorflow/optimizer.py), so Keras is pinned to a minor version, and
    `test_optimizer_applies_aggregated_gradients_once` fails when it changes.
    """
    if not hasattr(optimizer, "_all_reduce_sum_gradients"):
        raise TypeError(f"not an optimizer that tfmirror knows: {optimizer!r}")
    optimizer._all_reduce_sum_gradients = list
