"""What a microbatch contributes, as a pure function of weights, state and examples.

    found = microbatch_gradients(model, weights, state, images, labels)
    found.loss, found.gradients                        # sums over its examples

Nothing here changes a variable, and nothing knows how many replicas there are.
"""

import typing

import tensorflow as tf

from tfmirror import errors
from tfmirror.data import pipeline


class MicrobatchSums(typing.NamedTuple):
    """What examples contribute: the MicrobatchSums of two sets add up to their union's."""

    loss: tf.Tensor  # scalar float32: sum over examples of the cross-entropy, nats
    num_correct: tf.Tensor  # scalar float32, a whole number: one all-reduce, one dtype
    gradients: list[tf.Tensor]  # of `loss`, ordered as model.trainable_variables
    state: list[tf.Tensor]  # new averaged_state(model), over microbatches with examples


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
            raise errors.InputError(
                f"model {model.name} must keep only floating-point numbers and seeds: "
                f"{variable.path} is {variable.dtype}"
            )


def seeds_of_microbatch(seed, draw):
    """Returns a layer's random seed for one microbatch of one step, [2] int64.

    Dropout draws a mask of its own from it, the same on whichever replica.

    Args:
      seed: [2] integers, drawn once for the layer.
      draw: scalar integer, the microbatch's number counted over all steps.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    folded = fold_in(tf.cast(seed, tf.int32), tf.cast(draw, tf.int32))
    # Once more, since a layer counts the second number up when it draws again, and must
    # not arrive at the next microbatch's.
    return tf.cast(fold_in(folded, 0), tf.int64)


def state_of_microbatch(model, state, draw):
    """Returns `state` with every layer's seed replaced by one of this microbatch."""
    return [
        value
        if is_averaged(variable)
        else tf.cast(seeds_of_microbatch(value, draw), value.dtype)
        for variable, value in zip(model.non_trainable_variables, state, strict=True)
    ]


def microbatch_gradients(
    model, weights, state, images, labels, draw=0, loss_scale=1.0, augment=None
):
    """Returns the MicrobatchSums of a microbatch, as a pure function: nothing is changed.

    Keras' own Loss objects divide by the number of replicas; this sums, so that
    microbatches of unequal size, or of none, add up to what one device would have
    found.

    Args:
      weights, state: values of model.trainable_variables and .non_trainable_variables.
      images: [b, H, W, C] uint8, with b known when traced.
      labels: [b] int32 in [0, K).
      draw: scalar integer that random layers draw from, see `seeds_of_microbatch`.
      loss_scale: what the loss is multiplied by before gradients are taken; they keep
        it. Against underflow in float16.
      augment: function of (images, draw) that changes images; None: none does.
    """
    averaged = [is_averaged(v) for v in model.non_trainable_variables]
    if images.shape[0] == 0:  # nothing to compute, and some layers refuse it
        zero = tf.zeros([])
        empty = [
            tf.zeros_like(s) for s, keep in zip(state, averaged, strict=True) if keep
        ]
        return MicrobatchSums(zero, zero, [tf.zeros_like(w) for w in weights], empty)
    state = state_of_microbatch(model, state, draw)
    if augment:
        images = augment(images, draw)
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
    return MicrobatchSums(loss, count_correct(labels, logits), gradients, new_state)


def inference_logits(model, weights, state, images):
    """Returns the model's logits [b, K] float32 in inference mode, for b of 0 too.

    Args:
      weights, state: as of `microbatch_gradients`.
      images: [b, H, W, C] uint8, with b known when traced.
    """
    if images.shape[0] == 0:
        return tf.zeros([0, model.output_shape[-1]])
    images = pipeline.to_unit_range(images)
    logits, _ = model.stateless_call(weights, state, images, training=False)
    return tf.cast(logits, tf.float32)


def inference_sums(model, weights, state, images, labels, draw=0):
    """Returns (loss sum, number correct) of a microbatch in inference mode.

    Args:
      draw: nothing is drawn; taken since `microbatch_gradients` takes it.
    """
    del draw
    logits = inference_logits(model, weights, state, images)
    return tf.reduce_sum(per_example_loss(labels, logits)), count_correct(
        labels, logits
    )
