"""Takes training steps with Keras' `model.fit`, to compare with; see `contenders`.

contender = KerasFit(workload)
contender.train(100)                               # seconds
"""

import time

import keras
import tensorflow as tf

from tfmirror import models
from tfmirror.benchmarking import messages
from tfmirror.benchmarking.workload import Workload
from tfmirror.data import datasets, pipeline
from tfmirror.data.examples import ExampleSource
from tfmirror.parallel import devices, runtime

LEARNING_RATE = 0.05
PREFETCHED_BATCHES = 4


class KerasFit:
    """`model.fit` with its defaults; under a strategy if there are several replicas."""

    def __init__(self, workload: Workload) -> None:
        """Builds and compiles the model, and makes the batches.

        Raises:
          InputError: the devices or the data of the workload can't be had.
        """
        runtime.set_threads(workload.intra_op_threads, workload.inter_op_threads)
        chosen = devices.set_up(workload.num_replicas, workload.device_type)
        strategy = devices.make_default_strategy(chosen)
        dataset = datasets.load(workload.dataset, workload.data_dir)
        self.batches = make_batches(dataset.train, workload.global_batch_size)
        with strategy.scope():
            self.model = compile_model(workload, dataset)

    def info(self, trace_seconds: float) -> messages.ContenderInfo:
        """Returns what the benchmark is told when the contender is ready."""
        return messages.ContenderInfo(trace_seconds)

    def train(self, num_steps: int) -> float:
        """Takes 1 + `num_steps` steps in one call of fit; returns the seconds.

        The first step is not counted: in it fit makes and fills an iterator, which it
        does once per call.
        """
        clock = Clock()
        self.model.fit(
            self.batches, steps_per_epoch=1 + num_steps, verbose=0, callbacks=[clock]
        )
        return clock.seconds


def compile_model(workload: Workload, dataset: datasets.ImageDataset) -> keras.Model:
    """Returns the compiled model; fit calls its layers as plain Keras does."""
    model = models.build(
        workload.model,
        dataset.train.image_shape,
        dataset.num_classes,
        precision=workload.precision,
    )
    model.compile(
        keras.optimizers.SGD(LEARNING_RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def make_batches(examples: ExampleSource, global_batch_size: int) -> tf.data.Dataset:
    """Returns an endless dataset of shuffled batches.

    Args:
      examples: with images [E, H, W, C] uint8 and labels [E] int32.
      global_batch_size: B.

    Returns:
      Elements (images [B, H, W, C] float32 in [0, 1], labels [B] int32).
    """
    all_images = tf.constant(examples.images)
    all_labels = tf.constant(examples.labels)

    def gather(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images = tf.cast(tf.gather(all_images, indices), tf.float32) / 255
        return images, tf.gather(all_labels, indices)

    return (
        tf.data.Dataset.range(len(examples))
        .shuffle(len(examples))
        .repeat()
        .batch(global_batch_size, drop_remainder=True)
        .map(gather)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(pipeline.untuned_options())  # the same as in our own pipeline
    )


class Clock(keras.callbacks.Callback):
    """Measures the seconds from the end of the first step to the end of the epoch."""

    seconds = 0.0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Starts the clock after the first step."""
        if batch == 0:
            self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Stops the clock."""
        self.seconds = time.perf_counter() - self._start
