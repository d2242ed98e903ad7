"""One training step on N replicas, with every part of it in sight.

    steps = make_train_steps(strategy, model, optimizer, plan)
    totals = steps(iterator, num_steps, zero_totals())

A microbatch is a pure function of weights, state and examples (`contribution`). What
the microbatches found is added, inside each replica (`sums_of_blocks`) and across them
(`total_sums`), divided by the number of examples once, and applied by each replica to
its own copy of the variables, which therefore stay equal.
"""

import functools
import itertools
import typing

import tensorflow as tf

from tfmirror.parallel import gradients, reduction, subtrees


class Totals(typing.NamedTuple):
    """What steps add up to on the device; `metrics.Totals` is what it becomes."""

    loss_sum: tf.Tensor  # scalar float64, nats
    num_correct: tf.Tensor  # scalar int64
    num_steps: tf.Tensor  # scalar int64


def make_totals(loss_sum, num_correct, num_steps):
    """Returns the Totals of these numbers."""
    return Totals(
        tf.constant(loss_sum, tf.float64),
        tf.constant(num_correct, tf.int64),
        tf.constant(num_steps, tf.int64),
    )


def zero_totals():
    """Returns the Totals of no step."""
    return make_totals(0.0, 0, 0)


def replica_id():
    """Returns which replica this is, as a Python integer. Replica context."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def microbatches_of_replica(plan, images, labels):
    """Returns {k: (images, labels)} of this replica's microbatches, of known sizes.

    Args:
      images, labels: this replica's part of the global batch.
    """
    mine = plan.microbatches_of(replica_id())
    parts = _split(images, labels, [plan.sizes[k] for k in mine])
    return dict(zip(mine, parts, strict=True))


def subtrees_of_replicas(plan):
    """Returns for each replica the subtrees that it adds up, as [(first, count)]."""
    ranges = [
        plan.microbatches_of(r) for r in range(len(plan.microbatches_per_replica))
    ]
    if not plan.in_fixed_tree:
        return [[(k, 1) for k in of_replica] for of_replica in ranges]
    return [
        reduction.aligned_subtrees(of_replica, plan.num_microbatches)
        for of_replica in ranges
    ]


def sums_of_blocks(plan, images, labels, sums):
    """Returns what `sums` gives for each of this replica's blocks, one by one.

    Args:
      images, labels: this replica's part.
      sums: function of (sizes, images, labels, k) of the microbatches from k on.
    """
    blocks = subtrees_of_replicas(plan)[replica_id()]
    sizes = [plan.sizes[first : first + count] for first, count in blocks]
    parts = _split(images, labels, map(sum, sizes))
    found = []
    for (first, _), of_block, (x, y) in zip(blocks, sizes, parts, strict=True):
        x = subtrees.after(found[-1], x) if found else x
        found.append(sums(of_block, x, y, first))
    return found


def total_sums(plan, block_sums, like, pack_bytes=0):
    """Returns the total over all microbatches, the same on every replica.

    This holds the step's only communication. Runs in replica context.

    Args:
      block_sums: nested tensors for each of this replica's blocks, in order.
      like: nested tensors of the structure of one microbatch's.
      pack_bytes: of reduction.all_reduce, where that adds.
    """
    if not plan.in_fixed_tree:
        (sums,) = block_sums  # one microbatch a replica
        return reduction.all_reduce(sums, pack_bytes)
    blocks = subtrees_of_replicas(plan)
    return reduction.finish_tree(block_sums, blocks, plan.num_microbatches, like)


def replica_sums(model, optimizer, plan, sums, pack_bytes, images, labels):
    """Returns the Sums of the global batch, the same on every replica.

    Changes nothing. Runs in replica context.

    Args:
      optimizer: parallel.updates.Update.
      sums: what subtrees.compile_sums makes of gradients.microbatch_gradients.
      pack_bytes: of `total_sums`.
      images, labels: this replica's part.
    """
    weights = gradients.local_values(model.trainable_variables)
    state = gradients.local_values(model.non_trainable_variables)
    step, loss_scale = tf.cast(optimizer.step(), tf.int32), optimizer.loss_scale()

    def block_sums(sizes, images, labels, k):
        draw = step * plan.num_microbatches + k
        return sums(sizes, weights, state, images, labels, draw, loss_scale)

    found = sums_of_blocks(plan, images, labels, block_sums)
    averaged = gradients.averaged_state(model)
    like = gradients.MicrobatchSums(0.0, 0.0, model.trainable_variables, averaged)
    return total_sums(plan, found, like, pack_bytes)


def replica_apply(model, optimizer, plan, total):
    """Changes this replica's variables by what the global batch found.

    With B examples in the global batch, the gradient of the mean loss is (1/B) times
    the sum of the gradients of the microbatches' loss sums. Runs in replica context.

    Args:
      total: Sums of the global batch, all of them finite.
    """
    # Batch norm's moving statistics: the mean over the microbatches that have examples.
    num_nonempty = sum(size > 0 for size in plan.sizes)
    optimizer.apply(
        [gradient / plan.global_batch_size for gradient in total.gradients],
        gradients.averaged_state(model),
        [value / num_nonempty for value in total.state],
    )


def replica_eval_step(model, weights, plan, sums, images, labels):
    """Returns (loss sum, number correct) of the global batch in inference mode."""
    weights = gradients.local_values(weights)
    state = gradients.local_values(model.non_trainable_variables)
    found = sums_of_blocks(
        plan,
        images,
        labels,
        lambda sizes, *part_and_k: sums(sizes, weights, state, *part_and_k),
    )
    return total_sums(plan, found, like=(0.0, 0.0))


def training_sums(model, augment, has_cross_replica_ops, max_concurrent):
    """Returns a function of microbatches' sizes and arguments that gives their Sums.

    Args:
      augment: of gradients.microbatch_gradients.
      has_cross_replica_ops: whether layers of the model reduce over replicas, which they can
        do only where each replica has one microbatch.
      max_concurrent: of subtrees.compile_sums.
    """
    microbatch = functools.partial(
        gradients.microbatch_gradients, model, augment=augment
    )
    if (
        has_cross_replica_ops
    ):  # not in a function of its own, which knows of one replica only
        return lambda sizes, *arguments: microbatch(*arguments)
    return subtrees.compile_sums(
        microbatch, model, *subtrees.TRAINING_SPECS, max_concurrent=max_concurrent
    )


def make_train_steps(
    strategy,
    model,
    optimizer,
    plan,
    *,
    augment=None,
    has_cross_replica_ops=False,
    pack_bytes=0,
    max_concurrent=1,
):
    """Returns a compiled function that takes many training steps in one call.

    The function takes (iterator, num_steps, totals): a distributed iterator of
    (images, labels) parts as `plan` cuts them, a scalar int64, and the Totals so far;
    it returns the Totals after `num_steps` more steps. Called with 0 steps it is traced
    and changes nothing. One trace serves every number of steps.

    It stops before a step whose loss or gradient is not finite, and leaves variables
    and totals as they were: fewer steps are then counted. Only a gradient that is not
    finite while the loss is scaled is no reason to stop: the step is skipped, and the
    scale lowered.

    Args:
      optimizer: parallel.updates.Update of the model's variables.
      plan: microbatches.BatchPlan.
      augment, has_cross_replica_ops, max_concurrent: of `training_sums`.
      pack_bytes: of `total_sums`.
    """
    gradients.check_state(model)
    sums = training_sums(model, augment, has_cross_replica_ops, max_concurrent)
    find_sums = functools.partial(
        replica_sums, model, optimizer, plan, sums, pack_bytes
    )

    def find(parts):
        return strategy.run(find_sums, args=parts)

    def take(sums):
        first = tf.nest.map_structure(functools.partial(_of_first, strategy), sums)
        is_finite = tf.reduce_all([_is_finite(g) for g in first.gradients])
        goes_on = _is_finite(first.loss) & (is_finite | optimizer.scales_loss)
        apply = functools.partial(replica_apply, model, optimizer, plan)
        tf.cond(
            goes_on & is_finite,
            lambda: _run_branch(strategy, apply, sums),
            lambda: (
                _run_branch(strategy, optimizer.skip) if optimizer.scales_loss else 0
            ),
        )
        return first.loss, first.num_correct, goes_on

    return _make_steps(find, take, plan)


def make_eval_steps(strategy, model, plan, weights=None, max_concurrent=1):
    """Returns a compiled function as `make_train_steps` does, which only looks.

    It runs the model in inference mode and changes no variable. It stops before a step
    whose loss is not finite.

    Args:
      weights: variables to take in place of the model's trainable ones, such as their
        moving averages.
      max_concurrent: of subtrees.compile_sums.
    """
    weights = model.trainable_variables if weights is None else weights
    microbatch = functools.partial(gradients.inference_sums, model)
    sums = subtrees.compile_sums(microbatch, model, max_concurrent=max_concurrent)
    replica_step = functools.partial(replica_eval_step, model, weights, plan, sums)

    def take(sums):
        loss, correct = (_of_first(strategy, value) for value in sums)
        return loss, correct, _is_finite(loss)

    return _make_steps(lambda parts: strategy.run(replica_step, args=parts), take, plan)


def _split(images, labels, sizes):
    """Returns [(images, labels)] of pieces of a replica's part, of known sizes."""
    ends = list(itertools.accumulate(sizes, initial=0))
    images = tf.ensure_shape(images, [ends[-1], *images.shape[1:]])
    labels = tf.ensure_shape(labels, [ends[-1]])
    return [
        (images[begin:end], labels[begin:end])
        for begin, end in itertools.pairwise(ends)
    ]


