"""Recognises IDX data by their checksums, whatever the files are called.

    check("fashion_mnist", "train", {path: images})     # InputError if it is MNIST

The files of MNIST and Fashion-MNIST have the same names and shapes, and an uncompressed
IDX file contains no checksum.
"""

import hashlib
import pathlib
from collections.abc import Mapping

import numpy as np

from tfmirror import errors

# SHA-256 of the values, without the header -> dataset, split, kind. Computed from the
# files at https://ossci-datasets.s3.amazonaws.com/mnist and
# http://fashion-mnist.s3-website.eu-central-1.amazonaws.com.
KNOWN = {
    "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757": (
        "mnist", "train", "images"),
    "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13": (
        "mnist", "train", "labels"),
    "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161": (
        "mnist", "eval", "images"),
    "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5": (
        "mnist", "eval", "labels"),
    "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012": (
        "fashion_mnist", "train", "images"),
    "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7": (
        "fashion_mnist", "train", "labels"),
    "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a": (
        "fashion_mnist", "eval", "images"),
    "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9": (
        "fashion_mnist", "eval", "labels"),
}  # fmt: skip
NUM_EXAMPLES = {"train": 60_000, "eval": 10_000}
NAMES = {name for name, _, _ in KNOWN.values()}


def check(name: str, split: str, arrays: Mapping[pathlib.Path, np.ndarray]) -> None:
    """Raises InputError if arrays are known to be other data than `name`, or damaged.

    Nothing is checked if `name` isn't in `NAMES`. An array is called damaged if it has
    as many examples as the original but other values.

    Args:
      name: of the dataset that the arrays should belong to.
      split: "train" or "eval".
      arrays: {path of the file: its values}: images [E, H, W] and labels [E], uint8.
    """
    if name not in NAMES:
        return
    for path, array in arrays.items():
        kind = "images" if array.ndim > 1 else "labels"
        found = KNOWN.get(hashlib.sha256(array.tobytes()).hexdigest())
        if found and found != (name, split, kind):
            raise errors.InputError(
                f"{path}: expected the {describe(name, split, kind)}, got the "
                f"{describe(*found)}; replace the file, or use --dataset={found[0]}"
            )
        if not found and len(array) == NUM_EXAMPLES[split]:
            raise errors.InputError(
                f"{path}: has as many examples as the {describe(name, split, kind)}, "
                "but other values, so it is damaged or changed; replace it with a good "
                "copy, or give changed data another --dataset name"
            )


def describe(name: str, split: str, kind: str) -> str:
    """Returns a phrase for people: "training images of mnist".

    Args:
      name: of the dataset.
      split: "train" or "eval".
      kind: "images" or "labels".
    """
    split_name = {"train": "training", "eval": "test"}[split]
    return f"{split_name} {kind} of {name}"
