"""Learning rates over the steps of a run, all made with Keras' CosineDecay.

rate = make_schedule("cosine", 0.3, num_steps=2345, warmup_steps=469)
"""

import dataclasses

import keras

from tfmirror import config, errors

# Smith and Topin, Super-convergence (2018), with the proportions of PyTorch's
# OneCycleLR: up from 1/25 of the peak for 30 % of the steps, then down to 1/10000 of
# the start.
ONE_CYCLE_START = 1 / 25
ONE_CYCLE_WARMUP = 0.3
ONE_CYCLE_END = ONE_CYCLE_START / 1e4

# Learning rate at the end of the run, over its peak.
ENDS = {"constant": 1.0, "cosine": 0.0, "one_cycle": ONE_CYCLE_END}


def make_schedule(
    name: str, learning_rate: float, *, num_steps: int, warmup_steps: int = 0
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """Returns a learning rate for a Keras optimizer: a number, or a function of steps.

    "constant" stays at `learning_rate`. "cosine" falls to 0 along half a cosine. Both
    start with a linear rise from 0 over `warmup_steps`. "one_cycle" has a warm-up of
    its own, and then falls to almost 0.

    Args:
      name: "constant", "cosine" or "one_cycle".
      learning_rate: its peak.
      num_steps: steps of the whole run.
      warmup_steps: steps of the rise; 0: none.

    Raises:
      InputError: `name` is another one.
    """
    errors.require_one_of(tuple(ENDS), "schedule", name)
    if name == "constant" and not warmup_steps:
        return learning_rate
    start, end = 0.0, ENDS[name]
    if name == "one_cycle":
        start = learning_rate * ONE_CYCLE_START
        warmup_steps = max(1, round(ONE_CYCLE_WARMUP * num_steps))
    decay_steps = max(1, num_steps - warmup_steps)
    if not warmup_steps:
        return keras.optimizers.schedules.CosineDecay(learning_rate, decay_steps, end)
    return keras.optimizers.schedules.CosineDecay(
        start, decay_steps, end, warmup_target=learning_rate, warmup_steps=warmup_steps
    )


def of_run(
    settings: config.ResolvedConfig, steps_per_epoch: int
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """Returns the learning rate over the steps of a run with `settings`."""
    return make_schedule(
        settings.schedule,
        settings.peak_learning_rate,
        num_steps=settings.epochs * steps_per_epoch,
        warmup_steps=round(settings.warmup_epochs * steps_per_epoch),
    )


def changes(
    epochs_then: int, settings: config.ResolvedConfig, steps_per_epoch: int, step: int
) -> list[str]:
    """Returns a line if another number of epochs stretches the schedule of a run.

    Args:
      epochs_then: epochs of the run before it was resumed.
      settings: of the resumed run.
      step: steps taken, as the optimizer counts them.
    """
    if epochs_then == settings.epochs or settings.schedule == "constant":
        return []
    then, now = (
        of_run(dataclasses.replace(settings, epochs=epochs), steps_per_epoch)
        for epochs in (epochs_then, settings.epochs)
    )
    before, after = (
        float(rate(step)) if callable(rate) else rate for rate in (then, now)
    )
    return [
        f"the {settings.schedule} schedule now spans {settings.epochs} epochs instead "
        f"of {epochs_then}: after step {step} the learning rate was {before:.3g}, now "
        f"{after:.3g}"
    ]
