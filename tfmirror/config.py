"""Checks the settings of a training run, and decides those that were left open.

    settings = TrainConfig(gpus=2, dataset="mnist", data_dir="~/mnist")
    check(settings)                                     # InputError if one is wrong
    resolved = resolve(settings, num_replicas=2)        # a ResolvedConfig
    resolved.global_batch_size, resolved.peak_learning_rate     # 128, 0.3

A message names a flag as the setting is named, without dashes.
"""

import dataclasses
import math
import re
import typing
from collections.abc import Mapping

from tfmirror import errors, folder_settings, model_source
from tfmirror.recipes import (
    ADAM_LEARNING_RATE,
    EPOCHS_OF_SMALL_DATASETS,
    LR_SCALINGS,
    recipe_of,
)
from tfmirror.settings import (
    LARGEST_FLOAT,
    SMALLEST_FLOAT,
    check_fields,
    names_with,
)
from tfmirror.train_config import Interval, TrainConfig

LARGEST_BELOW_1 = 1 - 2**-24  # in float32, in which weights and slots are kept
BYTES_OF_FLOAT32 = 4
MOST_MICROBATCHES = 2**16


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolvedConfig(TrainConfig):
    """The settings of a run with everything decided and parsed: nothing is None.

    Made by `resolve`. It is a TrainConfig that leaves nothing open, with the same
    fields.

    Attributes:
      image_size: (H, W) of a folder's images; empty: their own.
      channels: of a folder's images; 0: the dataset is no folder.
      microbatches: number in a global batch on any number of replicas; 0: one per
        replica.
      microbatches_per_replica: number of each replica; empty: not given.
      per_replica_batch_size: most examples per step on one replica.
      learning_rate: step size for one batch of the recipe, before scaling.
      checkpoint_every: interval between two checkpoints.
      resume_override: names of settings that may differ on resume.
      init: initializer of the kernels; empty: that of the user's own model.
      model_sha256: digest of the file of the user's own model, as 64 hexadecimal
        digits; empty: a built-in model, or one of which no file is known.
      texts: the parsed settings as they were given, for config.json.
    """

    image_size: tuple[int, ...]
    microbatches_per_replica: tuple[int, ...]
    global_batch_size: int
    per_replica_batch_size: int
    epochs: int
    learning_rate: float
    lr_scaling: str
    init: str
    checkpoint_every: Interval
    resume_override: tuple[str, ...]
    model_sha256: str
    texts: Mapping[str, str] = dataclasses.field(compare=False, repr=False)

    @property
    def reference_batch_size(self) -> int:
        """Examples of the batch that `learning_rate` is for: one of the recipe."""
        return recipe_of(self.model).per_replica_batch_size

    @property
    def peak_learning_rate(self) -> float:
        """Learning rate for the global batch, at the peak of the schedule.

        With k recipe batches in the global batch, lr_scaling "linear" multiplies
        `learning_rate` by k and "sqrt" by sqrt(k). The number of replicas does not
        matter.
        """
        factor = self.global_batch_size / self.reference_batch_size
        return self.learning_rate * LR_SCALINGS[self.lr_scaling](factor)

    @property
    def pack_bytes(self) -> int:
        """Bytes of gradients in an all-reduce message; 0: as the strategy chooses."""
        return round(self.pack_mb * 2**20)

    def to_json(self) -> dict[str, typing.Any]:
        """Returns the settings as config.json and checkpoints hold them.

        Lists and intervals are texts there, as in their flags.
        """
        names = [field.name for field in dataclasses.fields(TrainConfig)]
        return {name: getattr(self, name) for name in names} | dict(self.texts)


def check(settings: TrainConfig) -> None:
    """Raises InputError at the first setting that is wrong on any machine."""
    check_fields(settings)
    if None not in (settings.global_batch_size, settings.per_replica_batch_size):
        raise errors.InputError(
            "global_batch_size and per_replica_batch_size can't be combined: got "
            f"{settings.global_batch_size} and {settings.per_replica_batch_size}; "
            "remove one"
        )
    errors.require_utf8("workdir", settings.workdir)
    if model_source.is_own(settings.model) and settings.init is not None:
        raise errors.InputError(
            f"init has no effect on model {settings.model}, which makes its weights "
            f"itself: got {settings.init}; remove init"
        )
    check_seed(settings.seed)
    folder_settings.check(settings.dataset, settings)
    _check_batches(settings)
    _check_optimizer(settings)
    parse_interval(settings.checkpoint_every)
    if settings.new_head and not settings.initial_weights:
        raise errors.InputError(
            "new_head needs initial_weights, from which the other layers are taken: "
            "give them or remove new_head"
        )
    if settings.resume == "auto" and not settings.workdir:
        raise errors.InputError(
            "resume=auto needs workdir: got none; give the directory of the run to "
            "resume"
        )
    overridable = names_with(TrainConfig, "override")
    for name in parse_names(settings.resume_override):
        errors.require_one_of(overridable, "resume_override", name)


