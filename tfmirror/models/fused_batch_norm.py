"""Batch norm by TensorFlow's fused kernel, in layers that stay plain Keras.

    fuse(model)                             # each BatchNormalization over [b, H, W, C]

Keras' own layer computes in float32 with a kernel for each of mean, variance and
normalization. One kernel does all, and reads and writes bfloat16 as it is, with float32
sums. Variables, momentum, epsilon and the moving variance, which Keras keeps biased,
are those of the layer: a model is saved as plain Keras and loads as such.
"""

import keras
import tensorflow as tf

from tfmirror.models import layer_override


def fuse(model):
    """Lets every BatchNormalization of `model` that the kernel serves call it.

    It serves channels-last images, with scale and offset, of statistics of their own.
    The layer's `call` is replaced, see `layer_calls`.
    """
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization) and _is_served(layer):
            layer_override.replace(layer, _call)


def _is_served(layer):
    """Returns whether the kernel does what built `layer` does."""
    is_last_of_four = layer.input_spec.axes.keys() <= {3, -1}
    is_last_of_four = is_last_of_four and layer.input_spec.ndim == 4
    is_special = layer.renorm or layer.synchronized
    return is_last_of_four and layer.scale and layer.center and not is_special


def _call(layer, inputs, training=None, mask=None):
    """Does what `layer`'s own `call` does: [b, H, W, C] to the same, normalized.

    With known statistics the layer itself does it: predictions are then, to the bit,
    those of the saved model in plain Keras.
    """
    takes_statistics = training and layer.trainable
    if mask is not None or not takes_statistics:
        return type(layer).call(layer, inputs, training=training, mask=mask)
    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=inputs,
        scale=tf.convert_to_tensor(layer.gamma),
        offset=tf.convert_to_tensor(layer.beta),
        mean=tf.zeros([0]),  # what the kernel wants when it takes them
        variance=tf.zeros([0]),
        epsilon=layer.epsilon,
        is_training=True,
    )
    count = tf.cast(tf.size(inputs) // inputs.shape[-1], tf.float32)
    biased = variance * ((count - 1) / count)  # the kernel's is unbiased
    for moving, value in ((layer.moving_mean, mean), (layer.moving_variance, biased)):
        kept = moving * layer.momentum
        moving.assign(kept + value * (1.0 - layer.momentum))
    return outputs
