"""The process of a contender that runs on TensorFlow; see `contenders`.

python -m tfmirror.benchmarking.contender_process '{"contender": "tfmirror", ...}'

Answers each line of its input with one line of JSON.
"""

import json
import os
import resource
import statistics
import sys
import time

from tfmirror import config, errors
from tfmirror.benchmarking.workload import Workload

PEAK_UNIT = 1024  # of ru_maxrss on Linux, bytes
STEPS_A_CHECK = 100  # of the contender drift_check
REDUCED_MEGABYTES = (1, 8, 32)  # sizes of which the reduction is timed


def main(text):
    """Takes the steps of the work that is JSON in `text`."""
    work = Workload(**json.loads(text))
    # Nothing but answers may go to standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    if work.num_cores:  # before TensorFlow counts them
        cores = sorted(os.sched_getaffinity(0))[: work.num_cores]
        os.sched_setaffinity(0, cores)
    try:
        contender = CONTENDERS[work.contender](work)
        start = time.perf_counter()
        contender.run(0)
    except errors.InputError as error:
        sys.exit(str(error))
    trace_seconds = time.perf_counter() - start
    print(json.dumps({"trace_seconds": trace_seconds} | contender.about), file=answers)
    for line in sys.stdin:
        print(json.dumps(answer(contender, work, json.loads(line))), file=answers)


def answer(contender, work, question):
    """Returns the answer to a question: seconds, to a number of steps."""
    if question == "memory":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT
    if question == "roof":
        from tfmirror.benchmarking import roofline

        return roofline.matrix_product_rate(
            contender.setup.devices.names, work.precision
        )
    if question == "parts":
        return contender.parts()
    return contender.run(question)


