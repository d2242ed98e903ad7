"""Loads image classification datasets by name, as validated arrays.

    dataset = load("mnist", data_dir="~/mnist")
    dataset.train.images                               # [E, H, W, C] uint8
    dataset.train.labels                               # [E] int32 in [0, K)

`digits` is embedded; `synthetic` and `random` are generated; `folder` is a folder with
a sub-folder of images for each class, in `data_dir`. Any other name is searched
for in this order: IDX files in `data_dir`; IDX files in the folder of Debian's package;
tensorflow-datasets, prepared in `data_dir` or in its default folder, or downloaded.
"""

import dataclasses
import hashlib
import importlib.resources
import pathlib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from tfmirror import errors, folder_settings
from tfmirror.data import checksums, idx_folder
from tfmirror.data.examples import Examples, ExampleSource
from tfmirror.data.image_folder import Options

DIGITS_SCALE = 3  # 8x8 becomes 24x24, and 28x28 with the border, as in MNIST
DIGITS_BORDER = 2
DIGITS_MAX_VALUE = 16
SYNTHETIC_SHAPE = (28, 28, 1)
SYNTHETIC_NUM_CLASSES = 10
SYNTHETIC_NUM_EXAMPLES = {"train": 4096, "eval": 1024}
RANDOM_NUM_EXAMPLES = {"train": 1024, "eval": 256}

