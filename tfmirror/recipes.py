"""Defaults of each model from its chapter, presets, and the names of the choices.

RECIPES["cnn"].learning_rate                        # 0.3
config.TrainConfig(**PRESETS["accurate"], gpus=2)
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping

OPTIMIZERS = ("sgd", "adam", "adamw")
AUGMENTATIONS = ("none", "crop", "resized_crop")
SCHEDULES = ("constant", "cosine", "one_cycle")
INITS = ("normal", "he", "glorot")

# Logical CPU devices that take the place of GPUs if no number is given: both chapters
# train on two devices.
NUM_STAND_INS = 2


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Defaults of one model.

    Attributes:
      per_replica_batch_size: examples per step on each replica.
      learning_rate: step size of sgd for a global batch of that many examples.
      epochs: passes over the training examples.
      init: initializer of the kernels, one of INITS; empty: the model's own.
      lr_scaling: how the learning rate follows the global batch size, one of
        LR_SCALINGS.
    """

    per_replica_batch_size: int
    learning_rate: float
    epochs: int
    init: str
    lr_scaling: str = "none"


# The chapters "Training on multiple GPUs with gluon" (The Straight Dope): 64 a device,
# 0.3 for one device and for two, 5 epochs; and "Concise implementation for multiple
# GPUs" (Dive into Deep Learning): 256 a device, 0.1 for one and 0.2 for two, 10 epochs,
# weights from a normal distribution of deviation 0.01.
RECIPES = {
    "cnn": Recipe(64, 0.3, epochs=5, init="glorot"),
    "resnet18": Recipe(256, 0.1, epochs=10, init="normal", lr_scaling="linear"),
}

# For a model of the user's own, which makes its initial weights itself.
OWN_MODEL = Recipe(64, 0.1, epochs=5, init="")

# So small a dataset needs more epochs for about as many steps (BUILD_NOTES.md).
EPOCHS_OF_SMALL_DATASETS = {"digits": 30}

# Kingma and Ba, Adam (2015), algorithm 1; also Keras' default.
ADAM_LEARNING_RATE = 0.001

# Goyal et al., Accurate, large minibatch SGD (2017), sections 2.1 and 2.2, for linear;
# Krizhevsky, One weird trick for parallelizing convolutional neural networks (2014),
# section 5, for the square root, which keeps the variance of a step's noise.
# A function of k, the global batch size as a multiple of the recipe's batch size,
# returns the factor of the learning rate.
LR_SCALINGS: dict[str, Callable[[float], float]] = {
    "none": lambda factor: 1.0,
    "linear": float,
    "sqrt": math.sqrt,
}

# Datasets whose images may be mirrored; a mirrored character or digit is another one.
# Folders of images are taken for photos, of which a mirror image is one as well.
DATASETS_TO_FLIP = frozenset(
    {"fashion_mnist", "cifar10", "cifar100", "folder", "synthetic"}
)

# Default dataset of inspect_replicas: the second chapter shows random images in [0, 1).
INSPECTED_DATASETS = {"cnn": "digits", "resnet18": "random"}

# What a preset's value is dropped for, beside its own flag: {given: its settings}. A
# learning rate and a momentum are of one optimizer; only one batch size can be given.
PRESET_SETTINGS_OF = {
    "optimizer": ("learning_rate", "momentum"),
    "per_replica_batch_size": ("global_batch_size",),
}

# Settings that replace defaults, by name; a flag on the command line overrides them.
PRESETS: dict[str, dict[str, typing.Any]] = {
    "accurate": {
        "model": "resnet18",
        "epochs": 15,
        "global_batch_size": 128,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "schedule": "one_cycle",
        "init": "he",
        "augment": "crop",
    },
    # MNIST to 99 % in two passes (BUILD_NOTES.md): one cycle of Adam's rate, up to ten
    # times the usual.
    "fast": {
        "model": "cnn",
        "dataset": "mnist",
        "epochs": 2,
        "global_batch_size": 256,
        "optimizer": "adam",
        "learning_rate": 0.01,
        "schedule": "one_cycle",
        "precision": "bfloat16",
    },
}


def recipe_of(model: str) -> Recipe:
    """Returns the Recipe of a setting `model`: OWN_MODEL unless it is built in."""
    return RECIPES.get(model, OWN_MODEL)


def with_preset(
    preset: Mapping[str, typing.Any], given: Mapping[str, typing.Any]
) -> dict[str, typing.Any]:
    """Returns the settings of a preset and those that are given beside it, which win.

    Another optimizer than the preset's also drops its learning rate and momentum, and
    a per-replica batch size its global batch size: see PRESET_SETTINGS_OF.

    Args:
      preset: {setting: value}, one of PRESETS.
      given: {setting: value}.
    """
    kept = dict(preset)
    for name, dropped in PRESET_SETTINGS_OF.items():
        usual = "sgd" if name == "optimizer" else None
        if given.get(name, preset.get(name, usual)) != preset.get(name, usual):
            kept = {k: v for k, v in kept.items() if k not in dropped}
    return kept | dict(given)
