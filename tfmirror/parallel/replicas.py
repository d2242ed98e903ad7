"""Values on replicas: split over them, read by them, and fetched from them.

parts = split(strategy, images, per_replica_batch_sizes=(5, 3))   # cross-replica
weights, state = weights_and_state(model)                         # in a replica
of_replica_0, of_replica_1 = local_values(strategy, result)       # cross-replica
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def replica_id() -> int:
    """Returns which replica this is, as a Python integer. Replica context."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def read(variables: Iterable[keras.Variable]) -> list[tf.Tensor]:
    """Returns the value of this replica's copy of each variable. Replica context."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def weights_and_state(model: keras.Model) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns this replica's values of the model's variables. Replica context.

    Returns:
      Values of `model.trainable_variables` and of `model.non_trainable_variables`.
    """
    return read(model.trainable_variables), read(model.non_trainable_variables)


def split(
    strategy: tf.distribute.Strategy,
    array: np.ndarray,
    per_replica_batch_sizes: Sequence[int],
) -> Any:
    """Returns `array` [B, ...] as a distributed value: rows to replicas, in order.

    Replica r gets `per_replica_batch_sizes[r]` rows, on its device. This is what the
    first chapter calls split_and_load. Cross-replica context.
    """
    starts = np.cumsum((0, *per_replica_batch_sizes))

    def rows(context: Any) -> tf.Tensor:
        r = context.replica_id_in_sync_group
        return tf.constant(array[starts[r] : starts[r + 1]])

    return strategy.experimental_distribute_values_from_function(rows)


def local_values(strategy: tf.distribute.Strategy, value: Any) -> tuple[Any, ...]:
    """Returns the value of every replica, in order. Cross-replica context.

    Args:
      value: what `strategy.run` returned, or a mirrored variable's value.
    """
    return strategy.experimental_local_results(value)


def first(strategy: tf.distribute.Strategy, values: Any) -> Any:
    """Returns nested `values` as replica 0 holds them. Cross-replica context."""
    return tf.nest.map_structure(lambda v: local_values(strategy, v)[0], values)
