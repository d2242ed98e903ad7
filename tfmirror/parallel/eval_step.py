"""One evaluation step on N replicas: the training step without gradients or update.

eval_steps = make_eval_steps(strategy, model, plan)
totals = eval_steps(iterator, num_steps, step_loop.zero_totals())
"""

import functools

import keras
import tensorflow as tf

from tfmirror.parallel import gradients, reduction, replicas, step_loop
from tfmirror.parallel.microbatches import BatchPlan


def make_eval_steps(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    plan: BatchPlan,
    *,
    weights: list[keras.Variable] | None = None,
    state: list[keras.Variable] | None = None,
    max_concurrent: int = 1,
    confusions: tf.Variable | None = None,
) -> step_loop.StepLoop:
    """Returns a compiled function that evaluates many global batches in one call.

    It takes and returns what the function of `step.make_train_steps` does, runs the
    model in inference mode and changes no variable but `confusions`. It stops before a
    step whose loss is not finite.

    Args:
      weights: variables to use instead of the model's trainable ones, such as their
        moving averages; None: the model's own.
      state: variables to use instead of the model's non-trainable ones, likewise.
      max_concurrent: microbatches that a replica may compute at the same time.
      confusions: of `make_confusions`; every step adds its examples to it. None: they
        are not counted.
    """
    with_confusions = confusions is not None
    evaluated = model.trainable_variables if weights is None else weights
    evaluated_state = model.non_trainable_variables if state is None else state
    microbatch = functools.partial(
        gradients.inference_sums, model, with_confusions=with_confusions
    )
    compute_sums = reduction.compile_sums(
        microbatch, model, max_concurrent=max_concurrent
    )

    def replica_eval_total(images, labels):
        values = replicas.read(evaluated)
        state_values = replicas.read(evaluated_state)

        def compute(sizes, images, labels, k):
            return compute_sums(sizes, values, state_values, images, labels, k)

        subtree_sums = reduction.sum_subtrees(plan, compute, images, labels)
        structure = gradients.inference_structure(
            model, with_confusions=with_confusions
        )
        return reduction.total(plan, subtree_sums, structure)

    def eval_step(images, labels):
        total = strategy.run(replica_eval_total, args=(images, labels))
        sums = replicas.first(strategy, total)
        goes_on = step_loop.is_finite(sums["loss"])
        if confusions is not None:
            with tf.device("CPU:0"):
                added = tf.cast(sums["confusions"], confusions.dtype)
                confusions.assign_add(tf.where(goes_on, added, tf.zeros_like(added)))
        return step_loop.StepResult(
            sums["loss"],
            sums["num_correct"],
            goes_on=goes_on,
            num_top5=sums.get("num_top5", 0),
        )

    return step_loop.make_step_loop(eval_step, plan)


def make_confusions(num_classes: int) -> tf.Variable:
    """Returns a confusion matrix of zeros, [K, K] int64, on the host.

    At [i, j] is how many examples of class i were taken for class j.
    """
    with tf.device("CPU:0"):
        zeros = tf.zeros([num_classes, num_classes], tf.int64)
        return tf.Variable(zeros, trainable=False)