# {"train": (images, labels), "eval": (images, labels)}
Splits = Mapping[str, tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A training and an evaluation set, with images of one shape and K classes."""

    name: str
    source: str  # where the data were found, as text for people
    num_classes: int  # K
    train: ExampleSource
    eval: ExampleSource
    class_names: tuple[str, ...] = ()  # of the classes 0, 1, ...; (): not known


def load(
    name: str,
    data_dir: str = "",
    *,
    limit_train_examples: int = 0,
    limit_eval_examples: int = 0,
    options: Options | None = None,
) -> ImageDataset:
    """Returns the dataset `name`, validated.

    Args:
      name: "digits", "synthetic", "random", "folder", or the name of IDX files or of a
        tensorflow-datasets dataset, such as "mnist" or "cifar10".
      data_dir: folder with IDX files, prepared tensorflow-datasets or a sub-folder for
        each class; it may begin with ~. Empty: only the default folders are searched.
      limit_train_examples: take only the first examples of the training set, up to this
        number; 0: all.
      limit_eval_examples: the same for the evaluation set.
      options: how image folders are read; None: the defaults.

    Raises:
      InputError: the dataset is unknown, can't be found or downloaded, is damaged or
        isn't image classification; it has fewer examples than a limit; or `data_dir` is
        given for a dataset that reads no files.
    """
    if not re.fullmatch(r"\w[\w/.-]*", name) or ".." in name:
        raise errors.InputError(
            f"dataset must be a name such as digits, mnist or cifar10: got {name!r}"
        )
    checksums.check_spelling(name)
    folder = errors.expand_path("data_dir", data_dir) if data_dir else None
    if folder and not folder.is_dir():
        raise errors.InputError(
            f"data_dir must be an existing folder: got {str(folder)!r}"
        )
    if name == folder_settings.FOLDER:
        limits = {"train": limit_train_examples, "eval": limit_eval_examples}
        return _load_folder(folder, options or Options(), limits)
    return limited(
        check(_find(name, folder)),
        limit_train_examples=limit_train_examples,
        limit_eval_examples=limit_eval_examples,
    )


def limited(
    dataset: ImageDataset, *, limit_train_examples: int, limit_eval_examples: int
) -> ImageDataset:
    """Returns `dataset` with the first examples only; see `load`.

    Raises:
      InputError: it has fewer examples than a limit.
    """
    return dataclasses.replace(
        dataset,
        train=_first(dataset.train, limit_train_examples, "limit_train_examples"),
        eval=_first(dataset.eval, limit_eval_examples, "limit_eval_examples"),
    )


def _load_folder(
    folder: pathlib.Path | None, options: Options, limits: Mapping[str, int]
) -> ImageDataset:
    """Returns the images of a folder with a sub-folder for each class."""
    from tfmirror.data import folder_source

    if not folder:
        raise errors.InputError(
            "dataset=folder needs data_dir: got none; give the folder that has a "
            "sub-folder for each class, or folders train and val with these"
        )
    source, names, train, evaluation = folder_source.load(folder, options, limits)
    return ImageDataset(
        folder_settings.FOLDER, source, len(names), train, evaluation, names
    )


def _find(name: str, folder: pathlib.Path | None) -> ImageDataset:
    """Returns the dataset `name`, unchecked, from the first place that has it."""
    builtin = {
        "digits": load_digits,
        "synthetic": make_synthetic,
        "random": make_random,
    }
    if name in builtin:
        if folder:
            raise errors.InputError(
                f"data_dir must not be given with dataset {name}, which reads no "
                f"files: got {str(folder)!r}; name the data in it with --dataset, or "
                "remove --data_dir"
            )
        return builtin[name]()
    for place in (folder, idx_folder.DEBIAN_FOLDER / name.replace("_", "-")):
        if place and (files := idx_folder.find(place, name)):
            source, num_classes, splits = idx_folder.read(name, place, files)
            return from_splits(name, splits, source=source, num_classes=num_classes)
    # This import takes seconds, so it is done only when it is needed.
    from tfmirror.data import tfds_source

    source, num_classes, splits = tfds_source.load(name, folder)
    return from_splits(name, splits, source=source, num_classes=num_classes)


def sha256(dataset: ImageDataset) -> str:
    """Returns the SHA-256 of all images and labels, as 64 hexadecimal digits.

    It covers shapes and dtypes, but neither the name nor the source.
    """
    digest = hashlib.sha256()
    for examples in (dataset.train, dataset.eval):
        examples.update_digest(digest)
    return digest.hexdigest()


def from_splits(
    name: str, splits: Splits, *, source: str, num_classes: int
) -> ImageDataset:
    """Returns an ImageDataset of arrays, not yet validated (see `check`).

    Args:
      name: of the dataset.
      splits: for "train" and for "eval", images [E, H, W, C] uint8 and labels [E] of
        any integer dtype in [0, K).
      source: where the data were found, as text for people.
      num_classes: K.
    """
    train, evaluation = (
        Examples(images, _as_int32(labels))
        for images, labels in (splits["train"], splits["eval"])
    )
    return ImageDataset(name, source, num_classes, train, evaluation)


def _as_int32(labels: np.ndarray) -> np.ndarray:
    """Returns labels as int32; raises InputError where that would change them."""
    converted = labels.astype(np.int32)
    if not np.array_equal(converted, labels):
        raise errors.InputError(
            f"labels must be whole numbers in [0, K): got {labels.dtype}, such as "
            f"{labels[converted != labels][0]}"
        )
    return converted


def load_digits() -> ImageDataset:
    """Returns the 1,797 embedded UCI digits: 1,438 for training, 359 for evaluation.

    Each 8x8 image becomes 28x28: every pixel becomes a square of 3x3, surrounded by a
    border of 2 zeros. Values in [0, 16] become [0, 255]. digits.md in this folder gives
    the origin and the licence.
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
    # The file repeats the digits 0 to 9 in order, so taking every fifth example would
    # leave out classes. NumPy has frozen RandomState's stream (NEP 19), so this split
    # never changes.
    order = np.random.RandomState(0).permutation(len(labels))
    eval_order, train_order = np.split(order, [len(order) // 5])
    splits = {
        "train": (images[train_order], labels[train_order]),
        "eval": (images[eval_order], labels[eval_order]),
    }
    return from_splits("digits", splits, source="embedded", num_classes=10)


def make_synthetic(
    shape: Sequence[int] = SYNTHETIC_SHAPE,
    num_examples_of: Mapping[str, int] = SYNTHETIC_NUM_EXAMPLES,
) -> ImageDataset:
    """Returns images of 10 classes, each a fixed pattern of its class plus noise.

    A model can learn them.

    Args:
      shape: (H, W, C).
      num_examples_of: number for training and for evaluation, by "train" and "eval".
    """
    rng = np.random.RandomState(0)
    patterns = rng.randint(0, 128, (SYNTHETIC_NUM_CLASSES, *shape))
    splits = {}
    for split, num_examples in num_examples_of.items():
        labels = rng.randint(0, SYNTHETIC_NUM_CLASSES, num_examples)
        noise = rng.randint(0, 128, (num_examples, *shape))
        splits[split] = ((patterns[labels] + noise).astype(np.uint8), labels)
    return from_splits(
        "synthetic", splits, source="made", num_classes=SYNTHETIC_NUM_CLASSES
    )


def make_random() -> ImageDataset:
    """Returns 28x28x1 images of noise, with random labels of 10 classes.

    Pixels are uniform in [0, 254]. There are 1,024 training examples and 256 evaluation
    examples. Nothing can be learned from them.
    """
    rng = np.random.RandomState(0)
    splits = {
        split: (
            rng.randint(0, 255, (num_examples, *SYNTHETIC_SHAPE)).astype(np.uint8),
            rng.randint(0, SYNTHETIC_NUM_CLASSES, num_examples),
        )
        for split, num_examples in RANDOM_NUM_EXAMPLES.items()
    }
    return from_splits(
        "random", splits, source="made", num_classes=SYNTHETIC_NUM_CLASSES
    )


def check(dataset: ImageDataset) -> ImageDataset:
    """Returns `dataset` itself, after checking that it is consistent.

    Raises:
      InputError: images or labels are not arrays as Examples describes them, images
        for training and evaluation differ in shape, or a label is outside [0, K).
    """
    where = f"{dataset.name} ({dataset.source})"
    for split, examples in (("train", dataset.train), ("eval", dataset.eval)):
        if isinstance(examples, Examples):
            _check_arrays(f"{where}, {split} set", examples)
    shapes = [examples.image_shape for examples in (dataset.train, dataset.eval)]
    if shapes[0] != shapes[1]:
        raise errors.InputError(
            f"{where}: expected images of one shape, got {list(shapes[0])} for "
            f"training and {list(shapes[1])} for evaluation"
        )
    for split, examples in (("train", dataset.train), ("eval", dataset.eval)):
        labels = examples.labels
        outside = np.flatnonzero((labels < 0) | (labels >= dataset.num_classes))
        if outside.size:
            position = int(outside[0])
            raise errors.InputError(
                f"{where}: expected labels in [0, {dataset.num_classes}), got "
                f"{labels[position]} at example {position} of the {split} set; check "
                f"that the data are those of {dataset.name}"
            )
    return dataset


def _check_arrays(where: str, examples: Examples) -> None:
    """Raises InputError unless there are images [E, H, W, C] uint8 and E labels."""
    images, labels = examples.images, examples.labels
    got = f"{images.dtype} of shape {list(images.shape)}"
    if images.ndim != 4 or not len(images) or images.dtype != np.uint8:
        advice = ""
        if images.dtype.kind == "f" and images.size and images.max() <= 1:
            advice = "; these are in [0, 1]: multiply by 255, round, and convert them"
        raise errors.InputError(
            f"{where}: expected images [E, H, W, C] uint8 in [0, 255], got {got}"
            f"{advice}"
        )
    if labels.shape != (len(images),) or labels.dtype != np.int32:
        raise errors.InputError(
            f"{where}: expected {len(images)} labels [E] int32, one for each image, "
            f"got {labels.dtype} of shape {list(labels.shape)}"
        )


def _first(examples: ExampleSource, limit: int, name: str) -> ExampleSource:
    """Returns the first `limit` examples, or all if it is 0.

    Raises:
      InputError: there are fewer examples than `limit`, the value of flag `name`.
    """
    if limit > len(examples):
        raise errors.InputError(
            f"{name} must be at most {len(examples):,}, the number of examples (0: "
            f"all): got {limit}"
        )
    return examples.first(limit or len(examples))