class Tfmirror:
    """Our own steps."""

    def __init__(self, work):
        from tfmirror.benchmarking import flops
        from tfmirror.parallel import step
        from tfmirror.rundir import environment
        from tfmirror.training import setup

        setup.choose_threads(train_config(work))
        chosen, settings = setup.choose(train_config(work))
        self.step, self.setup = step, setup.prepare(settings, chosen)
        self.segment = self.setup.train_segments[0]
        if self.segment.global_batch_size != work.global_batch_size:
            raise errors.InputError(
                "global_batch_size must be at most the "
                f"{len(self.setup.dataset.train)} training examples: got "
                f"{work.global_batch_size}"
            )
        self.about = {
            "operations": flops.training_operations(self.setup.model),
            "num_weights": sum(
                int(v.value.shape.num_elements())
                for v in self.setup.model.trainable_variables
            ),
            "environment": environment.describe(chosen),
        }

    def run(self, num_steps):
        """Takes so many steps, and waits for them; returns the seconds."""
        start = time.perf_counter()
        taken = int(self.segment.run(num_steps, self.step.zero_totals()).num_steps)
        seconds = time.perf_counter() - start
        if taken != num_steps:
            sys.exit(f"a step was not finite after {taken} of {num_steps}")
        return seconds

    def parts(self):
        """Returns seconds a step of input, compute and reduction, each alone."""
        from tfmirror.benchmarking import step_timing
        from tfmirror.parallel import devices

        prepared, plan = self.setup, self.setup.train_plans[0]
        shapes = [v.shape for v in prepared.model.trainable_variables]
        max_concurrent = devices.max_concurrent_microbatches(prepared.devices)
        made = {
            "input": step_timing.make_input(prepared.strategy, self.segment.iterator),
            "compute": step_timing.make_compute(
                prepared.strategy,
                prepared.model,
                prepared.optimizer,
                plan,
                max_concurrent,
            ),
            "reduction": step_timing.make_reduction(prepared.strategy, shapes, plan),
        }
        seconds = {name: per_step(steps) for name, steps in made.items()}
        sizes = {}
        for megabytes in REDUCED_MEGABYTES:
            shape = (megabytes * 2**20 // 4,)
            steps = step_timing.make_reduction(prepared.strategy, [shape], plan)
            sizes[megabytes * 2**20] = per_step(steps)
        return seconds | {"reduction_of_bytes": sizes}


class OneBatch(Tfmirror):
    """Our own steps on one batch again and again."""

    def __init__(self, work):
        from tfmirror.parallel import segments

        super().__init__(work)
        self.segment = segments.on_one_batch(
            self.segment,
            self.setup.strategy,
            self.setup.dataset.train,
            self.setup.train_plans[0],
        )


class DriftCheck(Tfmirror):
    """Our own steps, with the replicas compared every STEPS_A_CHECK of them."""

    def __init__(self, work):
        from tfmirror.diagnostics import drift

        super().__init__(work)
        self.find_drifts = drift.make_check(self.setup.strategy, self.setup.variables)
        self.steps_taken = 0
        self.find_drifts()  # traced

    def run(self, num_steps):
        """Takes so many steps, and waits for them; returns the seconds."""
        start = time.perf_counter()
        while num_steps:
            due = STEPS_A_CHECK - self.steps_taken % STEPS_A_CHECK
            taken = min(due, num_steps)
            super().run(taken)
            self.steps_taken += taken
            num_steps -= taken
            if taken == due and self.find_drifts():
                sys.exit("the replicas differ")
        return time.perf_counter() - start


class KerasFit:
    """`model.fit` on the same work; under a strategy if there are several replicas."""

    about = {}

    def __init__(self, work):
        import keras
        import tensorflow as tf

        from tfmirror import models
        from tfmirror.data import datasets, pipeline
        from tfmirror.models import layer_override
        from tfmirror.parallel import devices

        devices.set_threads(work.intra_op_threads, work.inter_op_threads)
        chosen = devices.choose(work.num_replicas, work.device_type, keeps_memory=False)
        strategy = devices.make_usual_strategy(chosen)
        dataset = datasets.load(work.dataset, work.data_dir)
        examples = dataset.train
        images = tf.constant(examples.images)
        labels = tf.constant(examples.labels)
        with strategy.scope():
            self.model = models.build(
                work.model,
                examples.images.shape[1:],
                dataset.num_classes,
                work.precision,
            )
            for layer in self.model.layers:
                layer_override.restore(layer)
            self.model.compile(
                keras.optimizers.SGD(0.05),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )

        def gather(indices):
            images_of_batch = tf.cast(tf.gather(images, indices), tf.float32) / 255
            return images_of_batch, tf.gather(labels, indices)

        self.batches = (
            tf.data.Dataset.range(len(examples))
            .shuffle(len(examples))
            .repeat()
            .batch(work.global_batch_size, drop_remainder=True)
            .map(gather)
            .prefetch(4)
            .with_options(pipeline.untuned_options())  # as ours is
        )

    def run(self, num_steps):
        """Takes so many steps in one call of fit, and one before; returns the seconds.

        The first step stands for what fit does once: it makes an iterator and fills it.
        """
        clock = _clock()
        self.model.fit(
            self.batches, steps_per_epoch=1 + num_steps, verbose=0, callbacks=[clock]
        )
        return clock.seconds


def _clock():
    """Returns a Keras callback that counts the seconds after the first step of fit."""
    import keras

    class Clock(keras.callbacks.Callback):
        seconds = 0.0

        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                self._start = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds = time.perf_counter() - self._start

    return Clock()


CONTENDERS = {
    "tfmirror": Tfmirror,
    "one_batch": OneBatch,
    "drift_check": DriftCheck,
    "keras_fit": KerasFit,
}


def train_config(work):
    """Returns the config.TrainConfig of a Workload."""
    return config.TrainConfig(
        model=work.model,
        dataset=work.dataset,
        data_dir=work.data_dir,
        gpus=work.num_replicas,
        global_batch_size=work.global_batch_size,
        microbatches=work.microbatches,
        precision=work.precision,
        intra_op_threads=work.intra_op_threads,
        inter_op_threads=work.inter_op_threads,
        device_type=work.device_type,
        learning_rate=0.05,
    )


def per_step(steps, seconds=0.5):
    """Returns the seconds a step of compiled `steps`, the median of three turns."""
    from tfmirror.benchmarking import step_timing

    step_timing.timed(steps, 1)
    once = step_timing.timed(steps, 2) / 2
    num_steps = max(2, int(seconds / max(once, 1e-6)))
    return (
        statistics.median(step_timing.timed(steps, num_steps) for _ in range(3))
        / num_steps
    )


if __name__ == "__main__":
    main(sys.argv[1])
