"""Settings of a run, and the only home of their defaults.

    settings = TrainConfig(gpus=2, dataset="mnist", data_dir="~/mnist")
    check(settings)                                     # InputError if out of range
    settings = resolve(settings, num_replicas=2)        # no None left

Every field is also a flag of the same name (`tfmirror.flags`).
"""

import dataclasses
import math
import re
import typing

from tfmirror import errors
from tfmirror.recipes import (
    ADAM_LEARNING_RATE,
    EPOCHS_OF_SMALL_DATASETS,
    LR_SCALINGS,
    PRESETS,
    RECIPES,
)

DEVICE_TYPES = ("auto", "cpu", "gpu")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "one_cycle")
PRECISIONS = ("float32", "bfloat16", "float16")
BATCH_NORMS = ("microbatch", "sync")
ON_DRIFT = ("stop", "resync")
ALL_REDUCES = ("auto", "nccl", "hierarchical", "one_device")
# What a run that is resumed may go on with another value of, if asked to.
OVERRIDABLE = (
    "epochs", "learning_rate", "lr_scaling", "schedule", "warmup_epochs",
    "weight_decay", "clip_norm", "augment", "gpus", "all_reduce", "pack_mb",
    "intra_op_threads", "inter_op_threads",
)  # fmt: skip
INITS = ("normal", "he", "glorot")

