"""The process of a contender that runs on TensorFlow; see `contenders`.

python -m tfmirror.benchmarking.worker '{"contender": "tfmirror", ...}'

Answers each line of its input with one line of JSON.
"""

import json
import os
import resource
import sys
import time

from tfmirror import config
from tfmirror.benchmarking.work import Work

PEAK_UNIT = 1024  # of ru_maxrss on Linux, bytes
MATRIX_SIDE = 2048
REDUCED_MEGABYTES = (1, 8, 32)  # sizes of which the reduction is timed


def main(text):
    """Takes the steps of the work that is JSON in `text`."""
    work = Work(**json.loads(text))
    # Nothing but answers may go to standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    if work.num_cores:  # before TensorFlow counts them
        cores = sorted(os.sched_getaffinity(0))[: work.num_cores]
        os.sched_setaffinity(0, cores)
    make = {"tfmirror": Tfmirror, "keras_fit": KerasFit}[work.contender]
    start = time.perf_counter()
    contender = make(work)
    contender.run(0)
    ready = {"trace_seconds": time.perf_counter() - start}
    print(json.dumps(ready | contender.about), file=answers)
    for line in sys.stdin:
        question = json.loads(line)
        if question == "parts":
            answer = contender.parts()
        elif question == "memory":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT
            answer = {"peak_bytes": peak}
        elif question == "roof":
            answer = matrix_product_rate(work.precision)
        else:
            begin = time.perf_counter()
            contender.run(question)
            answer = time.perf_counter() - begin
        print(json.dumps(answer), file=answers)


class Tfmirror:
    """Our own steps."""

    def __init__(self, work):
        from tfmirror.models import operations
        from tfmirror.parallel import step
        from tfmirror.training import environment, job

        chosen, settings = job.choose(train_config(work))
        self.step, self.job = step, job.prepare(settings, chosen)
        self.segment = self.job.train_segments[0]
        self.about = {
            "operations": operations.training_operations(self.job.model),
            "num_weights": sum(
                int(v.value.shape.num_elements())
                for v in self.job.model.trainable_variables
            ),
            "environment": environment.describe(chosen),
        }

    def run(self, num_steps):
        """Takes so many steps, and waits for them."""
        float(self.segment.run(num_steps, self.step.zero_totals()).loss_sum)

    def parts(self):
        """Returns seconds a step of input, compute and reduction, each alone."""
        from tfmirror.parallel import parts

        job, plan = self.job, self.job.train_plans[0]
        shapes = [v.shape for v in job.model.trainable_variables]
        made = {
            "input": parts.make_input(job.strategy, self.segment.iterator),
            "compute": parts.make_compute(job.strategy, job.model, job.update, plan),
            "reduction": parts.make_reduction(job.strategy, shapes, plan),
        }
        seconds = {name: per_step(steps) for name, steps in made.items()}
        sizes = {}
        for megabytes in REDUCED_MEGABYTES:
            shape = (megabytes * 2**20 // 4,)
            steps = parts.make_reduction(job.strategy, [shape])
            sizes[megabytes * 2**20] = per_step(steps)
        return seconds | {"reduction_of_bytes": sizes}


class KerasFit:
    """`model.fit` on the same work; under a strategy if there are several replicas."""

    about = {}

    def __init__(self, work):
        import keras
        import tensorflow as tf

        from tfmirror import models
        from tfmirror.data import datasets
        from tfmirror.models import fused_batch_norm
        from tfmirror.parallel import devices

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
                fused_batch_norm.unfuse(layer)
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
        )

    def run(self, num_steps):
        """Takes so many steps in one call of fit."""
        self.model.fit(self.batches, steps_per_epoch=num_steps or 1, verbose=0)


def train_config(work):
    """Returns the config.TrainConfig of a Work."""
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
    """Returns the seconds a step of compiled `steps`, the best of three turns."""
    from tfmirror.parallel import parts

    parts.timed(steps, 1)
    once = parts.timed(steps, 2) / 2
    num_steps = max(2, int(seconds / max(once, 1e-6)))
    return min(parts.timed(steps, num_steps) for _ in range(3)) / num_steps


def matrix_product_rate(precision):
    """Returns operations a second of a large matrix product on all devices' cores."""
    import tensorflow as tf

    side = MATRIX_SIDE
    a, b = (
        tf.cast(tf.random.stateless_normal([side, side], [0, k]), precision)
        for k in (1, 2)
    )
    product = tf.function(tf.matmul)
    product(a, b)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        product(a, b).numpy()
        times.append(time.perf_counter() - start)
    return 2 * side**3 / min(times)


if __name__ == "__main__":
    main(sys.argv[1])
