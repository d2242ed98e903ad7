"""Batch norm over the global batch: one reduction a layer, exact for unequal parts.

synchronize(model)                                  # before steps are made

With n_r values a channel on replica r, their mean m_r and biased variance v_r, and n
values on all replicas (Chan, Golub and LeVeque, 1979):

mean = sum n_r m_r / n,  variance = sum n_r (v_r + (m_r - mean)^2) / n

No difference of two large squares is taken, as in E[x^2] - E[x]^2, which Keras'
`synchronized=True` uses, with three reductions a layer.
"""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfmirror import errors
from tfmirror.models import layer_override, nested_layers
from tfmirror.parallel.microbatches import BatchPlan


def synchronize(model: keras.Model) -> None:
    """Makes every BatchNormalization layer, however deep, normalize over all replicas.

    Replaces a private method of the layers (Keras 3.15.1,
    layers/normalization/batch_normalization.py), so that the model is saved as plain
    Keras; `test_the_private_method_of_batch_norm_is_there` fails when it changes.
    """
    for layer in nested_layers.all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer_override.restore_call(layer)  # a fused kernel knows no other replica
            layer._moments = _make_global_moments(layer)


def _make_global_moments(
    layer: keras.layers.BatchNormalization,
) -> Callable[[tf.Tensor, tf.Tensor | None], tuple[tf.Tensor, tf.Tensor]]:
    """Returns a replacement for `layer._moments`."""

    def moments(inputs, mask):
        axes = [
            k for k in range(inputs.shape.rank) if k != layer.axis % inputs.shape.rank
        ]
        return global_moments(inputs, axes)

    return moments


def global_moments(
    values: tf.Tensor, axes: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and biased variance over `axes` and over all replicas.

    Differentiable. In cross-replica context, as when the model is built, it is only
    over `axes`.

    Args:
      values: floating point; its size along `axes` may differ between replicas.
      axes: all axes but that of the channels.

    Returns:
      Two tensors of one number for each channel.
    """
    mean, variance = tf.nn.moments(values, axes)
    context = tf.distribute.get_replica_context()
    if context is None:
        return mean, variance
    num_replicas = context.num_replicas_in_sync
    num_values = tf.reduce_prod(tf.gather(tf.shape(values), axes))
    count = tf.fill(tf.shape(mean), tf.cast(num_values, mean.dtype))
    # Every replica fills in its own row of zeros; the sum is then all rows.
    own = tf.one_hot(context.replica_id_in_sync_group, num_replicas, dtype=mean.dtype)
    rows = own[:, tf.newaxis, tf.newaxis] * tf.stack([count, mean, variance])
    rows = context.all_reduce(tf.distribute.ReduceOp.SUM, rows)  # [N, 3, channels]
    counts, means, variances = tf.unstack(rows, axis=1)
    weights = counts / tf.reduce_sum(counts, axis=0)
    mean = tf.reduce_sum(weights * means, axis=0)
    variance = tf.reduce_sum(weights * (variances + (means - mean) ** 2), axis=0)
    return mean, variance


def check_plans(plans: Sequence[BatchPlan]) -> None:
    """Raises InputError if a replica has no example in some batch.

    It would not compute its layers, and the others would wait for its statistics.
    """
    for plan in plans:
        if 0 in plan.per_replica_batch_sizes:
            raise errors.InputError(
                "batch_norm=sync needs an example on every replica in every batch: a "
                f"batch of {plan.global_batch_size} leaves one of {plan.num_replicas} "
                "replicas without; change global_batch_size or limit_train_examples"
            )
