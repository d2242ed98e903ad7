"""Computes batch norm with TensorFlow's fused kernel, in plain Keras layers.

    fuse(model)                         # every BatchNormalization over [b, H, W, C]

Keras' layer computes in float32, with one kernel each for mean, variance and
normalization. The fused kernel does all three; it reads and writes bfloat16 directly
and sums in float32. Variables, momentum and epsilon are the layer's own, and the moving
variance is biased, as in Keras: the model is saved as plain Keras and loads as such.
"""

import keras
import tensorflow as tf

from tfmirror.models import layer_override, nested_layers


def fuse(model: keras.Model) -> None:
    """Overrides the `call` of every BatchNormalization that the fused kernel supports.

    These are layers over channels-last images, with scale and offset, without renorm
    and without synchronisation between replicas. Results are the same up to rounding.
    `layer_override.restore_call` undoes it for one layer.

    Args:
      model: a built model. A subclass's `call` may do more, and is left as it is.
    """
    for layer in nested_layers.all_layers(model):
        if type(layer) is keras.layers.BatchNormalization and _is_supported(layer):
            layer_override.override_call(layer, _call)


def _is_supported(layer: keras.layers.BatchNormalization) -> bool:
    """Returns whether the fused kernel computes what a built layer does."""
    is_channels_last = layer.input_spec.axes.keys() <= {3, -1}
    is_channels_last = is_channels_last and layer.input_spec.ndim == 4
    is_special = layer.renorm or layer.synchronized
    return is_channels_last and layer.scale and layer.center and not is_special


def _call(
    layer: keras.layers.BatchNormalization,
    inputs: tf.Tensor,
    training: bool | None = None,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns the normalized inputs, and updates the moving statistics in training.

    When the layer uses its moving statistics, its own `call` runs. So predictions have
    exactly the bits of the saved model in plain Keras.

    Args:
      layer: the layer.
      inputs: [b, H, W, C] in the layer's compute dtype.
      training: whether to normalize with the statistics of `inputs`.
      mask: if given, the layer's own `call` runs.

    Returns:
      [b, H, W, C], of the same dtype.
    """
    uses_batch_statistics = training and layer.trainable
    if mask is not None or not uses_batch_statistics:
        return type(layer).call(layer, inputs, training=training, mask=mask)
    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=inputs,
        scale=tf.convert_to_tensor(layer.gamma),
        offset=tf.convert_to_tensor(layer.beta),
        mean=tf.zeros([0]),  # the kernel requires empty ones when it computes them
        variance=tf.zeros([0]),
        epsilon=layer.epsilon,
        is_training=True,
    )
    count = tf.cast(tf.size(inputs) // inputs.shape[-1], tf.float32)
    biased = variance * ((count - 1) / count)  # the kernel's variance is unbiased
    for moving, value in ((layer.moving_mean, mean), (layer.moving_variance, biased)):
        kept = moving * layer.momentum
        moving.assign(kept + value * (1.0 - layer.momentum))
    return outputs
