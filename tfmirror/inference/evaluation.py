"""The evaluation of a trained model: the figures that its run had, on any devices.

evaluated = evaluate(trained.find("runs/first", print), dataset, chosen)
evaluated.totals.accuracy, evaluated.totals.mean_loss
"""

import functools

from tfmirror import errors
from tfmirror.inference import loading as trained_models
from tfmirror.models import kernel_gradient
from tfmirror.parallel import devices, microbatches, segments, step
from tfmirror.training import loop


def evaluate(trained, dataset, chosen, global_batch_size=0):
    """Returns the state.PassProgress at the end of a pass over `dataset.eval`.

    On as many replicas as the run had it is computed as there. On fewer, each takes
    several of the run's microbatches, so that nothing is rounded otherwise but sums of
    losses; on more, microbatches are smaller.

    Args:
      trained: trained.Trained.
      dataset: datasets.ImageDataset.
      chosen: devices.Devices of the replicas.
      global_batch_size: 0: the run's own.

    Raises:
      InputError: the data do not fit the model.
      TrainingStoppedError: the loss is not finite.
    """
    check_fits(trained, dataset)
    plans = plan(
        trained.settings,
        len(dataset.eval),
        chosen.num_replicas,
        global_batch_size or trained.settings["global_batch_size"],
    )
    if trained.settings.get("deterministic"):
        devices.use_deterministic_operations()
    strategy = devices.make_strategy(chosen)
    model = trained_models.build(trained, strategy)
    if chosen.are_stand_ins:
        kernel_gradient.use_matrix_products(model)  # which also calls the layers
    make_steps = functools.partial(
        step.make_eval_steps,
        strategy,
        model,
        max_concurrent=devices.max_concurrent_microbatches(chosen),
    )
    made = segments.make_segments(strategy, dataset.eval, plans, make_steps)
    loop.trace(made, step.zero_totals())
    try:
        return loop.run_pass(made, step.zero_totals())
    except loop.NotFiniteError as error:
        raise errors.TrainingStoppedError(
            f"the loss of step {error.num_steps + 1} of the evaluation is not finite"
        ) from error


def choose_threads(settings, chosen):
    """Sets TensorFlow's threads as a run with these settings has them here.

    Args:
      settings: of the run, as trained.read_settings gives them.
      chosen: devices.Devices of the replicas.
    """
    # Missing in runs from before they could be set.
    threads = [settings.get(f"{k}_op_threads", 0) for k in ("intra", "inter")]
    devices.set_threads(*threads)
    if not threads[0]:
        number = num_microbatches(settings, chosen.num_replicas)
        devices.use_one_thread_per_op(chosen, number)


def num_microbatches(settings, num_replicas):
    """Returns how many there are in a global batch, for a run's `settings`."""
    return max(settings["microbatches"] or settings["gpus"], num_replicas)


def plan(settings, num_examples, num_replicas, global_batch_size):
    """Returns the BatchPlans of a pass with the microbatches of a run's `settings`.

    Raises:
      InputError: fewer examples in a global batch than microbatches.
    """
    number = num_microbatches(settings, num_replicas)
    errors.require(
        global_batch_size >= number,
        "global_batch_size",
        global_batch_size,
        f"at least {number}, the microbatches in it",
    )
    is_as_trained = num_replicas == settings["gpus"]
    return microbatches.plan_epoch(
        num_examples,
        global_batch_size,
        microbatches.share_out(num_replicas, number),
        in_fixed_tree=settings["microbatches"] > 0 or not is_as_trained,
    )


def check_fits(trained, dataset):
    """Raises InputError unless the model can be evaluated on `dataset`."""
    got = dataset.eval.images.shape[1:]
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
