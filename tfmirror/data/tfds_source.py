"""Image classification data from tensorflow-datasets, prepared or downloaded.

    source, num_classes, splits = load("cifar10")

Importing this module imports tensorflow-datasets, which takes seconds.
"""

import difflib
import json
import pathlib
import sys

import filelock
import numpy as np
import requests
import tensorflow as tf
import tensorflow_datasets as tfds

from tfmirror import errors
from tfmirror.data import idx

# tensorflow-datasets itself tries for minutes without a network (204 s for MNIST).
CONNECT_SECONDS = 3
DOWNLOAD_ERRORS = (
    tfds.download.DownloadError,
    tfds.download.download_manager.NonMatchingChecksumError,
    tfds.download.extractor.ExtractError,
    tfds.download.extractor.UnsafeArchiveError,
)
EVAL_SPLITS = ("test", "validation")  # the first that a dataset has


def load(name, folder=None):
    """Returns (source, number of classes, {"train" and "eval": (images, labels)}).

    Args:
      folder: where prepared data is, or is put; None for tensorflow-datasets' own.

    Raises:
      InputError: unknown name, not image classification, or not to be had.
    """
    builder = _builder(name, folder)
    _check_is_classification(name, builder.info)
    if not builder.is_prepared():
        builder = _download(name, folder, builder)
    found = [split for split in EVAL_SPLITS if split in builder.info.splits]
    if "train" not in builder.info.splits or not found:
        got = ", ".join(builder.info.splits)
        raise errors.InputError(
            f"dataset {name} must have a train and a test or validation split: got "
            f"{got}"
        )
    splits = {"train": _arrays(builder, "train"), "eval": _arrays(builder, found[0])}
    num_classes = builder.info.features["label"].num_classes
    return f"tensorflow-datasets in {builder.data_dir}", num_classes, splits


def _builder(name, folder):
    """Returns tensorflow-datasets' builder; an error names what is near."""
    prepared = pathlib.Path(folder or tfds.core.constants.DATA_DIR, name)
    try:
        return tfds.builder(name, data_dir=folder)
    # On damaged descriptions of prepared data, each of its parts raises its own.
    except Exception as error:
        if prepared.is_dir():
            raise _damaged(prepared, error) from error
        if not isinstance(error, tfds.core.DatasetNotFoundError | ValueError):
            raise
        known = ["digits", "synthetic", *tfds.list_builders()]
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise errors.InputError(
            "dataset must be digits, synthetic, the name of IDX files in --data_dir or "
            f"of an image classification set of tensorflow-datasets: got {name!r}{hint}"
        ) from error


def _check_is_classification(name, info):
    """Raises InputError unless examples are uint8 images of one shape with a class."""
    features = dict(info.features.items()) if hasattr(info.features, "items") else {}
    image, label = features.get("image"), features.get("label")
    is_image = isinstance(image, tfds.features.Image) and image.np_dtype == np.uint8
    if not is_image or not isinstance(label, tfds.features.ClassLabel):
        got = ", ".join(features)
        raise errors.InputError(
            f"dataset {name} must have 8-bit images 'image' and classes 'label': it "
            f"has {got}"
        )
    if None in image.shape:
        raise errors.InputError(
            f"dataset {name} must have images of one size: got {image.shape}"
        )


def _download(name, folder, builder):
    """Downloads and prepares the data, after a quick look whether that can work.

    Once, even if several processes want it at the same time: they wait for the first.
    Returns the builder of the prepared data.
    """
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        raise errors.InputError(
            f"dataset {name} can't be downloaded without you: prepare it as "
            "https://www.tensorflow.org/datasets/catalog tells, then call again"
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
            builder = _builder(name, folder)  # may be prepared by now
            if not builder.is_prepared():
                _prepare(name, builder)
    except (requests.RequestException, OSError, *DOWNLOAD_ERRORS) as error:
        raise _unreachable(name, f"download failed: {error}") from error
    return builder


def _prepare(name, builder):
    """Downloads and prepares the data, which are not there."""
    tfds.disable_progress_bar()  # it tears other output; one line says what goes on
    text = f"data: downloading {name} to {builder.data_dir}"
    print(text, file=sys.stderr, flush=True)  # not into what a command prints
    builder.download_and_prepare()


def _unreachable(name, why):
    """Returns the InputError that names every way to the data."""
    return errors.InputError(
        f"dataset {name} is not on this machine and can't be downloaded ({why}): give "
        "its IDX files with --data_dir=FOLDER, or install Debian's package of it to "
        f"{idx.DEBIAN_FOLDER / name.replace('_', '-')} where there is one, or let "
        "tensorflow-datasets prepare it where there is a network; --dataset=digits "
        "needs none of these"
    )


def _arrays(builder, split):
    """Returns (images, labels) of a split in the order in which it is stored.

    Raises:
      InputError: a file is damaged or gone.
    """
    try:
        dataset = builder.as_dataset(
            split=split,
            batch_size=-1,
            as_supervised=False,
            # One file after the other: the order can't depend on the machine.
            read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
        )
        images, labels = dataset["image"].numpy(), dataset["label"].numpy()
    except (tf.errors.OpError, OSError, ValueError) as error:
        raise _damaged(builder.data_dir, error) from error
    announced = builder.info.splits[split].num_examples
    if len(labels) != announced:
        why = f"{announced} examples announced for {split}, got {len(labels)}"
        raise _damaged(builder.data_dir, why)
    return images, labels


def _damaged(folder, error):
    """Returns the InputError of prepared data that can't be read: says which file."""
    files = sorted(p for p in pathlib.Path(folder).rglob("*") if p.is_file())
    found = next((file for file in files if not _is_whole(file)), folder)
    # Without the name of the operation, which TensorFlow puts first.
    why = " ".join(str(error).split()).rpartition("}} ")[-1][:200]
    return errors.InputError(
        f"{found}: damaged ({why}); remove {folder}, and let tensorflow-datasets "
        "prepare it again"
    )


def _is_whole(file):
    """Returns whether a file of prepared data can be read, as far as can be told."""
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
