"""Image classification data by name, as validated arrays.

    dataset = load("mnist", data_dir="~/mnist")
    dataset.train.images                               # [E, H, W, C] uint8
    dataset.train.labels                               # [E] int32 in [0, K)

`digits` is embedded, `synthetic` and `random` are made. Any other name is looked for in
this order: IDX files in `data_dir`; the folder of Debian's package;
tensorflow-datasets, prepared in `data_dir` or in its usual folder, else downloaded.
"""

import dataclasses
import hashlib
import importlib.resources
import re

import numpy as np

from tfmirror import errors
from tfmirror.data import checksums, idx

# Classes of IDX data by name. Any other IDX data has one class more than its largest
# training label.
NUM_CLASSES_OF_IDX = {"mnist": 10, "fashion_mnist": 10, "kmnist": 10}

DIGITS_SCALE = 3  # 8x8 becomes 24x24, then 28x28 with a border, the size of MNIST
DIGITS_BORDER = 2
DIGITS_MAX_VALUE = 16
SYNTHETIC_SHAPE = (28, 28, 1)
SYNTHETIC_NUM_CLASSES = 10
SYNTHETIC_NUM_EXAMPLES = {"train": 4096, "eval": 1024}
RANDOM_NUM_EXAMPLES = {"train": 1024, "eval": 256}


