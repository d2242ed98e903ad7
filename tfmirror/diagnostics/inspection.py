"""What each replica computes, holds and receives, as NumPy arrays.

    view = inspect(strategy, model, images, labels)
    view.logits[1]                                     # of replica 1's examples
    view.variable("conv1/kernel").weights[1]           # its copy, on its device
    view.variable("conv1/kernel").local_gradients[1]   # from its examples alone
    view.variable("conv1/kernel").aggregated_gradients[1]

Nothing is trained: inspecting changes no variable. Everything here runs in
cross-replica context.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfmirror import errors
from tfmirror.models import keras_defaults
from tfmirror.parallel import gradients, microbatches, model_state, reduction, replicas
from tfmirror.parallel.microbatches import BatchPlan


@dataclasses.dataclass(frozen=True)
class VariableView:
    """One trainable variable on every replica; arrays lead with N, the replicas.

    Gradients are of the mean loss over the global batch. A replica's local gradient is
    its share: the sum over its own examples divided by the size B of the global batch.
    So the local gradients *add up* to the aggregated one.
    """

    path: str
    weights: np.ndarray  # [N, ...]
    local_gradients: np.ndarray  # [N, ...]
    aggregated_gradients: np.ndarray  # [N, ...], as each replica received it
    single_device_gradient: np.ndarray  # [...], the whole batch on one device

    @property
    def weight_drift(self) -> float:
        """Largest absolute difference between replicas' weights; 0.0 unless broken."""
        return largest_difference(self.weights)

    @property
    def aggregated_drift(self) -> float:
        """Largest absolute difference between replicas' aggregated gradients."""
        return largest_difference(self.aggregated_gradients)

    @property
    def difference_to_single_device(self) -> float:
        """Largest absolute difference of an aggregated gradient to one device's."""
        difference = np.abs(self.aggregated_gradients - self.single_device_gradient)
        return float(difference.max())


@dataclasses.dataclass(frozen=True)
class ReplicaView:
    """One global batch as every replica sees it."""

    devices: tuple[str, ...]  # of each replica
    per_replica_batch_sizes: tuple[int, ...]  # examples on each replica
    labels: tuple[np.ndarray, ...]  # [b] of each replica
    logits: tuple[np.ndarray, ...]  # [b, K] of each replica
    mean_loss: float  # over the global batch, nats
    variables: tuple[VariableView, ...]
    # Whether batch norm takes statistics of each replica's own examples. The whole
    # batch on one device then has another gradient.
    has_batch_statistics: bool

    def variable(self, path: str) -> VariableView:
        """Returns the VariableView of the variable whose path ends in `path`.

        Raises:
          InputError: no variable's path does, or several do.
        """
        ending = "/" + path.strip("/")
        found = [v for v in self.variables if ("/" + v.path).endswith(ending)]
        if len(found) != 1:
            known = ", ".join(v.path for v in self.variables)
            raise errors.InputError(f"variable must be one of {known}: got {path!r}")
        return found[0]


@keras_defaults.scope()
def inspect(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    images: np.ndarray,
    labels: np.ndarray,
    per_replica_batch_sizes: Sequence[int] | None = None,
) -> ReplicaView:
    """Returns the ReplicaView of one global batch.

    Logits are those of inference mode; loss and gradients those of a training step.

    Args:
      model: built in the strategy's scope.
      images: [B, H, W, C] uint8.
      labels: [B] int32 in [0, K).
      per_replica_batch_sizes: examples for each replica; None: as even as possible.

    Raises:
      InputError: `per_replica_batch_sizes` are not N sizes that sum to B.
    """
    num_replicas = strategy.num_replicas_in_sync
    sizes = per_replica_batch_sizes
    if sizes is None:
        sizes = microbatches.even_split(len(labels), num_replicas)
    if len(sizes) != num_replicas or sum(sizes) != len(labels):
        raise errors.InputError(
            f"per_replica_batch_sizes must be {num_replicas} sizes that sum to "
            f"{len(labels)}: got {sizes}"
        )
    parts = [replicas.split(strategy, array, sizes) for array in (images, labels)]
    plan = BatchPlan(0, 1, tuple(sizes), (1,) * num_replicas)
    replica_view = _make_replica_view(strategy, model, plan)
    seen = tf.nest.map_structure(
        lambda value: [v.numpy() for v in replicas.local_values(strategy, value)],
        replica_view(*parts),
    )
    single = single_device_gradients(model, images, labels)
    variables = tuple(
        VariableView(
            variable.path,
            np.stack(seen["weights"][k]),
            np.stack(seen["local_gradients"][k]),
            np.stack(seen["aggregated_gradients"][k]),
            single[k],
        )
        for k, variable in enumerate(model.trainable_variables)
    )
    return ReplicaView(
        devices=tuple(strategy.extended.worker_devices),
        per_replica_batch_sizes=tuple(sizes),
        labels=tuple(np.split(labels, np.cumsum(sizes)[:-1])),
        logits=tuple(seen["logits"]),
        mean_loss=float(seen["mean_loss"][0]),
        variables=variables,
        has_batch_statistics=bool(model_state.averaged_variables(model)),
    )


def _make_replica_view(
    strategy: tf.distribute.Strategy, model: keras.Model, plan: BatchPlan
) -> Callable[[Any, Any], dict[str, Any]]:
    """Returns a compiled function of distributed (images, labels).

    It returns what each replica has, computed by the functions of the training step.
    """
    batch_size = plan.global_batch_size

    def replica_view(images, labels):
        r = replicas.replica_id()  # which is also its microbatch's index
        ((images, labels),) = microbatches.split(images, labels, plan.sizes_of(r))
        weights, state = replicas.weights_and_state(model)
        local = gradients.microbatch_gradients(model, weights, state, images, labels, r)
        total = reduction.total(plan, [local], structure=local)
        return {
            "logits": gradients.inference_logits(model, weights, state, images),
            "weights": weights,
            "local_gradients": [g / batch_size for g in local.gradients],
            "aggregated_gradients": [g / batch_size for g in total.gradients],
            "mean_loss": total.loss / batch_size,
        }

    @tf.function
    def view(images, labels):
        return strategy.run(replica_view, args=(images, labels))

    return view


def single_device_gradients(
    model: keras.Model, images: np.ndarray, labels: np.ndarray
) -> list[np.ndarray]:
    """Returns the gradients of the whole batch's mean loss, computed on one device.

    The reference for the replicas' aggregated gradients: no split, no reduction.
    """
    weights = [tf.constant(v.numpy()) for v in model.trainable_variables]
    state = [tf.constant(v.numpy()) for v in model.non_trainable_variables]

    @tf.function
    def mean_gradients(images, labels):
        sums = gradients.microbatch_gradients(model, weights, state, images, labels)
        return [gradient / len(labels) for gradient in sums.gradients]

    batch = tf.constant(images), tf.constant(labels)
    return [gradient.numpy() for gradient in mean_gradients(*batch)]


def largest_difference(copies: np.ndarray) -> float:
    """Returns the largest absolute difference between any of N copies [N, ...]."""
    return float((copies.max(axis=0) - copies.min(axis=0)).max())
