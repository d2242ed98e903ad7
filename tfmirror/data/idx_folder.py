"""Finds the four IDX files of a dataset in a folder, and reads them.

files = find("folder", "emnist/letters")            # None: the folder has none
found = read("emnist/letters", "folder", files)
found.splits["train"]                               # images, labels
"""

import os
import pathlib
import re
import typing
from collections.abc import Mapping

import numpy as np

from tfmirror import errors
from tfmirror.data import checksums, idx

# Debian's package dataset-fashion-mnist installs into a subfolder of this one.
DEBIAN_FOLDER = pathlib.Path("/usr/share/datasets")

# (split, kind) -> the file's name before "-idx3-ubyte" or "-idx1-ubyte".
STEMS = {
    ("train", "images"): "train-images",
    ("train", "labels"): "train-labels",
    ("eval", "images"): "t10k-images",
    ("eval", "labels"): "t10k-labels",
}
NUM_DIMENSIONS = {"images": 3, "labels": 1}
NAMES = tuple(
    f"{stem}-idx{NUM_DIMENSIONS[key[1]]}-ubyte" for key, stem in STEMS.items()
)
PATTERN = re.compile(
    r"(?:(.+)-)?(train|t10k|test)-(?:(images)[-.]idx3|(labels)[-.]idx1)-ubyte(\.gz)?",
    re.IGNORECASE,
)

# Number of classes by name. For other data it is the largest training label plus one.
NUM_CLASSES = {"mnist": 10, "fashion_mnist": 10, "kmnist": 10}

Files = Mapping[tuple[str, str], pathlib.Path]


class Found(typing.NamedTuple):
    """What `read` found."""

    source: str  # where the data are and what they are known as, as text for people
    num_classes: int  # K
    # For "train" and "eval": images [E, H, W, 1] and labels [E], uint8
    splits: dict[str, tuple[np.ndarray, np.ndarray]]


def find(folder: str | os.PathLike, name: str) -> Files | None:
    """Returns the paths of the four IDX files of a dataset; None: there is none.

    They are called as in `NAMES`, with or without .gz, in upper or lower case, also
    with ".idx" for "-idx" and "test" for "t10k". The dataset's name may stand before,
    as in emnist-letters-train-images-idx3-ubyte.gz for emnist/letters. Of a file that
    is there packed and unpacked, the unpacked one is taken.

    Returns:
      {(split, kind): path} with the keys of `STEMS`: split is "train" or "eval", kind
      is "images" or "labels".

    Raises:
      InputError: the folder has some of the four files but not all, or only files with
        the names of other datasets.
    """
    groups = _group(pathlib.Path(folder))
    prefix = re.sub(r"[/_]", "-", name.lower())
    found = groups.get(prefix) or groups.get("")
    if not groups:
        return None
    if not found:
        raise errors.InputError(
            f"{folder} has no IDX files of {name}, but those of {', '.join(groups)}; "
            "name one of these with --dataset, as emnist/letters for emnist-letters"
        )
    missing = [key for key in STEMS if key not in found]
    if missing:
        present = ", ".join(sorted(path.name for path in found.values()))
        wanted = dict(zip(STEMS, NAMES, strict=True))[missing[0]]
        raise errors.InputError(
            f"{folder}: expected all four IDX files, but {wanted}.gz is missing (found "
            f"{present}); add it"
        )
    return {key: found[key] for key in STEMS}


def _group(folder: pathlib.Path) -> dict[str, dict[tuple[str, str], pathlib.Path]]:
    """Returns the IDX files in a folder, by what stands before their names."""
    matches = [
        (match, path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := PATTERN.fullmatch(path.name)) and path.is_file()
    ]
    groups: dict[str, dict[tuple[str, str], pathlib.Path]] = {}
    for match, path in sorted(matches, key=lambda m: (m[0][5] is not None, m[1])):
        split = "train" if match[2].lower() == "train" else "eval"
        group = groups.setdefault((match[1] or "").lower(), {})
        group.setdefault((split, (match[3] or match[4]).lower()), path)
    return groups


def read(name: str, folder: pathlib.Path, files: Files) -> Found:
    """Returns the data in four IDX files.

    Args:
      name: of the dataset; for some names the content is verified: `checksums.check`.
      folder: where the files are, for the source and for errors.
      files: {(split, kind): path}, as `find` returns it.

    Raises:
      InputError: a file can't be read or is damaged, numbers of images and labels
        differ, or the files are known to hold another dataset.
    """
    arrays = {
        key: (path, idx.read_idx(path, NUM_DIMENSIONS[key[1]]))
        for key, path in files.items()
    }
    splits = {}
    for split in ("train", "eval"):
        (image_file, images), (label_file, labels) = (
            arrays[split, kind] for kind in NUM_DIMENSIONS
        )
        if len(images) != len(labels):
            raise errors.InputError(
                f"{folder}: expected equally many labels and images, got "
                f"{len(labels):,} in {label_file.name} for {len(images):,} in "
                f"{image_file.name}; replace both files with good copies"
            )
        splits[split] = images[..., np.newaxis], labels
    known_as = checksums.check(name, arrays)
    source = f"IDX files in {folder}" + (f", {known_as}" if known_as else "")
    num_classes = NUM_CLASSES.get(name, int(splits["train"][1].max()) + 1)
    return Found(source, num_classes, splits)
