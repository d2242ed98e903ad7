"""What neighbouring microbatches add up to, as one call in the graph.

    sums = compile_sums(function, model)
    sums((8, 8, 7, 7), weights, state, images, labels, draw)    # (0 + 1) + (2 + 3)

A function of 2c microbatches calls the one of c microbatches twice and adds. So all of
them run one compiled function, on whichever replica, none is optimized together with
its neighbours, and M microbatches take about log M traces and graphs, not M.
"""

import functools

import tensorflow as tf

from tfmirror.parallel import reduction

# Of loss scale, which training hands to what `compile_sums` returns.
TRAINING_SPECS = (tf.TensorSpec([], tf.float32),)


def compile_sums(function, model, *more, max_concurrent=1):
    """Returns a function of microbatches' sizes and arguments that gives their sum.

    The sizes are those of a whole subtree of `reduction.tree_sum`, as Python integers.
    The other arguments are weights, state, images and labels of all of them, the draw
    of the first one, and `more`. Each combination of sizes, and of how many of them are
    computed at a time, is traced once.

    Args:
      function: of one microbatch's (weights, state, images, labels, draw, *more) that
        gives nested tensors; pure.
      more: tf.TensorSpecs of further arguments.
      max_concurrent: how many microbatches may be computed at a time, and be in memory: the
        largest power of two in it. Changes no bit.
    """
    weights, state = (
        [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )

    def subtree(sizes, max_concurrent):
        # As equal ones have them in common.
        return traced(tuple(sizes), max(1, min(max_concurrent, len(sizes))))

    @functools.cache
    def traced(sizes, max_concurrent):
        if len(sizes) == 1:
            body = function
        else:
            body = functools.partial(_add_halves, subtree, sizes, max_concurrent)
        return tf.function(
            # Without the names of what a functools.partial has bound.
            lambda *arguments: body(*arguments),
            autograph=False,
            experimental_attributes={"_noinline": True},
        ).get_concrete_function(
            weights,
            state,
            tf.TensorSpec([sum(sizes), *model.input_shape[1:]], tf.uint8),
            tf.TensorSpec([sum(sizes)], tf.int32),
            tf.TensorSpec([], tf.int32),
            *more,
        )

    def sums(sizes, *arguments):
        # Never a constant, for each of which TensorFlow would compile a copy.
        tensors = tf.nest.map_structure(tf.convert_to_tensor, arguments)
        return subtree(sizes, max_concurrent)(*tensors)

    return sums


def _add_halves(
    subtree, sizes, max_concurrent, weights, state, images, labels, draw, *more
):
    """Returns the sum of the left half's sums and of the right half's.

    One half after the other, for memory, unless more than one microbatch's activations
    may be there at a time.
    """
    half = reduction.tree_size(len(sizes)) // 2
    cut = sum(sizes[:half])
    left_images, right_images = images[:cut], images[cut:]
    left = subtree(sizes[:half], max_concurrent // 2)(
        weights, state, left_images, labels[:cut], draw, *more
    )
    if max_concurrent == 1:
        right_images = after(left, right_images)
    right = subtree(sizes[half:], max_concurrent // 2)(
        weights, state, right_images, labels[cut:], draw + half, *more
    )
    return tf.nest.map_structure(tf.add, left, right)


def after(done, tensor):
    """Returns `tensor`, to be had only when `done`, of one call, has been computed."""
    with tf.control_dependencies(tf.nest.flatten(done)[:1]):  # all outputs come at once
        return tf.identity(tensor)
