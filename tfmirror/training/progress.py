"""What a run says about itself: first lines, a record of each epoch, a summary."""

from collections.abc import Sequence
from typing import Any

from tfmirror import config, hardware, metrics, recipes
from tfmirror.models import freezing
from tfmirror.rundir.state import PassProgress, RunState
from tfmirror.training import schedules, terminal
from tfmirror.training.setup import TrainingSetup


def first_lines(training_setup: TrainingSetup) -> list[str]:
    """Returns lines for people: the model, the data, the devices, the settings."""
    settings, dataset = training_setup.settings, training_setup.dataset
    sizes = " + ".join(
        f"{segment.num_steps} of {segment.global_batch_size}"
        for segment in training_setup.train_segments
    )
    added = f"{settings.microbatches} microbatches a batch, added in one fixed tree"
    if not settings.microbatches:
        added = "one microbatch on each replica, added by the strategy"
    return [
        f"model: {settings.model}, {training_setup.model.count_params():,} parameters",
        f"data: {dataset.name}, {len(dataset.train):,} training and "
        f"{len(dataset.eval):,} evaluation examples, {dataset.num_classes} classes",
        f"source: {dataset.source}",
        f"devices: {training_setup.devices.describe()}",
        f"steps an epoch: {sizes} examples on "
        f"{metrics.replicas_text(training_setup.devices.num_replicas)}",
        added,
        f"{settings.optimizer}, learning rate {describe_rate(settings)}, "
        f"{settings.epochs} epochs, seed {settings.seed}, {settings.precision}",
        *training_setup.initial.lines,
        *frozen_lines(training_setup),
        *extra_lines(settings),
    ]


def frozen_lines(training_setup: TrainingSetup) -> list[str]:
    """Returns a line if layers are frozen: how many variables and numbers."""
    text = freezing.frozen_text(training_setup.model)
    return [f"frozen: {text}"] if text else []


def describe_rate(settings: config.ResolvedConfig) -> str:
    """Returns the learning rate, and how it follows from the settings."""
    text = f"{settings.peak_learning_rate:g}"
    if settings.lr_scaling != "none":
        text += (
            f" ({settings.learning_rate:g} for {settings.reference_batch_size} "
            f"examples, {settings.lr_scaling} in the global batch of "
            f"{settings.global_batch_size})"
        )
    if settings.warmup_epochs:
        text += f" after {settings.warmup_epochs:g} epochs of warm-up"
    return f"{text} {settings.schedule}"


def extra_lines(settings: config.ResolvedConfig) -> list[str]:
    """Returns lines for augmentation, smoothed labels and a slow precision, if any."""
    lines = []
    if settings.augment != "none":
        flips = settings.dataset in recipes.DATASETS_TO_FLIP
        mirrored = "mirrored at random" if flips else "not mirrored"
        crops = {
            "crop": "random crops of the padded images",
            "resized_crop": "random parts of the images, enlarged to the whole",
        }
        lines.append(f"augmented: {crops[settings.augment]}, {mirrored}")
    if settings.label_smoothing:
        lines.append(
            f"labels smoothed by {settings.label_smoothing:g}: the training loss is of "
            "the smoothed labels, the evaluation's is the plain cross-entropy"
        )
    if settings.precision == "bfloat16" and not hardware.cpu_has_any(
        hardware.BFLOAT16_FLAGS
    ):
        lines.append(
            "warning: this processor has no instructions for bfloat16 (AMX, "
            "AVX512_BF16): it is many times slower than float32"
        )
    return lines


def schedule_lines(training_setup: TrainingSetup, state: RunState | None) -> list[str]:
    """Returns a line if the run resumes `state` with a schedule of other length."""
    if not state:
        return []
    return schedules.changes(
        state.settings["epochs"],
        training_setup.settings,
        training_setup.steps_per_epoch,
        int(training_setup.optimizer.keras_optimizer.iterations.numpy()),
    )


def epoch_record(
    epoch: int,
    trained: PassProgress,
    evaluated: PassProgress,
    learning_rate: float,
    num_classes: int,
) -> dict[str, Any]:
    """Returns one entry of summary.json's "epochs".

    Args:
      epoch: counted from 1.
      trained, evaluated: the progress at the ends of both passes.
      learning_rate: of the step that would follow the epoch.
      num_classes: of the model.
    """
    top5 = {}
    if metrics.counts_top5(num_classes):
        top5["eval_top5_accuracy"] = evaluated.totals.top5_accuracy
    return {
        "epoch": epoch,
        "train_loss": trained.totals.mean_loss,
        "train_accuracy": trained.totals.accuracy,
        "eval_loss": evaluated.totals.mean_loss,
        "eval_accuracy": evaluated.totals.accuracy,
        **top5,
        "train_seconds": trained.seconds,
        "eval_seconds": evaluated.seconds,
        "images_per_second": trained.totals.num_examples / trained.seconds,
        "learning_rate": learning_rate,
        "skipped_steps": trained.num_skipped,
    }


def epoch_lines(record: dict[str, Any], training_setup: TrainingSetup) -> list[str]:
    """Returns the line of a finished epoch, and a warning if one is due."""
    line = terminal.epoch_line(record, training_setup.settings.epochs)
    return [line, *skip_warnings(record, training_setup.steps_per_epoch)]


def skip_warnings(record: dict[str, Any], steps_per_epoch: int) -> list[str]:
    """Returns a line if more than half of the epoch's steps were skipped."""
    skipped = record["skipped_steps"]
    if 2 * skipped <= steps_per_epoch:
        return []
    return [
        f"warning: {skipped} of {steps_per_epoch} steps of epoch {record['epoch']} "
        "were skipped, since gradients overflowed in float16: a lower --learning_rate, "
        "--clip_norm or --precision=bfloat16 may help"
    ]


def summarize(
    training_setup: TrainingSetup,
    trace_seconds: float,
    records: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Returns the content of summary.json.

    Args:
      trace_seconds: seconds of tracing and compiling, before the first step.
      records: one of `epoch_record` for each epoch.
    """
    settings, num_replicas = (
        training_setup.settings,
        training_setup.devices.num_replicas,
    )
    return {
        "model": settings.model,
        "input_shape": list(training_setup.model.input_shape[1:]),
        "dataset": settings.dataset,
        "num_classes": training_setup.dataset.num_classes,
        "num_train_examples": len(training_setup.dataset.train),
        "num_eval_examples": len(training_setup.dataset.eval),
        "class_names": list(training_setup.class_names),
        "num_replicas": num_replicas,
        "num_workers": 1,
        "devices": list(training_setup.devices.names),
        "stand_in_devices": training_setup.devices.are_stand_ins,
        "global_batch_size": settings.global_batch_size,
        "num_microbatches": settings.microbatches or num_replicas,
        "precision": settings.precision,
        "seed": settings.seed,
        "trace_seconds": trace_seconds,
        "epochs": list(records),
        "skipped_steps": sum(record.get("skipped_steps", 0) for record in records),
        "final_eval_accuracy": records[-1]["eval_accuracy"],
        "weights_sha256": metrics.weights_sha256(training_setup.model.variables),
    }
