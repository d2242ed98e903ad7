"""Settings of a run, and the only home of their defaults.

    settings = TrainConfig(gpus=2, dataset="mnist", data_dir="~/mnist")
    check(settings)                                     # InputError if out of range
    settings = resolve(settings, num_replicas=2)        # no None left

Every field is also a flag of the same name (`tfmirror.flags`).
"""

import dataclasses
import math

DEVICE_TYPES = ("auto", "cpu", "gpu")

# Logical CPU devices that stand in for GPUs if no number is asked for: as many as both
# chapters have.
NUM_STAND_INS = 2


class InputError(ValueError):
    """A wrong flag or input.

    The message says what was got, what is expected and what to do. The commands print
    it as one line and exit with code 2.
    """


class TrainingStoppedError(RuntimeError):
    """Training can't go on, as with a loss that is not finite (exit code 3)."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a model is trained with unless a flag says otherwise."""

    per_replica_batch_size: int  # examples
    learning_rate: float  # whatever the number of replicas
    epochs: int


# Batch, rate and epochs of the chapter "Training on multiple GPUs with gluon"
# (The Straight Dope, chapter 7): 64 a device, 0.3 for one device and for two, 5 epochs.
RECIPES = {"cnn": Recipe(per_replica_batch_size=64, learning_rate=0.3, epochs=5)}

# A set this small needs more passes for the same number of steps (BUILD_NOTES.md).
EPOCHS_OF_SMALL_DATASETS = {"digits": 30}


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All settings of one training run. None: taken from the model's recipe."""

    model: str = "cnn"
    dataset: str = "digits"
    data_dir: str = ""  # empty: not given
    limit_train_examples: int = 0  # 0: all
    limit_eval_examples: int = 0  # 0: all
    gpus: int = 0  # 0: all there are, or NUM_STAND_INS
    device_type: str = "auto"
    global_batch_size: int | None = None  # examples a step over all replicas
    per_replica_batch_size: int | None = None  # examples a step on each replica
    learning_rate: float | None = None
    epochs: int | None = None
    seed: int = 0
    steps_per_loop: int = 0  # 0: chosen so that a loop takes about half a second
    workdir: str = ""  # empty: a new folder under runs/


def require(is_met, name, got, expected):
    """Raises InputError unless `is_met`: "NAME must be EXPECTED: got GOT"."""
    if not is_met:
        raise InputError(f"{name} must be {expected}: got {got!r}")


def check(settings):
    """Raises InputError at the first setting that is wrong on any machine."""
    check_model(settings.model)
    if None not in (settings.global_batch_size, settings.per_replica_batch_size):
        raise InputError(
            "global_batch_size and per_replica_batch_size can't both be given: got "
            f"{settings.global_batch_size} and {settings.per_replica_batch_size}; drop "
            "one"
        )
    check_device_settings(settings.gpus, settings.device_type)
    check_seed(settings.seed)
    for name in ("global_batch_size", "per_replica_batch_size", "epochs"):
        value = getattr(settings, name)
        require(value is None or value >= 1, name, value, "at least 1")
    for name in ("limit_train_examples", "limit_eval_examples"):
        value = getattr(settings, name)
        require(value >= 0, name, value, "at least 0 (0: all)")
    value = settings.steps_per_loop
    require(value >= 0, "steps_per_loop", value, "at least 0 (0: chosen)")
    rate = settings.learning_rate
    is_rate = rate is None or (math.isfinite(rate) and rate > 0)
    require(is_rate, "learning_rate", rate, "a finite number above 0")


def check_model(name):
    """Raises InputError unless there is a model `name`."""
    require(name in RECIPES, "model", name, f"one of {', '.join(sorted(RECIPES))}")


def check_device_settings(gpus, device_type):
    """Raises InputError unless both can be asked for."""
    require(gpus >= 0, "gpus", gpus, "at least 0 (0: all there are)")
    allowed = f"one of {', '.join(DEVICE_TYPES)}"
    require(device_type in DEVICE_TYPES, "device_type", device_type, allowed)


def check_seed(seed):
    """Raises InputError unless Keras, NumPy and TensorFlow all take `seed`."""
    require(0 <= seed < 2**31, "seed", seed, "in [0, 2147483648)")


def resolve(settings, num_replicas):
    """Returns `settings` with every None filled in from the model's recipe.

    With B the global batch and N replicas, a replica gets B/N examples a step, one more
    on the first B mod N of them; `per_replica_batch_size` is the larger of the two.

    Raises:
      InputError: fewer examples in a global batch than replicas.
    """
    recipe = RECIPES[settings.model]
    global_batch_size = settings.global_batch_size
    if global_batch_size is None:
        per_replica = settings.per_replica_batch_size or recipe.per_replica_batch_size
        global_batch_size = per_replica * num_replicas
    if global_batch_size < num_replicas:
        raise InputError(
            "global_batch_size must be at least the number of replicas: got "
            f"{global_batch_size} for {num_replicas} replicas"
        )
    recipe_epochs = EPOCHS_OF_SMALL_DATASETS.get(settings.dataset, recipe.epochs)
    return dataclasses.replace(
        settings,
        gpus=num_replicas,
        global_batch_size=global_batch_size,
        per_replica_batch_size=math.ceil(global_batch_size / num_replicas),
        learning_rate=settings.learning_rate or recipe.learning_rate,
        epochs=settings.epochs or recipe_epochs,
    )


@dataclasses.dataclass(frozen=True)
class InspectConfig:
    """All settings of one look into every replica."""

    model: str = "cnn"
    dataset: str = "digits"
    data_dir: str = ""  # empty: not given
    gpus: int = 0  # 0: all there are, or NUM_STAND_INS
    device_type: str = "auto"
    num_examples: int = 2  # on each replica
    layer: str = ""  # empty: the first convolution
    channel: int = 0
    seed: int = 0
    json: bool = False


def check_inspect(settings):
    """Raises InputError at the first setting that is wrong whatever the model."""
    check_model(settings.model)
    check_device_settings(settings.gpus, settings.device_type)
    check_seed(settings.seed)
    require(
        settings.num_examples >= 1, "num_examples", settings.num_examples, "at least 1"
    )
    require(settings.channel >= 0, "channel", settings.channel, "at least 0")