def _check_batches(settings: TrainConfig) -> None:
    """Raises InputError if microbatches are combined with what excludes them."""
    pack_mb = settings.pack_mb
    is_met = not pack_mb or pack_mb * 2**20 >= BYTES_OF_FLOAT32
    errors.require(is_met, "pack_mb", pack_mb, "0, or enough for one float32 (4e-06)")
    if not num_fixed_microbatches(settings):
        return
    if settings.batch_norm == "sync":
        raise errors.InputError(
            "batch_norm=sync can't be combined with microbatches, each of which sees "
            "only a part of the global batch: remove either"
        )
    if settings.all_reduce != "auto" or settings.pack_mb:
        raise errors.InputError(
            "all_reduce and pack_mb have no effect with microbatches, which are added "
            f"in a fixed tree: got all_reduce={settings.all_reduce} and "
            f"pack_mb={settings.pack_mb:g}; remove them or microbatches"
        )


def _check_optimizer(settings: TrainConfig) -> None:
    """Raises InputError at the first setting of the optimizer that is wrong."""
    rate = settings.learning_rate
    is_met = rate is None or (math.isfinite(rate) and rate > 0)
    errors.require(is_met, "learning_rate", rate, "a finite number above 0")
    for name in ("momentum", "ema_decay", "label_smoothing"):
        value = getattr(settings, name)
        errors.require(0 <= value <= LARGEST_BELOW_1, name, value, "in [0, 1)")
    if settings.momentum and settings.optimizer != "sgd":
        raise errors.InputError(
            f"momentum needs optimizer=sgd: got optimizer={settings.optimizer}; "
            "remove momentum"
        )
    if settings.warmup_epochs and settings.schedule == "one_cycle":
        raise errors.InputError(
            "warmup_epochs can't be combined with schedule=one_cycle, which warms up "
            f"for the first 30% of the steps: got {settings.warmup_epochs:g}; remove "
            "warmup_epochs"
        )
    if settings.epochs is not None:
        _check_warmup(settings.warmup_epochs, settings.epochs)


def _check_warmup(warmup_epochs: float, epochs: int) -> None:
    """Raises InputError if the warm-up would not end within the run."""
    expected = f"at most epochs, {epochs}, so that the rate reaches learning_rate"
    errors.require(warmup_epochs <= epochs, "warmup_epochs", warmup_epochs, expected)


def check_device_settings(gpus: int, device_type: str) -> None:
    """Raises InputError unless `gpus` and `device_type` are ones a run may ask for."""
    check_fields(TrainConfig(gpus=gpus, device_type=device_type))


def check_seed(seed: int) -> None:
    """Raises InputError unless Keras, NumPy and TensorFlow all accept `seed`."""
    errors.require(0 <= seed < 2**31, "seed", seed, "in [0, 2147483648)")


def num_fixed_microbatches(settings: TrainConfig) -> int:
    """Returns the number of microbatches in a global batch on any number of replicas.

    0: the number is not fixed; there is one per replica.
    """
    counts = parse_counts(settings.microbatches_per_replica)
    return settings.microbatches or sum(counts)


def parse_counts(given: str | tuple[int, ...]) -> tuple[int, ...]:
    """Returns the numbers in a text such as "5,3"; () for an empty one.

    Raises:
      InputError: it is not a list of whole numbers, or all of them are 0.
    """
    text = ",".join(map(str, given)) if isinstance(given, tuple) else given
    parts = text.split(",") if text else []
    is_met = all(re.fullmatch(r" *\d{1,9} *", part) for part in parts)
    counts = tuple(int(part) for part in parts) if is_met else ()
    expected = "comma-separated whole numbers, at least one above 0, such as 5,3"
    errors.require(any(counts) or not text, "microbatches_per_replica", text, expected)
    total, most = sum(counts), MOST_MICROBATCHES
    errors.require(
        total <= most, "microbatches_per_replica", total, f"at most {most} in all"
    )
    return counts


