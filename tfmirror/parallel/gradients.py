"""A microbatch's loss and gradients, as a pure function of weights, state and examples.

    sums = microbatch_gradients(model, weights, state, images, labels)
    sums.loss, sums.gradients                          # sums over its examples

Nothing here changes a variable, and nothing knows how many replicas there are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfmirror import metrics
from tfmirror.data import pipeline
from tfmirror.models import layer_override
from tfmirror.parallel import model_state

# (images [b, H, W, C] uint8, microbatch index) -> images of the same shape and dtype
Augment = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class MicrobatchSums(NamedTuple):
    """Sums over examples: those of two microbatches add up to those of their union."""

    # Scalar float32, nats: sum over examples of the cross-entropy, of smoothed labels
    # if they are smoothed.
    loss: tf.Tensor
    # Scalar float32, a whole number: one dtype, so that one reduction adds it all.
    num_correct: tf.Tensor
    gradients: list[tf.Tensor]  # of `loss`, ordered as model.trainable_variables
    state: list[tf.Tensor]  # new averaged state (model_state); zeros without examples


@layer_override.faster_calls()
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
    label_smoothing: float = 0.0,
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
      label_smoothing: see `per_example_loss`.
      scales_loss: whether `loss_scale` can differ from 1.
    """
    averaged = model_state.rules_of(model).averaged
    if images.shape[0] == 0:  # nothing to compute, and some layers refuse it
        zero = tf.zeros([])
        empty = [tf.zeros_like(state[k]) for k in averaged]
        return MicrobatchSums(zero, zero, [tf.zeros_like(w) for w in weights], empty)
    state = state_of_microbatch(model, state, microbatch_index)
    if augment:
        images = augment(images, microbatch_index)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights)
        logits, new_state, added = model.stateless_call(
            weights,
            state,
            pipeline.to_unit_range(images),
            training=True,
            return_losses=True,
        )
        loss = tf.reduce_sum(per_example_loss(labels, logits, label_smoothing))
        objective = loss + images.shape[0] * added_loss(added)
        # Gradients of a sum grow with its number of examples. In float16 they would
        # overflow in large microbatches, so the backward pass sees about a mean.
        divisor = power_of_two(images.shape[0]) if scales_loss else 1.0
        scaled_loss = objective * (loss_scale / divisor)
    gradients = tape.gradient(
        scaled_loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    # An Embedding has a sparse gradient; sums over microbatches and replicas are dense.
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    if scales_loss:  # gradients of float32 weights: exact, as a power of two is
        gradients = [gradient * divisor for gradient in gradients]
    new_state = [new_state[k] for k in averaged]
    return MicrobatchSums(loss, count_correct(labels, logits), gradients, new_state)


def added_loss(added: list[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of the losses that layers add to the mean loss, float32.

    These are the penalties of regularizers, and what layers give to `add_loss`: means
    over the microbatch's examples, or independent of them. A microbatch of b examples
    adds b times its own, so the mean over all examples holds each penalty once.
    """
    return tf.add_n([tf.zeros([]), *(tf.cast(loss, tf.float32) for loss in added)])


def power_of_two(number: int) -> float:
    """Returns the least power of two that is at least `number`, which is above 0."""
    return float(1 << (number - 1).bit_length())


def sums_structure(model: keras.Model) -> MicrobatchSums:
    """Returns values with the structure of the model's MicrobatchSums."""
    averaged = model_state.averaged_variables(model)
    return MicrobatchSums(0.0, 0.0, model.trainable_variables, averaged)


def per_example_loss(
    labels: tf.Tensor, logits: tf.Tensor, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Returns the cross-entropy of each example, [b] float32 in nats.

    Args:
      labels: [b] int32 in [0, K).
      logits: [b, K] floating point.
      label_smoothing: probability, in [0, 1), that is spread evenly over all K classes;
        the label keeps the rest (Szegedy et al. 2016, Rethinking Inception, section 7).
    """
    logits = tf.cast(logits, tf.float32)
    if not label_smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    num_classes = logits.shape[-1]
    of_label = (1 - label_smoothing) * tf.one_hot(labels, num_classes)
    targets = of_label + label_smoothing / num_classes
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


def count_correct(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns how many examples have their largest logit at their label, float32."""
    predictions = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return tf.reduce_sum(tf.cast(predictions == labels, tf.float32))


def count_confusions(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns how many examples of class i have their largest logit at class j.

    [K, K] float32 at [i, j], whole numbers. A product of ones and zeros, since adding
    to entries one by one has no fixed order on a GPU.
    """
    num_classes = logits.shape[-1]
    predictions = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return tf.matmul(
        tf.one_hot(labels, num_classes),
        tf.one_hot(predictions, num_classes),
        transpose_a=True,
    )


def count_top5(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns how many examples have their label among the five largest logits.

    A scalar float32, a whole number.

    Of equal logits the one of the class with the lower number counts as larger, as in
    `count_correct`. A logit that is not a number counts as larger than the label's, and
    a label's that is not a number as smaller than all. (tf.math.in_top_k counts all
    classes that share the fifth place.)

    Args:
      labels: [b] int32 in [0, K).
      logits: [b, K] floating point.
    """
    of_label = tf.gather(logits, labels[:, tf.newaxis], batch_dims=1)  # [b, 1]
    classes = tf.range(logits.shape[-1], dtype=labels.dtype)
    # The label's own is one of these.
    is_not_larger = (logits < of_label) | (
        (logits == of_label) & (classes >= labels[:, tf.newaxis])
    )
    num_larger = tf.reduce_sum(tf.cast(~is_not_larger, tf.int32), axis=1)
    return tf.reduce_sum(tf.cast(num_larger < 5, tf.float32))


@layer_override.faster_calls()
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
    *,
    with_confusions: bool = False,
) -> dict[str, tf.Tensor]:
    """Returns the sums of a microbatch in inference mode, {name: float32}.

    "loss" is the sum of the cross-entropies in nats, "num_correct" a count. With more
    than ten classes there is "num_top5" as well, and if asked for "confusions" [K, K].

    Args:
      weights, state, images, labels: see `microbatch_gradients`.
      microbatch_index: not used, since nothing is drawn; `reduction.compile_sums`
        passes it to every function.
    """
    del microbatch_index
    logits = inference_logits(model, weights, state, images)
    sums = {
        "loss": tf.reduce_sum(per_example_loss(labels, logits)),
        "num_correct": count_correct(labels, logits),
    }
    if metrics.counts_top5(logits.shape[-1]):
        sums["num_top5"] = count_top5(labels, logits)
    if with_confusions:
        sums["confusions"] = count_confusions(labels, logits)
    return sums


def inference_structure(
    model: keras.Model, *, with_confusions: bool = False
) -> dict[str, float]:
    """Returns values with the structure of the model's `inference_sums`."""
    names = ["loss", "num_correct"]
    if metrics.counts_top5(model.output_shape[-1]):
        names.append("num_top5")
    if with_confusions:
        names.append("confusions")
    return dict.fromkeys(names, 0.0)


def state_of_microbatch(
    model: keras.Model, state: list[tf.Tensor], microbatch_index: tf.Tensor | int
) -> list[tf.Tensor]:
    """Returns `state` with every layer's seed replaced by this microbatch's."""
    state = list(state)
    for k in model_state.rules_of(model).seeds:
        seed = seeds_of_microbatch(state[k], microbatch_index)
        state[k] = tf.cast(seed, state[k].dtype)
    return state


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
