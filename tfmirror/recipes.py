"""What models are trained with unless a flag says otherwise, and presets by name."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Defaults of one model."""

    per_replica_batch_size: int  # examples
    learning_rate: float  # of sgd, for that batch size
    epochs: int
    init: str  # of models.INITIALIZERS
    lr_scaling: str = "none"  # how the rate follows the global batch


# The chapters "Training on multiple GPUs with gluon" (The Straight Dope): 64 a device,
# 0.3 for one device and for two, 5 epochs; and "Concise implementation for multiple
# GPUs" (Dive into Deep Learning): 256 a device, 0.1 for one and 0.2 for two, 10 epochs,
# weights from a normal distribution of deviation 0.01.
RECIPES = {
    "cnn": Recipe(64, 0.3, epochs=5, init="glorot"),
    "resnet18": Recipe(256, 0.1, epochs=10, init="normal", lr_scaling="linear"),
}

# A set this small needs more passes for the same number of steps (BUILD_NOTES.md).
EPOCHS_OF_SMALL_DATASETS = {"digits": 30}

# Kingma and Ba, Adam (2015), algorithm 1; Keras' default as well.
ADAM_LEARNING_RATE = 0.001

# Goyal et al., Accurate, large minibatch SGD (2017), sections 2.1 and 2.2, for linear;
# Krizhevsky, One weird trick for parallelizing convolutional neural networks (2014),
# section 5, for the square root, which keeps the variance of a step's noise.
LR_SCALINGS = {"none": lambda factor: 1.0, "linear": float, "sqrt": math.sqrt}

# Pictures that show the same thing in a mirror; characters and digits do not.
DATASETS_TO_FLIP = frozenset({"fashion_mnist", "cifar10", "cifar100", "synthetic"})

# What inspect_replicas shows unless told otherwise: the second chapter shows four
# random observations in [0, 1).
INSPECTED_DATASETS = {"cnn": "digits", "resnet18": "random"}

# Settings that replace defaults, by name; a flag given beside the preset wins.
PRESETS = {
    "accurate": {
        "model": "resnet18",
        "epochs": 15,
        "global_batch_size": 128,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "schedule": "one_cycle",
        "init": "he",
        "augment": True,
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