@dataclasses.dataclass(frozen=True)
class Examples:
    """Images and the classes that they show, in one order."""

    images: np.ndarray  # [E, H, W, C] uint8
    labels: np.ndarray  # [E] int32 in [0, K)

    def __len__(self):
        return len(self.labels)


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A training and an evaluation set of images of one shape and K classes."""

    name: str
    source: str  # for people: where it was found
    num_classes: int  # K
    train: Examples
    eval: Examples


def load(name, data_dir="", limit_train_examples=0, limit_eval_examples=0):
    """Returns the ImageDataset `name`, cut to the first so many examples (0: all).

    Raises:
      InputError: it isn't found, can't be had, is damaged, isn't image classification,
        has fewer examples than a limit asks for, or needs no `data_dir`.
    """
    if not re.fullmatch(r"\w[\w/.-]*", name) or ".." in name:
        raise errors.InputError(
            f"dataset must be a name such as digits, mnist or cifar10: got {name!r}"
        )
    folder = errors.expand_path("data_dir", data_dir) if data_dir else None
    if folder and not folder.is_dir():
        raise errors.InputError(
            f"data_dir must be a folder that is there: got {str(folder)!r}"
        )
    dataset = check(_find(name, folder))
    return dataclasses.replace(
        dataset,
        train=_first(dataset.train, limit_train_examples, "limit_train_examples"),
        eval=_first(dataset.eval, limit_eval_examples, "limit_eval_examples"),
    )


def _find(name, folder):
    """Returns the dataset `name` from the first place that has it."""
    own = {"digits": load_digits, "synthetic": make_synthetic, "random": make_random}
    if name in own:
        if folder:
            raise errors.InputError(
                f"data_dir must not be given with dataset {name}, which needs no file: "
                f"got {str(folder)!r}; say with --dataset what is in it, or drop it"
            )
        return own[name]()
    for place in (folder, idx.DEBIAN_FOLDER / name.replace("_", "-")):
        if place and (files := idx.find_idx_files(place)):
            return load_idx(name, place, files)
    # Takes seconds to import, so only where it is needed.
    from tfmirror.data import tfds_source

    return from_splits(name, *tfds_source.load(name, folder))


def sha256(dataset):
    """Returns the SHA-256 (hex) of all images and labels of an ImageDataset."""
    digest = hashlib.sha256()
    for examples in (dataset.train, dataset.eval):
        for array in (examples.images, examples.labels):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def from_splits(name, source, num_classes, splits):
    """Returns an ImageDataset of {"train": (images, labels), "eval": ...} arrays."""
    examples = {
        split: Examples(images, labels.astype(np.int32))
        for split, (images, labels) in splits.items()
    }
    return ImageDataset(name, source, num_classes, **examples)


def load_digits():
    """Returns the embedded 1,797 UCI digits, 28x28, 1,438 for training and 359 not.

    Each pixel becomes a 3x3 square inside a border of 2, and 0 to 16 becomes 0 to 255.
    Origin and licence: digits.md beside this file.
    """
    path = importlib.resources.files("tfmirror.data") / "digits.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    square = np.ones((1, DIGITS_SCALE, DIGITS_SCALE), np.uint16)
    enlarged = np.kron(images.astype(np.uint16) * 255 // DIGITS_MAX_VALUE, square)
    border = (DIGITS_BORDER, DIGITS_BORDER)
    images = np.pad(enlarged.astype(np.uint8), ((0, 0), border, border))[
        ..., np.newaxis
    ]
    # The file repeats 0 to 9 in order, so a regular choice would leave out classes.
    # RandomState's stream is frozen by NumPy (NEP 19): the same split for ever.
    order = np.random.RandomState(0).permutation(len(labels))
    eval_order, train_order = np.split(order, [len(order) // 5])
    splits = {
        "train": (images[train_order], labels[train_order]),
        "eval": (images[eval_order], labels[eval_order]),
    }
    return from_splits("digits", "embedded", 10, splits)


def make_synthetic():
    """Returns images made of noise and of one fixed pattern for each class."""
    rng = np.random.RandomState(0)
    patterns = rng.randint(0, 128, (SYNTHETIC_NUM_CLASSES, *SYNTHETIC_SHAPE))
    splits = {}
    for split, num_examples in SYNTHETIC_NUM_EXAMPLES.items():
        labels = rng.randint(0, SYNTHETIC_NUM_CLASSES, num_examples)
        noise = rng.randint(0, 128, (num_examples, *SYNTHETIC_SHAPE))
        splits[split] = ((patterns[labels] + noise).astype(np.uint8), labels)
    return from_splits("synthetic", "made", SYNTHETIC_NUM_CLASSES, splits)


def make_random():
    """Returns images of nothing: each pixel is uniform in [0, 1), and so are labels."""
    rng = np.random.RandomState(0)
    splits = {
        split: (
            rng.randint(0, 255, (num_examples, *SYNTHETIC_SHAPE)).astype(np.uint8),
            rng.randint(0, SYNTHETIC_NUM_CLASSES, num_examples),
        )
        for split, num_examples in RANDOM_NUM_EXAMPLES.items()
    }
    return from_splits("random", "made", SYNTHETIC_NUM_CLASSES, splits)


def load_idx(name, folder, files):
    """Returns the dataset in the four IDX `files` that `idx.find_idx_files` found."""
    splits = {}
    for split in ("train", "eval"):
        paths = files[split, "images"], files[split, "labels"]
        images = idx.read_idx(paths[0], idx.NUM_DIMENSIONS["images"])
        labels = idx.read_idx(paths[1], idx.NUM_DIMENSIONS["labels"])
        if len(images) != len(labels):
            raise errors.InputError(
                f"{folder}: expected as many labels as images, got {len(labels):,} in "
                f"{paths[1].name} for {len(images):,} in {paths[0].name}; get both "
                "again"
            )
        checksums.check(name, split, {paths[0]: images, paths[1]: labels})
        splits[split] = images[..., np.newaxis], labels
    num_classes = NUM_CLASSES_OF_IDX.get(name, int(splits["train"][1].max()) + 1)
    return from_splits(name, f"IDX files in {folder}", num_classes, splits)


def check(dataset):
    """Returns `dataset` if its parts fit each other; raises InputError otherwise."""
    where = f"{dataset.name} ({dataset.source})"
    shapes = [part.images.shape[1:] for part in (dataset.train, dataset.eval)]
    if shapes[0] != shapes[1]:
        raise errors.InputError(
            f"{where}: expected images of one shape, got {list(shapes[0])} for "
            f"training and {list(shapes[1])} for evaluation"
        )
    for split in ("train", "eval"):
        labels = getattr(dataset, split).labels
        outside = np.flatnonzero((labels < 0) | (labels >= dataset.num_classes))
        if outside.size:
            position = int(outside[0])
            raise errors.InputError(
                f"{where}: expected labels in [0, {dataset.num_classes}), got "
                f"{labels[position]} at example {position} of the {split} set; is this "
                f"{dataset.name}?"
            )
    return dataset


def _first(examples, limit, name):
    """Returns the first `limit` examples, or all for 0."""
    if limit > len(examples):
        raise errors.InputError(
            f"{name} must be at most the {len(examples):,} examples there are (0: "
            f"all): got {limit}"
        )
    stop = limit or len(examples)
    return Examples(examples.images[:stop], examples.labels[:stop])
