"""A microbatch's loss and gradients, as a pure function of weights, state and examples.

    sums = microbatch_gradients(model, weights, state, images, labels)
    sums.loss, sums.gradients                          # sums over its examples

Nothing here changes a variable, and nothing knows how many replicas there are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfmirror import errors
from tfmirror.data import pipeline

# (images [b, H, W, C] uint8, microbatch index) -> images of the same shape and dtype
Augment = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class MicrobatchSums(NamedTuple):
    """Sums over examples: those of two microbatches add up to those of their union."""

    loss: tf.Tensor  # scalar float32: sum over examples of the cross-entropy, nats
    # Scalar float32, a whole number: one dtype, so that one reduction adds it all.
    num_correct: tf.Tensor
    gradients: list[tf.Tensor]  # of `loss`, ordered as model.trainable_variables
    state: list[tf.Tensor]  # new averaged_state(model); zeros without examples


def microbatch_gradients(
    model: keras.Model,
    weights: list[tf.Tensor],
    state: list[tf.Tensor],
    images: tf.Tensor,
    labels: tf.Tensor,
    microbatch_index: tf.Tensor | int = 0,
    loss_scale: tf.Tensor | float = 1.0,
    *,
    augment: Augment | None = None,
    scales_loss: bool = False,
) -> MicrobatchSums:
    """Returns the MicrobatchSums of a training step's forward and backward pass.

    Keras' own Loss objects divide by the number of replicas. This sums, so that
    microbatches of unequal size, or of none, add up to what one device would compute.

    Args:
      weights: values of model.trainable_variables.
      state: values of model.non_trainable_variables.
      images: [b, H, W, C] uint8, with b known when traced; b may be 0.
      labels: [b] int32 in [0, K).
      microbatch_index: scalar integer, counted over all steps; random layers and
        `augment` draw from it.
      loss_scale: factor of the loss before gradients are taken, against underflow in
        float16. The gradients keep it, `loss` does not.
      augment: function that changes the images; None: they stay as they are.
      scales_loss: whether `loss_scale` can differ from 1.
    """
    averaged = [is_averaged(v) for v in model.non_trainable_variables]
    if images.shape[0] == 0:  # nothing to compute, and some layers refuse it
        zero = tf.zeros([])
        empty = [
            tf.zeros_like(s) for s, keep in zip(state, averaged, strict=True) if keep
        ]
        return MicrobatchSums(zero, zero, [tf.zeros_like(w) for w in weights], empty)
    state = state_of_microbatch(model, state, microbatch_index)
    if augment:
        images = augment(images, microbatch_index)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights)
        logits, new_state = model.stateless_call(
            weights, state, pipeline.to_unit_range(images), training=True
        )
        loss = tf.reduce_sum(per_example_loss(labels, logits))
        # Gradients of a sum grow with its number of examples. In float16 they would
        # overflow in large microbatches, so the backward pass sees about a mean.
        divisor = power_of_two(images.shape[0]) if scales_loss else 1.0
        scaled_loss = loss * (loss_scale / divisor)
    gradients = tape.gradient(
        scaled_loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    if scales_loss:  # gradients of float32 weights: exact, as a power of two is
        gradients = [gradient * divisor for gradient in gradients]
    new_state = [s for s, keep in zip(new_state, averaged, strict=True) if keep]
    return MicrobatchSums(loss, count_correct(labels, logits), gradients, new_state)


def power_of_two(number: int) -> float:
    """Returns the least power of two that is at least `number`, which is above 0."""
    return float(1 << (number - 1).bit_length())


def sums_structure(model: keras.Model) -> MicrobatchSums:
    """Returns values with the structure of the model's MicrobatchSums."""
    return MicrobatchSums(0.0, 0.0, model.trainable_variables, averaged_state(model))


def per_example_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of each example, [b] float32 in nats.

    Args:
      labels: [b] int32 in [0, K).
      logits: [b, K] floating point.
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=tf.cast(logits, tf.float32)
    )


def count_correct(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns how many examples have their largest logit at their label, float32."""
    predictions = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return tf.reduce_sum(tf.cast(predictions == labels, tf.float32))


def inference_logits(
    model: keras.Model,
    weights: list[tf.Tensor],
    state: list[tf.Tensor],
    images: tf.Tensor,
) -> tf.Tensor:
    """Returns the model's logits [b, K] float32 in inference mode.

    Args:
      weights, state: values of the model's trainable and non-trainable variables.
      images: [b, H, W, C] uint8, with b known when traced; b may be 0.
    """
    if images.shape[0] == 0:
        return tf.zeros([0, model.output_shape[-1]])
    images = pipeline.to_unit_range(images)
    logits, _ = model.stateless_call(weights, state, images, training=False)
    return tf.cast(logits, tf.float32)


def inference_sums(
    model: keras.Model,
    weights: list[tf.Tensor],
    state: list[tf.Tensor],
    images: tf.Tensor,
    labels: tf.Tensor,
    microbatch_index: tf.Tensor | int = 0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (loss sum in nats, number correct) of a microbatch in inference mode.

    Args:
      weights, state, images, labels: see `microbatch_gradients`.
      microbatch_index: not used, since nothing is drawn; `reduction.compile_sums`
        passes it to every function.
    """
    del microbatch_index
    logits = inference_logits(model, weights, state, images)
    loss = tf.reduce_sum(per_example_loss(labels, logits))
    return loss, count_correct(labels, logits)


def is_averaged(variable: keras.Variable) -> bool:
    """Returns whether microbatches average a variable of the model's state."""
    return tf.as_dtype(variable.dtype).is_floating


def averaged_state(model: keras.Model) -> list[keras.Variable]:
    """Returns the non-trainable variables that microbatches average: batch norm's."""
    return [v for v in model.non_trainable_variables if is_averaged(v)]


def check_state(model: keras.Model) -> None:
    """Raises InputError if a variable is neither averaged nor the seed of a layer."""
    for variable in model.non_trainable_variables:
        is_seed = variable.path.endswith("seed_generator_state")
        if not is_averaged(variable) and not is_seed:
            raise errors.InputError(
                f"model {model.name} may only keep floating-point numbers and seeds: "
                f"{variable.path} is {variable.dtype}"
            )


def state_of_microbatch(
    model: keras.Model, state: list[tf.Tensor], microbatch_index: tf.Tensor | int
) -> list[tf.Tensor]:
    """Returns `state` with every layer's seed replaced by this microbatch's."""
    return [
        value
        if is_averaged(variable)
        else tf.cast(seeds_of_microbatch(value, microbatch_index), value.dtype)
        for variable, value in zip(model.non_trainable_variables, state, strict=True)
    ]


def seeds_of_microbatch(seed: Any, microbatch_index: tf.Tensor | int) -> tf.Tensor:
    """Returns a layer's random seed for one microbatch of one step, [2] int64.

    Dropout draws from it. The mask is the same whichever replica computes it.

    Args:
      seed: [2] integers, drawn once for the layer.
      microbatch_index: scalar integer, counted over all steps.
    """
    fold_in = tf.random.experimental.stateless_fold_in
    folded = fold_in(tf.cast(seed, tf.int32), tf.cast(microbatch_index, tf.int32))
    # A layer counts the second number up when it draws again. Folded twice, it can't
    # arrive at the next microbatch's seed.
    return tf.cast(fold_in(folded, 0), tf.int64)
