"""One training step on N replicas, with every part of it in sight.

    steps = make_train_steps(strategy, model, update, plan)
    totals = steps(iterator, num_steps, zero_totals())

A microbatch is a pure function of weights, state and examples (`microbatch_sums`). What
the microbatches found is added, inside each replica and across them (`total_sums`),
divided by the number of examples once, and applied by each replica to its own copy of
the variables, which therefore stay equal.
"""

import functools
import itertools
import typing

import tensorflow as tf

from tfmirror import config
from tfmirror.data import pipeline
from tfmirror.parallel import reduction


class Sums(typing.NamedTuple):
    """What examples contribute: the Sums of two sets add up to their union's."""

    loss: tf.Tensor  # scalar float32: sum over examples of the cross-entropy, nats
    num_correct: tf.Tensor  # scalar float32, a whole number: one all-reduce, one dtype
    gradients: list[tf.Tensor]  # of `loss`, ordered as model.trainable_variables
    state: list[tf.Tensor]  # new averaged_state(model), over microbatches with examples


class Totals(typing.NamedTuple):
    """What steps add up to on the device; `metrics.Totals` is what it becomes."""

    loss_sum: tf.Tensor  # scalar float64, nats
    num_correct: tf.Tensor  # scalar int64


def zero_totals():
    """Returns the Totals of no step."""
    return Totals(tf.zeros([], tf.float64), tf.zeros([], tf.int64))


def per_example_loss(labels, logits):
    """Returns the cross-entropy of each example, [b] float32 in nats."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=tf.cast(logits, tf.float32)
    )


def count_correct(labels, logits):
    """Returns how many examples have their largest logit at their label, float32."""
    predictions = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return tf.reduce_sum(tf.cast(predictions == labels, tf.float32))


def local_values(variables):
    """Returns each variable's value on this replica. Runs in replica context."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def is_averaged(variable):
    """Returns whether a variable of a model's state can be averaged."""
    return tf.as_dtype(variable.dtype).is_floating


def averaged_state(model):
    """Returns the non-trainable variables that microbatches average: batch norm's."""
    return [v for v in model.non_trainable_variables if is_averaged(v)]


def check_state(model):
    """Raises InputError if a variable is neither averaged nor the seed of a layer."""
    for variable in model.non_trainable_variables:
        is_seed = variable.path.endswith("seed_generator_state")
        if not is_averaged(variable) and not is_seed:
            raise config.InputError(
                f"model {model.name} must keep only floating-point numbers and seeds: "
                f"{variable.path} is {variable.dtype}"
            )


