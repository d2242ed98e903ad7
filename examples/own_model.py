"""A model of one's own, trained by name or from Python.

python -m tfmirror.train --gpus=2 --model=examples/own_model.py:build
python -m tfmirror.verify --gpus=2 --model=examples/own_model.py:build
python examples/own_model.py
"""

import keras
import numpy as np

from tfmirror import config
from tfmirror.data import datasets
from tfmirror.training import run


def build(input_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """Returns a model from images [b, H, W, C] float32 in [0, 1] to logits [b, K]."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.GlobalMaxPooling2D(),
            layers.Dropout(0.1),
            layers.Dense(num_classes),
        ]
    )


def make_stripes(num_examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [E, 16, 16, 3] uint8 of 2 classes, and their labels [E].

    Class 0 has horizontal stripes, class 1 vertical ones, of random colours.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, num_examples)
    images = rng.integers(0, 128, (num_examples, 16, 16, 3), np.uint8)
    images[labels == 0, ::2] += 100
    images[labels == 1, :, ::2] += 100
    return images, labels


if __name__ == "__main__":
    splits = {"train": make_stripes(1024, seed=0), "eval": make_stripes(256, seed=1)}
    stripes = datasets.from_splits("stripes", splits, source="made", num_classes=2)
    summary = run.train(
        config.TrainConfig(gpus=2, microbatches=4, epochs=10),
        model=build,
        dataset=stripes,
    )
    print(summary["final_eval_accuracy"], summary["weights_sha256"])
