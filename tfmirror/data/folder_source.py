"""Loads the images of a folder with a sub-folder for each class.

loaded = load(pathlib.Path("pictures"), Options(image_size=(64, 64)))
loaded.class_names, loaded.train, loaded.eval
"""

import itertools
import math
import pathlib
import typing
from collections.abc import Mapping

import numpy as np

from tfmirror import errors, files, hardware
from tfmirror.data import conversion, image_folder, image_reading
from tfmirror.data.examples import Examples, ExampleSource
from tfmirror.data.image_folder import ImageFiles, Options
from tfmirror.data.streaming import StreamedExamples

# Images and their copy in TensorFlow's memory are there together for a moment.
MEMORY_SHARE = 0.5


class Loaded(typing.NamedTuple):
    """What `load` found."""

    source: str  # where the data are and how they are held, as text for people
    class_names: tuple[str, ...]  # [K]
    train: ExampleSource
    eval: ExampleSource


def load(
    folder: pathlib.Path, options: Options, limits: Mapping[str, int] | None = None
) -> Loaded:
    """Returns the images of a folder, all of which can be read.

    Args:
      limits: {"train": number, "eval": number} of the first examples to take; 0: all.

    Raises:
      InputError: the folder's form is wrong; images can't be read, all of which are
        named; there are too few; or they are too many for the memory that is asked for.
    """
    found = image_folder.find(folder, options)
    splits = {
        split: _first(images, (limits or {}).get(split, 0), split)
        for split, images in found.splits.items()
    }
    shape = _shape(splits, options)
    num_bytes = math.prod(shape) * sum(map(len, splits.values()))
    is_kept = _fits_in_memory(num_bytes, options.in_memory)
    is_resized = bool(options.image_size)
    read = {
        split: image_reading.read_all(
            images, shape, is_resized=is_resized, is_kept=is_kept
        )
        for split, images in splits.items()
    }
    _check_readable(read, shape, sum(map(len, splits.values())))
    train, evaluation = (
        _examples(splits[split], shape, read[split]) for split in ("train", "eval")
    )
    how = "in memory" if is_kept else "read from their files when they are needed"
    height, width, channels = shape
    source = (
        f"image folder {folder}, {num_bytes / 2**20:,.0f} MiB as {height}x{width}x"
        f"{channels}, {how}"
    )
    if found.num_passed_over:
        source += f"; {found.num_passed_over:,} other files are passed over"
    return Loaded(source, found.class_names, train, evaluation)


def _first(images: ImageFiles, limit: int, split: str) -> ImageFiles:
    """Returns the first `limit` files, or all if it is 0."""
    errors.require(
        limit <= len(images),
        f"limit_{split}_examples",
        limit,
        f"at most {len(images):,}, the number of examples (0: all)",
    )
    return images.chosen(slice(limit)) if limit else images


def _shape(splits: Mapping[str, ImageFiles], options: Options) -> tuple[int, int, int]:
    """Returns (H, W, C) of the images to train on.

    Without an image size it is the size of the first image that can be read.
    """
    if options.image_size:
        height, width = options.image_size
        return height, width, options.channels
    paths = (images.path(k) for images in splits.values() for k in range(len(images)))
    with conversion.quiet_pillow():
        for path in paths:
            try:
                return conversion.read(path, (0, 0, options.channels)).shape
            except conversion.UnreadableError:
                continue  # named later, with all others
    return 1, 1, options.channels


def _fits_in_memory(num_bytes: int, wanted: str) -> bool:
    """Returns whether the images are to be held in memory.

    Raises:
      InputError: they must, and the machine has less memory than they take.
    """
    if wanted != "auto":
        is_met = wanted == "no" or num_bytes <= files.memory_bytes()
        expected = (
            f"auto or no for images of {num_bytes / 2**30:,.1f} GiB on a machine of "
            f"{files.memory_bytes() / 2**30:,.1f} GiB"
        )
        errors.require(is_met, "data_in_memory", wanted, expected)
        return wanted == "yes"
    return num_bytes <= MEMORY_SHARE * hardware.available_memory()


def _check_readable(
    read: Mapping[str, image_reading.Read], shape: tuple[int, int, int], number: int
) -> None:
    """Raises InputError, which names all images that can't be read."""
    problems = dict(itertools.chain(*(r.problems.items() for r in read.values())))
    sizes = dict(itertools.chain(*(r.other_sizes.items() for r in read.values())))
    if problems:
        listed = "; ".join(f"{path} ({why})" for path, why in problems.items())
        raise errors.InputError(
            f"{len(problems):,} of {number:,} images can't be read: {listed}; repair "
            "or remove them"
        )
    if sizes:
        path, size = next(iter(sizes.items()))
        raise errors.InputError(
            f"image_size is needed to resize images of several sizes: got "
            f"{len(sizes):,} of {number:,} images that are not {shape[0]}x{shape[1]}, "
            f"such as {path} ({size}); give it, as --image_size={shape[0]}x{shape[1]}"
        )


def _examples(
    images: ImageFiles, shape: tuple[int, int, int], read: image_reading.Read
) -> ExampleSource:
    """Returns the examples of a split, in memory or not."""
    if read.images is None:
        return StreamedExamples(images, shape, read.digests)
    return Examples(read.images, np.array(images.labels), read.digests)