def seeds_of_microbatch(seed, step, microbatch):
    """Returns a layer's random seed for one microbatch of one step, [2] int64.

    Dropout draws a mask of its own from it, the same on whichever replica.

    Args:
      seed: [2] integers, drawn once for the layer.
      step, microbatch: scalar integers.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    folded = fold_in(
        fold_in(tf.cast(seed, tf.int32), tf.cast(step, tf.int32)), microbatch
    )
    # Once more, since a layer counts the second number up when it draws again, and must
    # not arrive at the next microbatch's.
    return tf.cast(fold_in(folded, 0), tf.int64)


def state_of_microbatch(model, step, microbatch):
    """Returns a value for each of model.non_trainable_variables. Replica context."""
    return [
        value
        if is_averaged(variable)
        else tf.cast(seeds_of_microbatch(value, step, microbatch), value.dtype)
        for variable, value in zip(
            model.non_trainable_variables,
            local_values(model.non_trainable_variables),
            strict=True,
        )
    ]


def microbatch_sums(model, weights, state, images, labels, loss_scale=1.0):
    """Returns the Sums of a microbatch, as a pure function: nothing is changed.

    Keras' own Loss objects divide by the number of replicas; this sums, so that
    microbatches of unequal size, or of none, add up to what one device would have
    found.

    Args:
      weights, state: values for model.trainable_variables and .non_trainable_variables.
      images: [b, H, W, C] uint8, with b known when traced.
      labels: [b] int32 in [0, K).
      loss_scale: what the loss is multiplied by before gradients are taken; they keep
        it. Against underflow in float16.
    """
    averaged = [is_averaged(v) for v in model.non_trainable_variables]
    if images.shape[0] == 0:  # nothing to compute, and some layers refuse it
        zero = tf.zeros([])
        empty = [
            tf.zeros_like(s) for s, keep in zip(state, averaged, strict=True) if keep
        ]
        return Sums(zero, zero, [tf.zeros_like(w) for w in weights], empty)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights)
        logits, new_state = model.stateless_call(
            weights, state, pipeline.to_unit_range(images), training=True
        )
        loss = tf.reduce_sum(per_example_loss(labels, logits))
        scaled_loss = loss * loss_scale
    gradients = tape.gradient(
        scaled_loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    new_state = [s for s, keep in zip(new_state, averaged, strict=True) if keep]
    return Sums(loss, count_correct(labels, logits), gradients, new_state)


def inference_logits(model, weights, state, images):
    """Returns the model's logits [b, K] float32 in inference mode, for b of 0 too.

    Args:
      weights, state: as of `microbatch_sums`.
      images: [b, H, W, C] uint8, with b known when traced.
    """
    if images.shape[0] == 0:
        return tf.zeros([0, model.output_shape[-1]])
    images = pipeline.to_unit_range(images)
    logits, _ = model.stateless_call(weights, state, images, training=False)
    return tf.cast(logits, tf.float32)


def inference_sums(model, weights, state, images, labels):
    """Returns (loss sum, number correct) of a microbatch in inference mode."""
    logits = inference_logits(model, weights, state, images)
    return tf.reduce_sum(per_example_loss(labels, logits)), count_correct(
        labels, logits
    )


def one_call(function, model, sizes, *more):
    """Returns `function` of a microbatch, traced once a size, as one call in the graph.

    All microbatches run one compiled function, on whichever replica: tracing takes no
    longer for more replicas, the graph grows by a call for each microbatch and not by a
    copy, and none is optimized together with its neighbours.

    Args:
      function: of (weights, state, images, labels, *more), as `microbatch_sums` but for
        the model.
      sizes: examples in each microbatch.
      more: tf.TensorSpecs of further arguments.
    """
    traced = tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )
    weights, state = (
        [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    of_size = {
        size: traced.get_concrete_function(
            weights,
            state,
            tf.TensorSpec([size, *model.input_shape[1:]], tf.uint8),
            tf.TensorSpec([size], tf.int32),
            *more,
        )
        for size in set(sizes)
    }

    def microbatch(weights, state, images, labels, *more):
        return of_size[images.shape[0]](weights, state, images, labels, *more)

    return microbatch


def replica_id():
    """Returns which replica this is, as a Python integer. Replica context."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def microbatches_of_replica(plan, images, labels):
    """Returns {k: (images, labels)} of this replica's microbatches, of known sizes.

    Args:
      images, labels: this replica's part of the global batch.
    """
    me = replica_id()
    sizes = plan.sizes_of(me)
    images = tf.ensure_shape(images, [sum(sizes), *images.shape[1:]])
    labels = tf.ensure_shape(labels, [sum(sizes)])
    ends = itertools.accumulate(sizes)
    return {
        k: (images[end - size : end], labels[end - size : end])
        for k, size, end in zip(plan.microbatches_of(me), sizes, ends, strict=True)
    }


def total_sums(plan, sums_of, like):
    """Returns the total over all microbatches, the same on every replica.

    This holds the step's only communication. Runs in replica context.

    Args:
      sums_of: {k: nested tensors} of this replica's microbatches.
      like: nested tensors of the structure of one microbatch's.
    """
    if not plan.in_fixed_tree:
        (sums,) = sums_of.values()  # one microbatch a replica
        return reduction.all_reduce(sums)
    num_leaves = plan.num_microbatches
    blocks = [
        reduction.aligned_blocks(plan.microbatches_of(r), num_leaves)
        for r in range(len(plan.shares))
    ]
    leaves = {(k, 1): sums for k, sums in sums_of.items()}
    own = [
        reduction.tree_sum(block, leaves, num_leaves) for block in blocks[replica_id()]
    ]
    return reduction.finish_tree(own, blocks, num_leaves, like)


def sums_of_microbatches(plan, images, labels, sums):
    """Returns {k: what `sums` gives for microbatch k} of this replica, one by one.

    One after the other, for memory: no more than one microbatch's activations at a
    time.

    Args:
      images, labels: this replica's part.
      sums: function of (k, images, labels).
    """
    sums_of, last = {}, []
    for k, examples in microbatches_of_replica(plan, images, labels).items():
        with tf.control_dependencies(last):
            sums_of[k] = sums(k, *examples)
        last = tf.nest.flatten(sums_of[k])
    return sums_of


