"""A whole training run: from settings to a run directory.

summary = train(config.TrainConfig(gpus=2, dataset="digits"))
summary["final_eval_accuracy"], summary["weights_sha256"]
"""

import dataclasses
import functools
import pathlib
import statistics
import time

from tfmirror import config, metrics, recipes
from tfmirror.parallel import drift, step
from tfmirror.reporting import plots, runs
from tfmirror.training import environment, loop, terminal, writers
from tfmirror.training import job as jobs


def train(settings):
    """Trains as `settings` say; returns what summary.json holds, and "workdir".

    Nothing is written before settings, devices and data are found to be right.

    Args:
      settings: config.TrainConfig.

    Raises:
      InputError: a wrong setting, or data that can't be had.
      TrainingStoppedError: the loss is not finite any more, or replicas have drifted.
    """
    config.check(settings)
    writers.check_is_free(settings.workdir)
    job = jobs.prepare(settings)
    default_name = f"{settings.model}-{settings.dataset}".replace("/", "-")
    directory = writers.create(
        settings.workdir, f"{default_name}-{job.devices.num_replicas}replicas"
    )
    with writers.RunWriter(directory) as writer:
        show = terminal.Terminal()
        for text in [*first_lines(job), f"run directory: {directory}"]:
            show.line(text)
        writer.write_json("config.json", dataclasses.asdict(job.settings))
        writer.write_json("environment.json", environment.describe(job.devices))
        trace_seconds = _trace(job)
        show.line(f"traced and compiled in {trace_seconds:.1f} s")
        records = _train_epochs(job, writer, show)
        job.update.finish()
        summary = summarize(job, trace_seconds, records)
        job.model.save(directory / "model.keras")
        draw(directory)
        writer.write_json("summary.json", summary)  # last: where it is, a run is whole
        speed = statistics.median(r["images_per_second"] for r in records)
        show.line(f"training speed {speed:,.0f} images/s (median of the epochs)")
        show.line(f"final evaluation accuracy {summary['final_eval_accuracy']:.4f}")
    return summary | {"workdir": str(directory)}


def train_unless_done(settings):
    """Returns the summary of the finished run in `settings.workdir`; else trains it.

    A run there that was interrupted is set aside, under another name.

    Raises:
      InputError: the finished run there has other settings; or see `train`.
    """
    directory = pathlib.Path(settings.workdir).expanduser()
    if not (directory / "config.json").exists():
        return train(settings)
    found = runs.read(directory)
    for name, value in dataclasses.asdict(settings).items():
        was = found.settings.get(name)
        if value is not None and name not in MAY_DIFFER and was != value:
            raise config.InputError(
                f"{directory} holds a run with {name}={was}: got {name}={value}; "
                "choose another --workdir"
            )
    if found.is_finished:
        return found.summary | {"workdir": str(directory)}
    number = 1
    while (aside := pathlib.Path(f"{directory}-interrupted{number}")).exists():
        number += 1
    directory.rename(aside)
    return train(settings)


# Settings that change nothing in what is trained.
MAY_DIFFER = ("workdir", "gpus", "device_type", "data_dir", "steps_per_loop")


def draw(directory):
    """Draws the curves of the run in `directory` into its folder plots/."""
    folder = directory / "plots"
    folder.mkdir(exist_ok=True)
    plots.save(plots.draw_curves([runs.read(directory)]), folder / "curves.png")


def first_lines(job):
    """Returns the lines that say what is about to be trained, on what and how."""
    settings, dataset = job.settings, job.dataset
    sizes = " + ".join(
        f"{segment.num_steps} of {segment.global_batch_size}"
        for segment in job.train_segments
    )
    added = f"{settings.microbatches} microbatches a batch, added in one fixed tree"
    if not settings.microbatches:
        added = "one microbatch a replica, added as the strategy does"
    return [
        f"model: {settings.model}, {job.model.count_params():,} parameters",
        f"data: {dataset.name}, {len(dataset.train):,} training and "
        f"{len(dataset.eval):,} evaluation examples, {dataset.num_classes} classes",
        f"source: {dataset.source}",
        f"devices: {job.devices.describe()}",
        f"steps an epoch: {sizes} examples on {job.devices.num_replicas} replicas",
        added,
        f"{settings.optimizer}, learning rate {describe_rate(settings)}, "
        f"{settings.epochs} epochs, seed {settings.seed}, {settings.precision}",
        *extra_lines(settings),
    ]


def describe_rate(settings):
    """Returns the learning rate of resolved `settings`, and why it is that."""
    text = f"{config.scaled_learning_rate(settings):g}"
    if settings.lr_scaling != "none":
        text += (
            f" ({settings.learning_rate:g} for {config.reference_batch_size(settings)} "
            f"examples, {settings.lr_scaling} in the global batch of "
            f"{settings.global_batch_size})"
        )
    if settings.warmup_epochs:
        text += f" after {settings.warmup_epochs:g} epochs of warm-up"
    return f"{text} {settings.schedule}"


def extra_lines(settings):
    """Returns a line for each thing that not every run has."""
    lines = []
    if settings.augment:
        flips = settings.dataset in recipes.DATASETS_TO_FLIP
        mirrored = "mirrored at random" if flips else "not mirrored"
        lines.append(f"augmented: random crops of the padded images, {mirrored}")
    if settings.precision == "bfloat16" and not environment.computes_bfloat16():
        lines.append(
            "warning: this processor has no instructions for bfloat16 (AMX, "
            "AVX512_BF16), which then takes many times as long as float32"
        )
    return lines


def _trace(job):
    """Traces all that the run will call; returns the seconds it took."""
    start = time.monotonic()
    loop.trace(job.train_segments + job.eval_segments, step.zero_totals())
    return time.monotonic() - start


def _train_epochs(job, writer, show):
    """Trains and evaluates for every epoch; returns their records."""
    settings, records, steps = job.settings, [], 0
    drift_check = loop.Periodic(settings.check_drift_every, make_drift_check(job, show))
    run_pass = functools.partial(
        loop.run_pass,
        totals=step.zero_totals(),
        steps_per_loop=settings.steps_per_loop,
    )
    for epoch in range(1, settings.epochs + 1):
        with show.epoch_progress(
            epoch, settings.epochs, len(job.dataset.train)
        ) as on_progress:
            trained = run_pass(
                job.train_segments, on_progress=on_progress, periodic=drift_check
            )
            evaluated = run_pass(job.eval_segments)
        steps += sum(segment.num_steps for segment in job.train_segments)
        record = epoch_record(epoch, *trained, *evaluated)
        records.append(record)
        writer.write_epoch(steps, record)
        show.line(terminal.epoch_line(record, settings.epochs))
    return records


def make_drift_check(job, show):
    """Returns a function of the steps taken that stops or resyncs drifted replicas."""
    find_drifts = drift.make_check(job.strategy, job.variables)

    def check(steps_taken):
        drifts = find_drifts()
        if not drifts:
            return
        listed = "; ".join(d.describe() for d in drifts)
        what = f"after step {steps_taken} replicas differ from replica 0: {listed}"
        if job.settings.on_drift == "stop":
            raise config.TrainingStoppedError(what)
        drift.resync(job.strategy, [job.variables[d.name] for d in drifts])
        show.line(f"{what}; resynced from replica 0")

    return check


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
        "num_microbatches": settings.microbatches or num_replicas,
        "precision": settings.precision,
        "seed": settings.seed,
        "trace_seconds": trace_seconds,
        "epochs": records,
        "final_eval_accuracy": records[-1]["eval_accuracy"],
        "weights_sha256": metrics.weights_sha256(job.model.variables),
    }
