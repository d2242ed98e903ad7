"""Loads image classification data from tensorflow-datasets, prepared or downloaded.

    source, num_classes, splits = load("cifar10")

Importing this module imports tensorflow-datasets, which takes seconds.
"""

import difflib
import json
import math
import os
import pathlib
import sys
import typing
from collections.abc import Iterator

import filelock
import numpy as np
import requests
import tensorflow as tf
import tensorflow_datasets as tfds

from tfmirror import errors, files
from tfmirror.data import checksums, idx_folder, tfds_files

# Without a network, tensorflow-datasets itself retries for minutes (204 s for MNIST).
CONNECT_SECONDS = 3
DOWNLOAD_ERRORS = (
    tfds.download.DownloadError,
    tfds.download.download_manager.NonMatchingChecksumError,
    tfds.download.extractor.ExtractError,
    tfds.download.extractor.UnsafeArchiveError,
)
BATCH_SIZE = 256  # images that are decoded at a time
EVAL_SPLITS = ("test", "validation")  # in order of preference


class Loaded(typing.NamedTuple):
    """What `load` found."""

    source: str  # where the data are, as text for people
    num_classes: int  # K
    # For "train" and "eval": images [E, H, W, C] uint8, labels [E] int64 in [0, K)
    splits: dict[str, tuple[np.ndarray, np.ndarray]]


def load(name: str, folder: pathlib.Path | None = None) -> Loaded:
    """Returns the images and labels of a dataset, in the order in which it is stored.

    Downloads and prepares the data if they aren't prepared yet. "eval" is the dataset's
    test split, or its validation split if it has no test split.

    Args:
      name: of the dataset in tensorflow-datasets, such as "cifar10".
      folder: folder of prepared datasets, where new ones are put as well; None: the
        default folder of tensorflow-datasets.

    Raises:
      InputError: the name is unknown, the dataset isn't image classification with 8-bit
        images of one size, lacks a split, is damaged, or can't be downloaded.
    """
    builder = _builder(name, folder)
    _check_is_classification(name, builder.info)
    if not builder.is_prepared():
        builder = _download(name, folder, builder)
    found = [split for split in EVAL_SPLITS if split in builder.info.splits]
    if "train" not in builder.info.splits or not found:
        got = ", ".join(builder.info.splits)
        raise errors.InputError(
            f"dataset {name} must have a train split and a test or validation split: "
            f"got {got}; use another dataset"
        )
    splits = {"train": _arrays(builder, "train"), "eval": _arrays(builder, found[0])}
    num_classes = builder.info.features["label"].num_classes
    folder = pathlib.Path(builder.data_dir)
    known_as = checksums.check_images(name, folder, splits)
    source = f"tensorflow-datasets in {folder}" + (f", {known_as}" if known_as else "")
    return Loaded(source, num_classes, splits)


def _builder(name: str, folder: pathlib.Path | None) -> tfds.core.DatasetBuilder:
    """Returns the builder of a dataset.

    Raises:
      InputError: the name is unknown (the message suggests similar ones), or the
        description of prepared data is damaged.
    """
    prepared = pathlib.Path(folder or tfds.core.constants.DATA_DIR, name)
    tfds_files.check_folder(prepared)
    try:
        return tfds.builder(name, data_dir=folder)
    # A damaged description of prepared data can raise almost any exception.
    except Exception as error:
        if prepared.is_dir():
            raise _damaged(prepared, error) from error
        if not isinstance(error, tfds.core.DatasetNotFoundError | ValueError):
            raise
        known = ["digits", "synthetic", *tfds.list_builders()]
        # Only a misspelled name: names that are less alike are of other data.
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.8)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise errors.InputError(
            "dataset must be digits, synthetic, the name of IDX files in --data_dir "
            f"({', '.join(idx_folder.NAMES)}, or with .gz) or of an image "
            f"classification dataset of tensorflow-datasets: got {name!r}{hint}"
        ) from error


def _check_is_classification(name: str, info: tfds.core.DatasetInfo) -> None:
    """Raises InputError unless examples are uint8 images of one shape with a label."""
    features = dict(info.features.items()) if hasattr(info.features, "items") else {}
    image, label = features.get("image"), features.get("label")
    is_labelled = isinstance(label, tfds.features.ClassLabel)
    is_image = isinstance(image, tfds.features.Image) and image.np_dtype == np.uint8
    if image is None or not is_image or not is_labelled:
        got = ", ".join(features)
        raise errors.InputError(
            f"dataset {name} must have 8-bit images 'image' and classes 'label': got "
            f"{got}; use another dataset"
        )
    if None in image.shape:
        raise errors.InputError(
            f"dataset {name} must have images of one size: got {image.shape}; use "
            "another dataset"
        )