def _make_steps(find, take, plan):
    """Returns the compiled loop around one step.

    Args:
      find: function of the parts of a global batch that gives what they add up to.
      take: function of that which takes the step, if it can be taken, and gives (loss
        sum, number correct, whether it was).
    """
    if plan.in_fixed_tree:
        reduction.disable_arithmetic_optimizer()

    # Its Python is to run as it stands when traced; only the loop below is converted.
    @tf.autograph.experimental.do_not_convert
    def step(iterator, totals):
        loss, correct, is_taken = take(find(next(iterator)))
        taken = Totals(
            totals.loss_sum + tf.cast(loss, tf.float64),
            totals.num_correct + tf.cast(correct, tf.int64),
            totals.num_steps + 1,
        )
        kept = [
            tf.where(is_taken, new, old) for new, old in zip(taken, totals, strict=True)
        ]
        return Totals(*kept), is_taken

    @tf.function
    def steps(iterator, num_steps, totals):
        for _ in tf.range(num_steps):
            totals, is_taken = step(iterator, totals)
            if not is_taken:
                break
        return totals

    return steps


def _of_first(strategy, value):
    """Returns the first replica's `value`; those of the others are the same."""
    return strategy.experimental_local_results(value)[0]


def _is_finite(value):
    """Returns whether all of a tensor is finite, a scalar bool."""
    return tf.reduce_all(tf.math.is_finite(value))


def _run_branch(strategy, replica_function, *args):
    """Runs a function on every replica; returns 0, as a branch of a graph must."""
    strategy.run(replica_function, args=args)
    return 0
