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

import numpy as np
import tensorflow as tf

from tfmirror import errors
from tfmirror.parallel import gradients, microbatches, step


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
    def weight_drift(self):
        """Largest absolute difference between replicas' weights; 0.0 unless broken."""
        return largest_difference(self.weights)

    @property
    def aggregated_drift(self):
        """Largest absolute difference between replicas' aggregated gradients."""
        return largest_difference(self.aggregated_gradients)

    @property
    def difference_to_single_device(self):
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
    # Of batch norm: statistics of each replica's own examples, so that the gradient of
    # the whole batch on one device is another one.
    has_batch_statistics: bool

    def variable(self, path):
        """Returns the VariableView of the variable whose path ends in `path`.

        Raises:
          InputError: no variable or more than one.
        """
        ending = "/" + path.strip("/")
        found = [v for v in self.variables if ("/" + v.path).endswith(ending)]
        if len(found) != 1:
            known = ", ".join(v.path for v in self.variables)
            raise errors.InputError(f"variable must be one of {known}: got {path!r}")
        return found[0]


def split_global_batch(strategy, array, per_replica_batch_sizes):
    """Returns `array` [B, ...] as a distributed value, part after part in order.

    The counterpart of the chapter's split_and_load: replica r gets `per_replica_batch_sizes[r]`
    rows, on its device.
    """
    starts = np.cumsum((0, *per_replica_batch_sizes))

    def part(context):
        r = context.replica_id_in_sync_group
        return tf.constant(array[starts[r] : starts[r + 1]])

    return strategy.experimental_distribute_values_from_function(part)


def inspect(strategy, model, images, labels, per_replica_batch_sizes=None):
    """Returns the ReplicaView of one global batch.

    Logits are those of inference mode; loss and gradients those of a training step.

    Args:
      model: built in the strategy's scope.
      images: [B, H, W, C] uint8.
      labels: [B] int32 in [0, K).
      per_replica_batch_sizes: examples for each replica; None: as even as can be.

    Raises:
      InputError: `per_replica_batch_sizes` are not N sizes that sum to B.
    """
    num_replicas = strategy.num_replicas_in_sync
    if per_replica_batch_sizes is None:
        per_replica_batch_sizes = microbatches.even_split(len(labels), num_replicas)
    if len(per_replica_batch_sizes) != num_replicas or sum(
        per_replica_batch_sizes
    ) != len(labels):
        raise errors.InputError(
            f"per_replica_batch_sizes must be {num_replicas} sizes that sum to {len(labels)}: got "
            f"{per_replica_batch_sizes}"
        )
    parts = [
        split_global_batch(strategy, a, per_replica_batch_sizes)
        for a in (images, labels)
    ]
    plan = microbatches.BatchPlan(
        0, 1, tuple(per_replica_batch_sizes), (1,) * num_replicas
    )
    replica_view = _make_replica_view(strategy, model, plan)
    seen = tf.nest.map_structure(
        lambda value: [v.numpy() for v in strategy.experimental_local_results(value)],
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
        per_replica_batch_sizes=tuple(per_replica_batch_sizes),
        labels=tuple(np.split(labels, np.cumsum(per_replica_batch_sizes)[:-1])),
        logits=tuple(seen["logits"]),
        mean_loss=float(seen["mean_loss"][0]),
        variables=variables,
        has_batch_statistics=bool(gradients.averaged_state(model)),
    )


def _make_replica_view(strategy, model, plan):
    """Returns a compiled function of (images, labels) parts to what each replica has.

    The gradients come from the very functions of the training step. Traced once a call
    of `inspect`, apart from training, which it therefore can't slow down.
    """
    batch_size = plan.global_batch_size

    def replica_view(images, labels):
        ((k, examples),) = step.microbatches_of_replica(plan, images, labels).items()
        weights = gradients.local_values(model.trainable_variables)
        state = gradients.local_values(model.non_trainable_variables)
        local = gradients.microbatch_gradients(model, weights, state, *examples, k)
        total = step.total_sums(plan, [local], like=local)
        return {
            "logits": gradients.inference_logits(model, weights, state, examples[0]),
            "weights": weights,
            "local_gradients": [g / batch_size for g in local.gradients],
            "aggregated_gradients": [g / batch_size for g in total.gradients],
            "mean_loss": total.loss / batch_size,
        }

    @tf.function
    def view(images, labels):
        return strategy.run(replica_view, args=(images, labels))

    return view


def single_device_gradients(model, images, labels):
    """Returns the gradients of the whole batch's mean loss, computed on one device.

    What the replicas' aggregated gradients are compared with: no split, no reduction.
    """
    weights = [tf.constant(v.numpy()) for v in model.trainable_variables]
    state = [tf.constant(v.numpy()) for v in model.non_trainable_variables]

    @tf.function
    def mean_gradients(images, labels):
        sums = gradients.microbatch_gradients(model, weights, state, images, labels)
        return [gradient / len(labels) for gradient in sums.gradients]

    batch = tf.constant(images), tf.constant(labels)
    return [gradient.numpy() for gradient in mean_gradients(*batch)]


def largest_difference(replicas):
    """Returns the largest absolute difference between any of `replicas` [N, ...]."""
    return float((replicas.max(axis=0) - replicas.min(axis=0)).max())