def parse_interval(given: str | Interval) -> Interval:
    """Returns the Interval of a text such as "1epoch" or "200 steps"; "" is never.

    Raises:
      InputError: it is something else.
    """
    if isinstance(given, Interval):
        return given
    found = re.fullmatch(r"([1-9]\d{0,8}) ?(epoch|step)s?", given)
    expected = "a number of epochs or steps, such as 1epoch or 200steps, or empty"
    errors.require(found or not given, "checkpoint_every", given, expected)
    return Interval(int(found[1]), found[2]) if found else Interval(0, "step")


def parse_names(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names in a comma-separated text; () for an empty one."""
    return given if isinstance(given, tuple) else errors.split_names(given)


def resolve(
    settings: TrainConfig, num_replicas: int, model_sha256: str = ""
) -> ResolvedConfig:
    """Returns `settings` parsed, with everything left open taken from the recipe.

    With B the global batch size and N replicas, each replica has B/N examples per
    step, the first B mod N replicas one more (unless microbatches are spread
    unevenly).

    Args:
      settings: ones that `check` accepts.
      num_replicas: N, the number of devices chosen.
      model_sha256: digest of the file of the user's own model; empty: a built-in one.

    Raises:
      InputError: a global batch has fewer examples than replicas or microbatches, the
        warm-up is longer than the run, or the scaled learning rate is no float32.
    """
    recipe = recipe_of(settings.model)
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
    learning_rate, lr_scaling = _resolve_learning_rate(settings)
    recipe_epochs = EPOCHS_OF_SMALL_DATASETS.get(settings.dataset, recipe.epochs)
    decided = {
        "gpus": num_replicas,
        "image_size": folder_settings.parse_size(settings.image_size),
        "channels": folder_settings.resolve_channels(
            settings.dataset, settings.channels
        ),
        "microbatches": microbatches,
        "microbatches_per_replica": parse_counts(settings.microbatches_per_replica),
        "global_batch_size": global_batch_size,
        "per_replica_batch_size": math.ceil(global_batch_size / num_replicas),
        "learning_rate": learning_rate,
        "lr_scaling": lr_scaling,
        "init": settings.init or recipe.init,
        "epochs": settings.epochs or recipe_epochs,
        "checkpoint_every": parse_interval(settings.checkpoint_every),
        "resume_override": parse_names(settings.resume_override),
        "model_sha256": model_sha256,
        "texts": _texts(settings),
    }
    resolved = ResolvedConfig(**_values(settings) | decided)
    _check_warmup(resolved.warmup_epochs, resolved.epochs)
    peak = resolved.peak_learning_rate
    is_met = SMALLEST_FLOAT <= peak <= LARGEST_FLOAT
    expected = "a float32 above 0 once lr_scaling has multiplied it"
    errors.require(is_met, "learning_rate", peak, expected)
    return resolved


def _resolve_learning_rate(settings: TrainConfig) -> tuple[float, str]:
    """Returns (learning_rate, lr_scaling), both decided.

    The recipe's own learning rate is one of sgd and comes with the recipe's scaling. A
    rate that was given, or the one of adam and adamw, is not scaled. A scaling that
    was given applies to any rate.
    """
    recipe = recipe_of(settings.model)
    rate, scaling = recipe.learning_rate, recipe.lr_scaling
    if settings.optimizer != "sgd":
        rate, scaling = ADAM_LEARNING_RATE, "none"
    if settings.learning_rate is not None:
        rate, scaling = settings.learning_rate, "none"
    return rate, settings.lr_scaling or scaling


def _values(settings: TrainConfig) -> dict[str, typing.Any]:
    """Returns {name: value} of the fields of a TrainConfig."""
    return {f.name: getattr(settings, f.name) for f in dataclasses.fields(TrainConfig)}


def _texts(settings: TrainConfig) -> dict[str, str]:
    """Returns {name: text} of the settings that `resolve` parses."""
    return {
        "image_size": "x".join(
            map(str, folder_settings.parse_size(settings.image_size))
        ),
        "microbatches_per_replica": _list_text(settings.microbatches_per_replica),
        "checkpoint_every": str(settings.checkpoint_every),
        "resume_override": _list_text(settings.resume_override),
    }


def _list_text(given: str | tuple[object, ...]) -> str:
    """Returns a list as the text of a flag."""
    return given if isinstance(given, str) else ",".join(map(str, given))
