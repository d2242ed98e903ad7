"""Adding the microbatches' sums: in one fixed tree, or as the strategy does.

Floating-point addition depends on its order. For the same bits on any number of
replicas the order must not depend on that number: here it is a binary tree over the M
microbatches. Each replica adds the whole subtrees that lie in its own range of
microbatches; the rest of the tree is added across replicas.

With M = 5 on two replicas that hold 3 and 2 microbatches:

            +
         /     \\
        +       4          replica 0: subtrees (0, 2) and (2, 1)
       /  \\                replica 1: subtrees (3, 1) and (4, 4), which is only leaf 4
      +    +               across replicas: (2, 1) + (3, 1), then the two upper sums
     0 1  2 3

In reading order: the tree's geometry, its lower part inside a replica, and its upper
part across replicas. The strategy's own reduction is in `all_reduce`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfmirror.parallel import all_reduce, microbatches, replicas
from tfmirror.parallel.microbatches import BatchPlan

# A subtree: its first leaf, and its number of leaves, a power of two that divides the
# first. It may reach past the last leaf, where there is nothing to add.
Subtree = tuple[int, int]
# (sizes of neighbouring microbatches, weights, state, images, labels, ...) -> their sum
ComputeSums = Callable[..., Any]


def aligned_subtrees(leaves: range, num_leaves: int) -> list[Subtree]:
    """Returns the largest subtrees that cover the range `leaves`, in order."""
    low, high = leaves.start, leaves.stop
    whole = tree_size(num_leaves)
    if high == num_leaves:
        high = whole
    subtrees = []
    while low < min(high, num_leaves):
        count = (low & -low) or whole
        while low + count > high:
            count //= 2
        subtrees.append((low, count))
        low += count
    return subtrees


def tree_size(num_leaves: int) -> int:
    """Returns the least power of two that is at least `num_leaves`."""
    return 1 << (num_leaves - 1).bit_length()


def subtrees_of_replicas(plan: BatchPlan) -> list[list[Subtree]]:
    """Returns for each replica the subtrees that it adds up.

    Without a fixed tree each microbatch is one.
    """
    ranges = [plan.microbatches_of(r) for r in range(plan.num_replicas)]
    if not plan.in_fixed_tree:
        return [[(k, 1) for k in of_replica] for of_replica in ranges]
    return [aligned_subtrees(leaves, plan.num_microbatches) for leaves in ranges]


def tree_sum(subtree: Subtree, sums: Mapping[Subtree, Any], num_leaves: int) -> Any:
    """Returns the sum of the leaves in `subtree`, added pairwise up the tree.

    Args:
      sums: nested tensors of subtrees that together cover `subtree`.
    """
    if subtree in sums:
        return sums[subtree]
    first, half = subtree[0], subtree[1] // 2
    left = tree_sum((first, half), sums, num_leaves)
    if first + half >= num_leaves:
        return left
    right = tree_sum((first + half, half), sums, num_leaves)
    return tf.nest.map_structure(tf.add, left, right)


def compile_sums(
    function: Callable[..., Any],
    model: keras.Model,
    *,
    with_loss_scale: bool = False,
    max_concurrent: int = 1,
    is_inlined: bool = False,
) -> ComputeSums:
    """Returns a function that gives the sum of a subtree's microbatches.

        compute_sums = compile_sums(function, model)
        compute_sums((8, 8, 7, 7), weights, state, images, labels, microbatch_index)
        # is (0 + 1) + (2 + 3)

    It takes the sizes of the microbatches as Python integers; weights and state; images
    and labels of all of them; and the index of the first microbatch. A function of 2c
    microbatches calls the one of c microbatches twice and adds. So all microbatches run
    one compiled function, on every replica, and M of them take about log M traces and
    graphs instead of M.

    Args:
      function: pure function of one microbatch's (weights, state, images, labels,
        microbatch_index) that returns nested tensors to add.
      model: has the weights and state that `function` takes.
      with_loss_scale: whether `function` takes a scalar float32 as a last argument.
      max_concurrent: microbatches that may be computed, and be in memory, at the same
        time; rounded down to a power of two. Changes no bit.
      is_inlined: whether `function` is called as it is, for one microbatch. Needed if
        it communicates with other replicas, of which a compiled function knows nothing.
    """
    if is_inlined:
        return lambda sizes, *arguments: function(*arguments)
    weights, state = (
        [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    loss_scale = [tf.TensorSpec([], tf.float32)] if with_loss_scale else []

    def compiled(sizes, max_concurrent):
        # Equal subtrees get equal keys, and so are traced once.
        return trace(tuple(sizes), max(1, min(max_concurrent, len(sizes))))

    @functools.cache
    def trace(sizes, max_concurrent):
        if len(sizes) == 1:
            body = function
        else:
            body = functools.partial(_add_halves, compiled, sizes, max_concurrent)
        return tf.function(
            # A lambda, since TensorFlow reads a functools.partial's bound names.
            lambda *arguments: body(*arguments),
            autograph=False,
            experimental_attributes={"_noinline": True},
        ).get_concrete_function(
            weights,
            state,
            tf.TensorSpec([sum(sizes), *model.input_shape[1:]], tf.uint8),
            tf.TensorSpec([sum(sizes)], tf.int32),
            tf.TensorSpec([], tf.int32),
            *loss_scale,
        )

    def compute_sums(sizes, *arguments):
        # Tensors, since TensorFlow would compile a copy for each Python constant.
        tensors = tf.nest.map_structure(tf.convert_to_tensor, arguments)
        return compiled(sizes, max_concurrent)(*tensors)

    return compute_sums


def _add_halves(
    compiled,
    sizes,
    max_concurrent,
    weights,
    state,
    images,
    labels,
    microbatch_index,
    *loss_scale,
):
    """Returns the sum of the left half's sums and of the right half's.

    The right half waits for the left one, which saves memory, unless more than one
    microbatch may be computed at a time.
    """
    half = tree_size(len(sizes)) // 2
    cut = sum(sizes[:half])
    left_images, right_images = images[:cut], images[cut:]
    left = compiled(sizes[:half], max_concurrent // 2)(
        weights, state, left_images, labels[:cut], microbatch_index, *loss_scale
    )
    if max_concurrent == 1:
        right_images = after(left, right_images)
    right = compiled(sizes[half:], max_concurrent // 2)(
        weights,
        state,
        right_images,
        labels[cut:],
        microbatch_index + half,
        *loss_scale,
    )
    return tf.nest.map_structure(tf.add, left, right)


def after(done: Any, tensor: tf.Tensor) -> tf.Tensor:
    """Returns `tensor`, available only once `done` has been computed.

    Args:
      done: nested outputs of one compiled function, which are all ready together.
    """
    with tf.control_dependencies(tf.nest.flatten(done)[:1]):
        return tf.identity(tensor)


def sum_subtrees(
    plan: BatchPlan,
    compute: Callable[[Sequence[int], tf.Tensor, tf.Tensor, int], Any],
    images: tf.Tensor,
    labels: tf.Tensor,
) -> list[Any]:
    """Returns the sums of each of this replica's subtrees, one after the other.

    Runs in replica context.

    Args:
      compute: function of (microbatch sizes, images, labels, index of the first
        microbatch) that returns the sum of a subtree as nested tensors.
      images, labels: this replica's part of the global batch.
    """
    subtrees = subtrees_of_replicas(plan)[replicas.replica_id()]
    sizes = [plan.microbatch_sizes[first : first + count] for first, count in subtrees]
    pieces = microbatches.split(images, labels, list(map(sum, sizes)))
    sums: list[Any] = []
    for (first, _), of_subtree, (x, y) in zip(subtrees, sizes, pieces, strict=True):
        x = after(sums[-1], x) if sums else x
        sums.append(compute(of_subtree, x, y, first))
    return sums


def total(
    plan: BatchPlan, subtree_sums: list[Any], structure: Any, pack_bytes: int = 0
) -> Any:
    """Returns the total over all microbatches, the same on every replica.

    This is the step's only communication. Runs in replica context.

    Args:
      subtree_sums: nested tensors for each of this replica's subtrees, in order.
      structure: nested values of the structure of one microbatch's sums, for replicas
        without a microbatch.
      pack_bytes: see `all_reduce.all_reduce`, which adds without a fixed tree.
    """
    if plan.in_fixed_tree:
        subtrees = subtrees_of_replicas(plan)
        return finish_tree(subtree_sums, subtrees, plan.num_microbatches, structure)
    (of_microbatch,) = subtree_sums  # one microbatch a replica
    return all_reduce.all_reduce(of_microbatch, pack_bytes)


def finish_tree(
    subtree_sums: list[Any],
    subtrees: list[list[Subtree]],
    num_leaves: int,
    structure: Any,
) -> Any:
    """Returns the total of all leaves, the same bits on every replica.

    Runs in replica context. Every replica hands over the same number of tensors, as
    merge_call demands. With sums of two tensors (a, b), two subtrees on replica 0 and
    one on replica 1, `columns` has one distributed value for each position:

        position      0         1         2         3
        replica 0   a of 1st  b of 1st  a of 2nd  b of 2nd
        replica 1   a of 1st  b of 1st  filler    filler

    Args:
      subtree_sums: nested tensors for each of this replica's subtrees, in order.
      subtrees: those of every replica, as of `subtrees_of_replicas`.
      structure: nested values of the structure of one subtree's sums.
    """
    if len(subtrees) == 1:
        return subtree_sums[0]
    most_subtrees = max(map(len, subtrees))
    width = len(tf.nest.flatten(structure))  # tensors of one subtree
    row = [tensor for sums in subtree_sums for tensor in tf.nest.flatten(sums)]
    row += [tf.zeros([]) for _ in range(most_subtrees * width - len(row))]

    def merge(strategy, *columns):
        local = [replicas.local_values(strategy, column) for column in columns]
        sums = {}
        for of_replica, values in zip(subtrees, zip(*local, strict=True), strict=True):
            for position, subtree in enumerate(of_replica):
                begin = position * width
                sums[subtree] = list(values[begin : begin + width])
        # On one device, from which every replica reads the result.
        with tf.device(strategy.extended.worker_devices[0]):
            return tree_sum((0, tree_size(num_leaves)), sums, num_leaves)

    context = tf.distribute.get_replica_context()
    merged = context.merge_call(merge, args=tuple(row))
    return tf.nest.pack_sequence_as(structure, merged)