def replica_train_step(model, update, plan, microbatch, images, labels):
    """Takes one step on this replica; returns the Sums of the global batch.

    With B examples in the global batch, the gradient of the mean loss is (1/B) times
    the sum of the gradients of the microbatches' loss sums. Runs in replica context.

    Args:
      update: parallel.updates.Update.
      microbatch: `microbatch_sums` of the model.
      images, labels: this replica's part.
    """
    weights = local_values(model.trainable_variables)
    step, loss_scale = update.step(), update.loss_scale()

    def sums(k, images, labels):
        state = state_of_microbatch(model, step, k)
        return microbatch(weights, state, images, labels, loss_scale)

    sums_of = sums_of_microbatches(plan, images, labels, sums)
    averaged = averaged_state(model)
    like = Sums(0.0, 0.0, model.trainable_variables, averaged)
    total = total_sums(plan, sums_of, like)
    # Batch norm's moving statistics: the mean over the microbatches that have examples.
    num_nonempty = sum(size > 0 for size in plan.sizes)
    update.apply(
        [gradient / plan.global_batch_size for gradient in total.gradients],
        averaged,
        [value / num_nonempty for value in total.state],
    )
    return total


def replica_eval_step(model, weights, plan, microbatch, images, labels):
    """Returns (loss sum, number correct) of the global batch in inference mode."""
    weights = local_values(weights)
    state = local_values(model.non_trainable_variables)
    sums_of = sums_of_microbatches(
        plan, images, labels, lambda k, *examples: microbatch(weights, state, *examples)
    )
    return total_sums(plan, sums_of, like=(0.0, 0.0))


def make_train_steps(strategy, model, update, plan, *, replicas_talk=False):
    """Returns a compiled function that takes many training steps in one call.

    The function takes (iterator, num_steps, totals): a distributed iterator of
    (images, labels) parts as `plan` cuts them, a scalar int64, and the Totals so far;
    it returns the Totals after `num_steps` more steps. Called with 0 steps it is traced
    and changes nothing. One trace serves every number of steps.

    Args:
      update: parallel.updates.Update of the model's variables.
      plan: microbatches.BatchPlan.
      replicas_talk: whether layers of the model reduce over replicas, which they can
        do only where each replica has one microbatch.
    """
    check_state(model)
    microbatch = functools.partial(microbatch_sums, model)
    if not replicas_talk:
        loss_scale = tf.TensorSpec([], tf.float32)
        microbatch = one_call(microbatch, model, plan.sizes, loss_scale)

    def replica_step(images, labels):
        total = replica_train_step(model, update, plan, microbatch, images, labels)
        return total.loss, total.num_correct

    return _make_steps(strategy, replica_step, plan)


def make_eval_steps(strategy, model, plan, weights=None):
    """Returns a compiled function as `make_train_steps` does, which only looks.

    It runs the model in inference mode and changes no variable.

    Args:
      weights: variables to take in place of the model's trainable ones, such as their
        moving averages.
    """
    weights = model.trainable_variables if weights is None else weights
    microbatch = one_call(functools.partial(inference_sums, model), model, plan.sizes)
    replica_step = functools.partial(
        replica_eval_step, model, weights, plan, microbatch
    )
    return _make_steps(strategy, replica_step, plan)


def _make_steps(strategy, replica_step, plan):
    """Returns the compiled loop around `replica_step`, which gives (loss, correct)."""
    if plan.in_fixed_tree:
        reduction.keep_order_of_additions()
    # Its Python is to run as it stands when traced; only the loop below is converted.
    replica_step = tf.autograph.experimental.do_not_convert(replica_step)

    @tf.function
    def steps(iterator, num_steps, totals):
        for _ in tf.range(num_steps):
            results = strategy.run(replica_step, args=next(iterator))
            # The same on every replica: the first one's will do.
            loss, correct = (strategy.experimental_local_results(r)[0] for r in results)
            totals = Totals(
                totals.loss_sum + tf.cast(loss, tf.float64),
                totals.num_correct + tf.cast(correct, tf.int64),
            )
        return totals

    return steps
