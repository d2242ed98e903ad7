"""Predicts the classes of images on all replicas, in the order of the images.

probabilities = predict(strategy, model, images)   # [E, K]

Every call gives each replica the same number of images; the last call is padded with
black ones. So an image's prediction depends neither on the number of replicas nor on
the other images.
"""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tfmirror.models import keras_defaults
from tfmirror.parallel import gradients, replicas

PER_REPLICA_BATCH_SIZE = 64  # examples that a replica takes in one call


@keras_defaults.scope()
def predict(
    strategy: tf.distribute.Strategy, model: keras.Model, images: np.ndarray
) -> np.ndarray:
    """Returns the probability of each class for each image, [E, K] float32.

    Args:
      model: built in the strategy's scope.
      images: [E, H, W, C] uint8, with E at least 1.
    """
    sizes = (PER_REPLICA_BATCH_SIZE,) * strategy.num_replicas_in_sync
    global_batch_size = sum(sizes)
    compute_probabilities = make_compute_probabilities(strategy, model)
    predicted: list[np.ndarray] = []
    for begin in range(0, len(images), global_batch_size):
        batch = images[begin : begin + global_batch_size]
        missing = global_batch_size - len(batch)
        padded = np.pad(batch, [(0, missing), (0, 0), (0, 0), (0, 0)])
        per_replica = replicas.split(strategy, padded, sizes)
        probabilities = strategy.experimental_local_results(
            compute_probabilities(per_replica)
        )
        predicted += [part.numpy() for part in probabilities]
    return np.concatenate(predicted)[: len(images)]


def make_compute_probabilities(
    strategy: tf.distribute.Strategy, model: keras.Model
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a compiled function from images to probabilities on every replica.

    It maps per-replica images [b, H, W, C] uint8 to per-replica probabilities [b, K]
    float32.
    """

    def replica_probabilities(images: tf.Tensor) -> tf.Tensor:
        weights, state = replicas.weights_and_state(model)
        logits = gradients.inference_logits(model, weights, state, images)
        return tf.nn.softmax(logits)

    return tf.function(
        lambda images: strategy.run(replica_probabilities, args=(images,)),
        autograph=False,
    )
