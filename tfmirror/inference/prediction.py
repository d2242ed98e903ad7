"""What a model predicts for images, computed by all replicas, in the images' order.

probabilities = predict(strategy, model, images)   # [E, K]

Replicas take pieces of one size, in order; the last ones are filled up with black
images. So an example's prediction depends neither on the number of replicas nor on what
else is predicted.
"""

import numpy as np
import tensorflow as tf

from tfmirror.diagnostics import inspection
from tfmirror.parallel import gradients

PIECE_SIZE = 64  # examples a replica takes at a time


def predict(strategy, model, images):
    """Returns the probability of each class for each of `images`, [E, K] float32.

    Args:
      model: built in the strategy's scope.
      images: [E, H, W, C] uint8.
    """
    num_replicas = strategy.num_replicas_in_sync
    per_replica_batch_sizes = (PIECE_SIZE,) * num_replicas
    compute = make_compute(strategy, model)
    found = []
    for begin in range(0, len(images), sum(per_replica_batch_sizes)):
        batch = images[begin : begin + sum(per_replica_batch_sizes)]
        missing = sum(per_replica_batch_sizes) - len(batch)
        filled = np.pad(batch, [(0, missing), (0, 0), (0, 0), (0, 0)])
        parts = inspection.split_global_batch(strategy, filled, per_replica_batch_sizes)
        of_replicas = strategy.experimental_local_results(compute(parts))
        found += [part.numpy() for part in of_replicas]
    return np.concatenate(found)[: len(images)]


def make_compute(strategy, model):
    """Returns a compiled function from parts of images to parts of probabilities."""

    def replica_probabilities(images):
        weights = gradients.local_values(model.trainable_variables)
        state = gradients.local_values(model.non_trainable_variables)
        logits = gradients.inference_logits(model, weights, state, images)
        return tf.nn.softmax(logits)

    return tf.function(
        lambda parts: strategy.run(replica_probabilities, args=(parts,)),
        autograph=False,
    )
