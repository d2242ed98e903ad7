"""Evaluates a trained model, with the same result as in its run, on any devices.

reached = evaluate(loading.find("runs/first", print), dataset, chosen)
reached.totals.accuracy, reached.totals.mean_loss
"""

import functools
from typing import Any

import tensorflow as tf

from tfmirror import confusion, errors
from tfmirror.confusion import Confusion
from tfmirror.data import datasets
from tfmirror.models import keras_defaults, kernel_gradient
from tfmirror.parallel import (
    devices,
    eval_step,
    microbatches,
    runtime,
    segments,
    step_loop,
)
from tfmirror.parallel.devices import Devices
from tfmirror.rundir import loading
from tfmirror.rundir.state import PassProgress
from tfmirror.training import loop


@keras_defaults.scope()
def evaluate(
    trained: loading.Trained,
    dataset: datasets.ImageDataset,
    chosen: devices.Devices,
    global_batch_size: int = 0,
    *,
    confusions: tf.Variable | None = None,
) -> PassProgress:
    """Returns the totals and the seconds of a pass over `dataset.eval`.

    On as many replicas as the run had, the computation is the same as in the run. On
    fewer, each replica takes several of the run's microbatches, so that only the sum of
    the losses may be rounded differently. On more, the microbatches are smaller.

    Args:
      chosen: the devices of the replicas.
      global_batch_size: examples a step over all replicas; 0: the run's own.
      confusions: of eval_step.make_confusions, to which the pass adds every example;
        None: they are not counted.

    Raises:
      InputError: the data do not fit the model, or there are fewer examples in a global
        batch than microbatches.
      TrainingStoppedError: the loss is not finite.
    """
    check_fits(trained, dataset)
    plans = plan(
        trained.settings,
        num_examples=len(dataset.eval),
        num_replicas=chosen.num_replicas,
        global_batch_size=global_batch_size or trained.settings["global_batch_size"],
    )
    if trained.settings.get("deterministic"):
        runtime.use_deterministic_operations()
    strategy = devices.make_strategy(chosen)
    model = loading.build(trained, strategy)
    if chosen.are_stand_ins:
        kernel_gradient.use_matrix_products(model)  # as in the run's forward pass
    make_steps = functools.partial(
        eval_step.make_eval_steps,
        strategy,
        model,
        max_concurrent=runtime.max_concurrent_microbatches(chosen),
        confusions=confusions,
    )
    made = segments.make_segments(strategy, dataset.eval, plans, make_steps)
    loop.trace(made, step_loop.zero_totals())
    try:
        return loop.run_pass(made, step_loop.zero_totals())
    except loop.NotFiniteError as error:
        raise errors.TrainingStoppedError(
            f"the loss of step {error.num_steps + 1} of the evaluation is not finite"
        ) from error


def evaluate_per_class(
    trained: loading.Trained,
    dataset: datasets.ImageDataset,
    chosen: devices.Devices,
    global_batch_size: int = 0,
) -> tuple[PassProgress, Confusion]:
    """Returns what `evaluate` does, and the confusion matrix of the same pass.

    Raises:
      InputError, TrainingStoppedError: as `evaluate`; or there are too many classes.
    """
    got, most = trained.num_classes, confusion.MOST_CLASSES
    errors.require(got <= most, "per_class", got, f"for at most {most:,} classes")
    counts = eval_step.make_confusions(trained.num_classes)
    reached = evaluate(trained, dataset, chosen, global_batch_size, confusions=counts)
    return reached, Confusion(counts.numpy(), dataset.class_names)


def configure_process(settings: dict[str, Any], chosen: Devices) -> None:
    """Sets threads and allocator as in training with these settings.

    Args:
      settings: of the run, as loading.read_settings returns them.
      chosen: devices of the replicas.
    """
    runtime.configure(
        chosen,
        num_microbatches(settings, chosen.num_replicas),
        # Missing in runs from before these settings.
        intra_op_threads=settings.get("intra_op_threads", 0),
        inter_op_threads=settings.get("inter_op_threads", 0),
    )


def num_microbatches(settings: dict[str, Any], num_replicas: int) -> int:
    """Returns the number of microbatches (M) in a global batch of the evaluation.

    Args:
      settings: of the run, resolved.
    """
    return max(settings["microbatches"] or settings["gpus"], num_replicas)


def plan(
    settings: dict[str, Any],
    *,
    num_examples: int,
    num_replicas: int,
    global_batch_size: int,
) -> tuple[microbatches.BatchPlan, ...]:
    """Returns the BatchPlans of a pass with the microbatches of a run.

    Args:
      settings: of the run, resolved.
      num_examples: in the whole pass (E).
      global_batch_size: examples a step over all replicas (B).

    Raises:
      InputError: fewer examples in a global batch than microbatches.
    """
    number = num_microbatches(settings, num_replicas)
    errors.require(
        global_batch_size >= number,
        "global_batch_size",
        global_batch_size,
        f"at least {number}, the number of microbatches",
    )
    is_as_trained = num_replicas == settings["gpus"]
    return microbatches.plan_epoch(
        num_examples,
        global_batch_size,
        microbatches.share_out(num_replicas, number),
        in_fixed_tree=settings["microbatches"] > 0 or not is_as_trained,
    )


def check_fits(trained: loading.Trained, dataset: datasets.ImageDataset) -> None:
    """Checks that the model can be evaluated on `dataset`.

    Raises:
      InputError: its images have another shape, or it has more classes.
    """
    got = dataset.eval.image_shape
    if got != trained.input_shape:
        raise errors.InputError(
            f"dataset {dataset.name} must have images of shape "
            f"{list(trained.input_shape)}, as the model was trained on: got {list(got)}"
        )
    if dataset.num_classes > trained.num_classes:
        raise errors.InputError(
            f"dataset {dataset.name} must have at most the model's "
            f"{trained.num_classes} classes: got {dataset.num_classes}"
        )
