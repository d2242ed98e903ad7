"""One training step on N replicas, with every part of it in sight.

    steps = make_train_steps(strategy, model, update, plan)
    totals = steps(iterator, num_steps, zero_totals())

A microbatch is a pure function of weights, state and examples (`contribution`). What
the microbatches found is added, inside each replica and across them (`total_sums`),
divided by the number of examples once, and applied by each replica to its own copy of
the variables, which therefore stay equal.
"""

import functools
import itertools
import typing

import tensorflow as tf

from tfmirror.parallel import contribution, reduction


class Totals(typing.NamedTuple):
    """What steps add up to on the device; `metrics.Totals` is what it becomes."""

    loss_sum: tf.Tensor  # scalar float64, nats
    num_correct: tf.Tensor  # scalar int64


def zero_totals():
    """Returns the Totals of no step."""
    return Totals(tf.zeros([], tf.float64), tf.zeros([], tf.int64))


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
    for k, (x, y) in microbatches_of_replica(plan, images, labels).items():
        with tf.control_dependencies(last):  # on one output: all come at once
            x = tf.identity(x)
        sums_of[k] = sums(k, x, y)
        last = tf.nest.flatten(sums_of[k])[:1]
    return sums_of


def replica_train_step(model, update, plan, microbatch, images, labels):
    """Takes one step on this replica; returns the Sums of the global batch.

    With B examples in the global batch, the gradient of the mean loss is (1/B) times
    the sum of the gradients of the microbatches' loss sums. Runs in replica context.

    Args:
      update: parallel.updates.Update.
      microbatch: contribution.microbatch_sums of the model.
      images, labels: this replica's part.
    """
    weights = contribution.local_values(model.trainable_variables)
    state = contribution.local_values(model.non_trainable_variables)
    step, loss_scale = tf.cast(update.step(), tf.int32), update.loss_scale()

    def sums(k, images, labels):
        # Never a constant, for each of which TensorFlow would compile a copy.
        draw = step * plan.num_microbatches + k
        return microbatch(weights, state, images, labels, draw, loss_scale)

    sums_of = sums_of_microbatches(plan, images, labels, sums)
    averaged = contribution.averaged_state(model)
    like = contribution.Sums(0.0, 0.0, model.trainable_variables, averaged)
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
    weights = contribution.local_values(weights)
    state = contribution.local_values(model.non_trainable_variables)
    sums_of = sums_of_microbatches(
        plan, images, labels, lambda k, *examples: microbatch(weights, state, *examples)
    )
    return total_sums(plan, sums_of, like=(0.0, 0.0))


def make_train_steps(
    strategy, model, update, plan, *, augment=None, replicas_talk=False
):
    """Returns a compiled function that takes many training steps in one call.

    The function takes (iterator, num_steps, totals): a distributed iterator of
    (images, labels) parts as `plan` cuts them, a scalar int64, and the Totals so far;
    it returns the Totals after `num_steps` more steps. Called with 0 steps it is traced
    and changes nothing. One trace serves every number of steps.

    Args:
      update: parallel.updates.Update of the model's variables.
      plan: microbatches.BatchPlan.
      augment: of contribution.microbatch_sums.
      replicas_talk: whether layers of the model reduce over replicas, which they can
        do only where each replica has one microbatch.
    """
    contribution.check_state(model)
    microbatch = functools.partial(contribution.microbatch_sums, model, augment=augment)
    if not replicas_talk:
        microbatch = contribution.one_call(
            microbatch, model, plan.sizes, *contribution.TRAINING_SPECS
        )

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
    microbatch = functools.partial(contribution.inference_sums, model)
    microbatch = contribution.one_call(microbatch, model, plan.sizes)
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
