"""A whole training run: from settings to a run directory.

summary = train(config.TrainConfig(gpus=2, dataset="digits"))
summary["final_eval_accuracy"], summary["weights_sha256"]
"""

import dataclasses
import functools
import statistics
import time

import keras

from tfmirror import config, metrics, models
from tfmirror.data import datasets
from tfmirror.parallel import devices, step
from tfmirror.training import environment, loop, terminal, writers


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything that a run trains with, built and not yet traced."""

    settings: config.TrainConfig  # resolved
    devices: devices.Devices
    dataset: datasets.ImageDataset
    model: keras.Model
    train_segments: list[step.Segment]
    eval_segments: list[step.Segment]


def train(settings):
    """Trains as `settings` say; returns what summary.json holds, and "workdir".

    Nothing is written before settings, devices and data are found to be right.

    Args:
      settings: config.TrainConfig.

    Raises:
      InputError: a wrong setting, or data that can't be had.
      TrainingStoppedError: the loss is not finite any more.
    """
    config.check(settings)
    writers.check_is_free(settings.workdir)
    job = prepare(settings)
    default_name = f"{settings.model}-{settings.dataset}".replace("/", "-")
    directory = writers.create(
        settings.workdir, f"{default_name}-{job.devices.num_replicas}replicas"
    )
    with writers.RunWriter(directory) as writer:
        show = terminal.Terminal()
        for text in first_lines(job):
            show.line(text)
        show.line(f"run directory: {directory}")
        writer.write_json("config.json", dataclasses.asdict(job.settings))
        writer.write_json("environment.json", environment.describe(job.devices))
        trace_seconds = _trace(job)
        show.line(f"traced and compiled in {trace_seconds:.1f} s")
        records = _train_epochs(job, writer, show)
        summary = summarize(job, trace_seconds, records)
        job.model.save(directory / "model.keras")
        writer.write_json("summary.json", summary)  # last: where it is, a run is whole
        speed = statistics.median(r["images_per_second"] for r in records)
        show.line(f"training speed {speed:,.0f} images/s (median of the epochs)")
        show.line(f"final evaluation accuracy {summary['final_eval_accuracy']:.4f}")
    return summary | {"workdir": str(directory)}


def prepare(settings):
    """Returns the Job of checked `settings`: devices, data, model and steps."""
    chosen = devices.choose(settings.gpus, settings.device_type)
    settings = config.resolve(settings, chosen.num_replicas)
    dataset = datasets.load(
        settings.dataset,
        settings.data_dir,
        settings.limit_train_examples,
        settings.limit_eval_examples,
    )
    strategy = devices.make_strategy(chosen)
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = models.build(
            settings.model, dataset.train.images.shape[1:], dataset.num_classes
        )
        optimizer = keras.optimizers.SGD(settings.learning_rate)
        optimizer.build(model.trainable_variables)
    make_segments = functools.partial(
        step.make_segments, strategy, global_batch_size=settings.global_batch_size
    )
    return Job(
        settings=settings,
        devices=chosen,
        dataset=dataset,
        model=model,
        train_segments=make_segments(
            dataset.train,
            make_steps=functools.partial(
                step.make_train_steps, strategy, model, optimizer
            ),
            shuffle_seed=settings.seed,
        ),
        eval_segments=make_segments(
            dataset.eval,
            make_steps=functools.partial(step.make_eval_steps, strategy, model),
        ),
    )


def first_lines(job):
    """Returns the lines that say what is about to be trained, on what and how."""
    settings, dataset = job.settings, job.dataset
    sizes = " + ".join(
        f"{segment.num_steps} of {segment.global_batch_size}"
        for segment in job.train_segments
    )
    return [
        f"model: {settings.model}, {job.model.count_params():,} parameters",
        f"data: {dataset.name}, {len(dataset.train):,} training and "
        f"{len(dataset.eval):,} evaluation examples, {dataset.num_classes} classes",
        f"source: {dataset.source}",
        f"devices: {job.devices.describe()}",
        f"steps an epoch: {sizes} examples, up to {settings.per_replica_batch_size} on "
        f"each of {job.devices.num_replicas} replicas",
        f"sgd, learning rate {settings.learning_rate:g}, {settings.epochs} epochs, "
        f"seed {settings.seed}",
    ]


def _trace(job):
    """Traces all that the run will call; returns the seconds it took."""
    start = time.monotonic()
    loop.trace(job.train_segments + job.eval_segments, step.zero_totals())
    return time.monotonic() - start


def _train_epochs(job, writer, show):
    """Trains and evaluates for every epoch; returns their records."""
    records, steps = [], 0
    num_epochs, num_examples = job.settings.epochs, len(job.dataset.train)
    for epoch in range(1, num_epochs + 1):
        run_pass = functools.partial(
            loop.run_pass,
            totals=step.zero_totals(),
            steps_per_loop=job.settings.steps_per_loop,
        )
        with show.epoch_progress(epoch, num_epochs, num_examples) as on_progress:
            trained = run_pass(job.train_segments, on_progress=on_progress)
            evaluated = run_pass(job.eval_segments)
        steps += sum(segment.num_steps for segment in job.train_segments)
        record = epoch_record(epoch, *trained, *evaluated)
        records.append(record)
        writer.write_epoch(steps, record)
        show.line(terminal.epoch_line(record, num_epochs))
    return records


def epoch_record(epoch, train_totals, train_seconds, eval_totals, eval_seconds):
    """Returns one entry of summary.json's "epochs"."""
    return {
        "epoch": epoch,
        "train_loss": train_totals.mean_loss,
        "train_accuracy": train_totals.accuracy,
        "eval_loss": eval_totals.mean_loss,
        "eval_accuracy": eval_totals.accuracy,
        "train_seconds": train_seconds,
        "eval_seconds": eval_seconds,
        "images_per_second": train_totals.num_examples / train_seconds,
    }


def summarize(job, trace_seconds, records):
    """Returns what summary.json holds."""
    settings, num_replicas = job.settings, job.devices.num_replicas
    return {
        "model": settings.model,
        "dataset": settings.dataset,
        "num_train_examples": len(job.dataset.train),
        "num_eval_examples": len(job.dataset.eval),
        "num_replicas": num_replicas,
        "num_workers": 1,
        "devices": list(job.devices.names),
        "stand_in_devices": job.devices.are_stand_ins,
        "global_batch_size": settings.global_batch_size,
        "num_microbatches": num_replicas,  # one a replica
        "precision": "float32",
        "seed": settings.seed,
        "trace_seconds": trace_seconds,
        "epochs": records,
        "final_eval_accuracy": records[-1]["eval_accuracy"],
        "weights_sha256": metrics.weights_sha256(job.model.variables),
    }