# Logical CPU devices that stand in for GPUs if no number is asked for: as many as both
# chapters have.
NUM_STAND_INS = 2


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All settings of one training run. None: taken from the model's recipe.

    `TrainConfig(**TrainConfig.PRESETS["accurate"], gpus=2)` starts from a preset.
    """

    PRESETS: typing.ClassVar = PRESETS

    model: str = "cnn"
    dataset: str = "digits"
    data_dir: str = ""  # empty: not given
    limit_train_examples: int = 0  # 0: all
    limit_eval_examples: int = 0  # 0: all
    gpus: int = 0  # 0: all there are, or NUM_STAND_INS
    device_type: str = "auto"
    intra_op_threads: int = 0  # of one operation on CPUs; 0: all cores, or one
    inter_op_threads: int = 0  # operations on CPUs at a time; 0: all cores
    all_reduce: str = "auto"
    pack_mb: float = 0.0  # megabytes of gradients in a message; 0: as the strategy does
    microbatches: int = 0  # in a global batch; 0: one a replica, as the strategy adds
    microbatches_per_replica: str = ""  # such as "5,3"; empty: as even as can be
    global_batch_size: int | None = None  # examples a step over all replicas
    per_replica_batch_size: int | None = None  # examples a step on each replica
    epochs: int | None = None
    optimizer: str = "sgd"
    learning_rate: float | None = None  # before lr_scaling
    lr_scaling: str | None = None
    momentum: float = 0.0  # of sgd
    weight_decay: float = 0.0  # decoupled; 0: none
    clip_norm: float = 0.0  # global norm of the gradient; 0: not clipped
    schedule: str = "constant"
    warmup_epochs: float = 0.0
    ema_decay: float = 0.0  # 0: no moving average of the weights
    precision: str = "float32"
    batch_norm: str = "microbatch"
    init: str | None = None
    augment: bool = False
    seed: int = 0
    deterministic: bool = False
    steps_per_loop: int = 0  # 0: chosen so that a loop takes about half a second
    check_drift_every: int = 0  # steps; 0: never
    on_drift: str = "stop"
    checkpoint_every: str = "1epoch"  # or so many steps: "200steps"; empty: never
    keep: int = 3  # the last so many checkpoints; 0: all
    resume: str = "never"  # "auto", or a checkpoint or run directory
    resume_override: str = ""  # settings that may differ, with commas between
    step_timeout: float = 0.0  # seconds; 0: none
    workdir: str = ""  # empty: a new folder under runs/


def check(settings):
    """Raises InputError at the first setting that is wrong on any machine."""
    errors.require_one_of(sorted(RECIPES), "model", settings.model)
    if None not in (settings.global_batch_size, settings.per_replica_batch_size):
        raise errors.InputError(
            "global_batch_size and per_replica_batch_size can't both be given: got "
            f"{settings.global_batch_size} and {settings.per_replica_batch_size}; drop "
            "one"
        )
    check_device_settings(settings.gpus, settings.device_type)
    check_seed(settings.seed)
    for name in ("global_batch_size", "per_replica_batch_size", "epochs"):
        value = getattr(settings, name)
        errors.require(value is None or value >= 1, name, value, "at least 1")
    for name, zero in (
        ("limit_train_examples", "all"),
        ("limit_eval_examples", "all"),
        ("microbatches", "one a replica"),
        ("steps_per_loop", "chosen"),
        ("check_drift_every", "never"),
        ("keep", "all"),
    ):
        value = getattr(settings, name)
        errors.require(value >= 0, name, value, f"at least 0 (0: {zero})")
    parse_shares(settings.microbatches_per_replica)
    _check_device_options(settings)
    _check_safety_settings(settings)
    _check_optimizer_settings(settings)
    errors.require_one_of(PRECISIONS, "precision", settings.precision)
    errors.require_one_of((None, *INITS), "init", settings.init)
    errors.require_one_of(ON_DRIFT, "on_drift", settings.on_drift)
    errors.require_one_of(BATCH_NORMS, "batch_norm", settings.batch_norm)
    if settings.batch_norm == "sync" and num_fixed_microbatches(settings):
        raise errors.InputError(
            "batch_norm=sync can't be given with microbatches, each of which sees only "
            "its own part of the global batch: drop one"
        )


def num_fixed_microbatches(settings):
    """Returns how many microbatches there are on any number of replicas.

    0: they are not fixed, but one a replica.
    """
    return settings.microbatches or sum(parse_shares(settings.microbatches_per_replica))


def _check_device_options(settings):
    """Raises InputError at the first wrong one of threads and reduction."""
    for name in ("intra_op_threads", "inter_op_threads"):
        value = getattr(settings, name)
        errors.require(value >= 0, name, value, "at least 0 (0: chosen)")
    errors.require_one_of(ALL_REDUCES, "all_reduce", settings.all_reduce)
    size = settings.pack_mb
    is_met = math.isfinite(size) and size >= 0
    errors.require(is_met, "pack_mb", size, "at least 0 (0: as the strategy does)")
    is_other = settings.all_reduce != "auto" or size
    if is_other and num_fixed_microbatches(settings):
        raise errors.InputError(
            "all_reduce and pack_mb are of the strategy's reduction, in whose place "
            "microbatches are added in a fixed tree: drop one"
        )


def _check_optimizer_settings(settings):
    """Raises InputError at the first setting of the optimizer that is wrong."""
    errors.require_one_of(OPTIMIZERS, "optimizer", settings.optimizer)
    errors.require_one_of(SCHEDULES, "schedule", settings.schedule)
    errors.require_one_of((None, *LR_SCALINGS), "lr_scaling", settings.lr_scaling)
    rate = settings.learning_rate
    is_rate = rate is None or (math.isfinite(rate) and rate > 0)
    errors.require(is_rate, "learning_rate", rate, "a finite number above 0")
    for name in ("weight_decay", "clip_norm", "warmup_epochs"):
        value = getattr(settings, name)
        is_met = math.isfinite(value) and value >= 0
        errors.require(is_met, name, value, "a finite number of at least 0 (0: none)")
    for name in ("momentum", "ema_decay"):
        value = getattr(settings, name)
        errors.require(0 <= value < 1, name, value, "in [0, 1) (0: none)")
    if settings.momentum and settings.optimizer != "sgd":
        raise errors.InputError(
            f"momentum is of --optimizer=sgd alone: got {settings.momentum} with "
            f"{settings.optimizer}; drop it"
        )
    if settings.warmup_epochs and settings.schedule == "one_cycle":
        raise errors.InputError(
            "warmup_epochs can't be given with --schedule=one_cycle, which warms up "
            f"for 30 % of the steps: got {settings.warmup_epochs}; drop it"
        )


def _check_safety_settings(settings):
    """Raises InputError at the first setting of checkpoints that is wrong."""
    parse_interval(settings.checkpoint_every)
    timeout = settings.step_timeout
    is_met = math.isfinite(timeout) and timeout >= 0
    errors.require(is_met, "step_timeout", timeout, "at least 0 seconds (0: none)")
    if settings.resume == "auto" and not settings.workdir:
        raise errors.InputError(
            "resume=auto needs the --workdir of the run to go on with"
        )
    for name in errors.split_names(settings.resume_override):
        errors.require_one_of(OVERRIDABLE, "resume_override", name)


def parse_interval(text):
    """Returns (number, "epoch" or "step") of a text such as "1epoch" or "200 steps".

    (0, "step") for an empty one.

    Raises:
      InputError: it is something else.
    """
    found = re.fullmatch(r"([1-9]\d{0,8}) ?(epoch|step)s?", text)
    expected = "a number of epochs or of steps, such as 1epoch or 200steps"
    errors.require(found or not text, "checkpoint_every", text, expected)
    return (int(found[1]), found[2]) if found else (0, "step")


def check_device_settings(gpus, device_type):
    """Raises InputError unless both can be asked for."""
    errors.require(gpus >= 0, "gpus", gpus, "at least 0 (0: all there are)")
    errors.require_one_of(DEVICE_TYPES, "device_type", device_type)


def check_seed(seed):
    """Raises InputError unless Keras, NumPy and TensorFlow all take `seed`."""
    errors.require(0 <= seed < 2**31, "seed", seed, "in [0, 2147483648)")


def parse_shares(text):
    """Returns the whole numbers in a text such as "5,3"; none for an empty one.

    Raises:
      InputError: something else is in it, a number below 0, or only zeros.
    """
    parts = text.split(",") if text else []
    is_met = all(part.strip().isdecimal() for part in parts)
    shares = tuple(int(part) for part in parts) if is_met else ()
    expected = "whole numbers with commas between, not all 0, such as 5,3"
    errors.require(any(shares) or not text, "microbatches_per_replica", text, expected)
    return shares


def resolve(settings, num_replicas):
    """Returns `settings` with every None filled in from the model's recipe.

    With B the global batch and N replicas, a replica gets B/N examples a step, one more
    on the first B mod N of them; `per_replica_batch_size` is the larger of the two
    (shares of microbatches that are not even apart).

    Raises:
      InputError: fewer examples in a global batch than replicas or microbatches.
    """
    recipe = RECIPES[settings.model]
    global_batch_size = settings.global_batch_size
    if global_batch_size is None:
        per_replica = settings.per_replica_batch_size or recipe.per_replica_batch_size
        global_batch_size = per_replica * num_replicas
    microbatches = num_fixed_microbatches(settings)
    for needed, what in ((num_replicas, "replicas"), (microbatches, "microbatches")):
        if global_batch_size < needed:
            raise errors.InputError(
                f"global_batch_size must be at least the number of {what}: got "
                f"{global_batch_size} for {needed} {what}"
            )
    is_sgd = settings.optimizer == "sgd"
    # The recipe's own rate follows the global batch as the recipe says; a rate that was
    # given is taken as it is, unless a scaling is given too.
    own_scaling = recipe.lr_scaling if is_sgd else "none"
    lr_scaling = "none" if settings.learning_rate else own_scaling
    rate = recipe.learning_rate if is_sgd else ADAM_LEARNING_RATE
    recipe_epochs = EPOCHS_OF_SMALL_DATASETS.get(settings.dataset, recipe.epochs)
    return dataclasses.replace(
        settings,
        gpus=num_replicas,
        microbatches=microbatches,
        global_batch_size=global_batch_size,
        per_replica_batch_size=math.ceil(global_batch_size / num_replicas),
        learning_rate=settings.learning_rate or rate,
        lr_scaling=settings.lr_scaling or lr_scaling,
        init=settings.init or recipe.init,
        epochs=settings.epochs or recipe_epochs,
    )


def scaled_learning_rate(settings):
    """Returns the learning rate of resolved `settings` for their global batch.

    `learning_rate` is for one batch of the model's recipe; with k such batches in a
    global batch, "linear" takes k times it and "sqrt" sqrt(k) times. How many replicas
    share the global batch does not matter.
    """
    factor = settings.global_batch_size / reference_batch_size(settings)
    return settings.learning_rate * LR_SCALINGS[settings.lr_scaling](factor)


def reference_batch_size(settings):
    """Returns the size of the batch that the learning rate is for, before scaling."""
    return RECIPES[settings.model].per_replica_batch_size