def _download(
    name: str, folder: pathlib.Path | None, builder: tfds.core.DatasetBuilder
) -> tfds.core.DatasetBuilder:
    """Downloads and prepares the data; returns the builder of the prepared data.

    Tests the connection first, so that a missing network is reported within seconds. If
    several processes call this at the same time, one downloads and the others wait.

    Raises:
      InputError: the data must be prepared by hand, or the download fails.
    """
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        raise errors.InputError(
            f"dataset {name} can't be downloaded automatically: prepare it as "
            "https://www.tensorflow.org/datasets/catalog describes, then run this again"
        )
    for url in list(builder.url_infos or ())[:1]:
        try:
            requests.head(url, timeout=CONNECT_SECONDS, allow_redirects=True)
        except requests.RequestException as error:
            raise _unreachable(name, f"no connection to {url.split('/')[2]}") from error
    lock = builder.data_path.with_name(f".{builder.data_path.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock):
            builder = _builder(name, folder)  # another process may have prepared it
            if not builder.is_prepared():
                _prepare(name, builder)
    except (requests.RequestException, OSError, *DOWNLOAD_ERRORS) as error:
        raise _unreachable(name, f"download failed: {error}") from error
    return builder


def _prepare(name: str, builder: tfds.core.DatasetBuilder) -> None:
    """Downloads and prepares the data, and says so on standard error."""
    tfds.disable_progress_bar()  # it would garble other output
    text = f"data: downloading {name} to {builder.data_dir}"
    print(text, file=sys.stderr, flush=True)  # standard output is for results
    builder.download_and_prepare()


def _unreachable(name: str, why: str) -> errors.InputError:
    """Returns the InputError that names every way to get the data.

    Args:
      name: of the dataset.
      why: the reason why the download failed.
    """
    return errors.InputError(
        f"dataset {name} is not on this machine and can't be downloaded ({why}): give "
        f"its IDX files ({', '.join(idx_folder.NAMES)}, or with .gz) with "
        "--data_dir=FOLDER, or install its Debian package, if one "
        f"exists, to {idx_folder.DEBIAN_FOLDER / name.replace('_', '-')}, or let "
        "tensorflow-datasets prepare it on a machine with a network; "
        "--dataset=digits needs none of these"
    )


def _arrays(
    builder: tfds.core.DatasetBuilder, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images and labels of a split, in the order in which it is stored.

    Images are [E, H, W, C] uint8 and labels [E] int64.

    Raises:
      InputError: a file is damaged or missing.
    """
    announced = builder.info.splits[split].num_examples
    shape = builder.info.features["image"].shape
    if announced * math.prod(shape) > files.memory_bytes():
        raise errors.InputError(
            f"dataset {builder.info.name} must fit into memory: got {announced:,} "
            f"{split} images of shape {list(shape)}; use another dataset"
        )
    # The system gives memory only for what has been filled.
    images, labels = np.empty((announced, *shape), np.uint8), np.empty(announced, int)
    num_read = 0
    try:
        for image, label in _batches(builder, split):
            end = num_read + len(label)
            if end > announced:
                num_read = end
                break
            images[num_read:end], labels[num_read:end] = image, label
            num_read = end
    except (tf.errors.OpError, OSError, ValueError) as error:
        raise _damaged(builder.data_dir, error) from error
    if num_read != announced:
        more = " or more" if num_read > announced else ""
        problem = f"expected {announced} examples in {split}, got {num_read}{more}"
        raise _damaged(builder.data_dir, problem)
    return images, labels


def _batches(
    builder: tfds.core.DatasetBuilder, split: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields images [b, H, W, C] uint8 and labels [b] int64 of a split, in order.

    An image is decoded only if its head has the size of all images: a small file can
    unfold to any number of pixels.
    """
    feature = builder.info.features["image"]
    height, width, _ = feature.shape

    def decode(example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        encoded = tfds_files.check_encoded(example["image"], height, width)
        image = tf.ensure_shape(feature.decode_example(encoded), feature.shape)
        return image, example["label"]

    dataset = builder.as_dataset(
        split=split,
        as_supervised=False,
        decoders={"image": tfds.decode.SkipDecoding()},
        # Read the files one after the other, so that the order is always the same.
        read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
    )
    batches = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH_SIZE)
    yield from batches.as_numpy_iterator()


def _damaged(folder: str | os.PathLike, problem: Exception | str) -> errors.InputError:
    """Returns the InputError for prepared data that can't be read.

    It names the first damaged file, or the folder if no single file is to blame.
    """
    files = sorted(p for p in pathlib.Path(folder).rglob("*") if p.is_file())
    found = next((file for file in files if not _is_whole(file)), folder)
    # TensorFlow's messages begin with the name of the operation, which is cut off.
    reason = " ".join(str(problem).split()).rpartition("}} ")[-1][:200]
    return errors.InputError(
        f"{found}: damaged ({reason}); remove {folder} and let tensorflow-datasets "
        "prepare it again"
    )


def _is_whole(file: pathlib.Path) -> bool:
    """Returns whether a file of prepared data has no recognisable damage."""
    try:
        if not file.stat().st_size:
            return False
        if file.suffix == ".json":
            json.loads(file.read_bytes())
        elif ".tfrecord" in file.name:
            for _ in tf.data.TFRecordDataset(str(file)):  # each record has a checksum
                pass
    except (ValueError, OSError, tf.errors.OpError):
        return False
    return True
