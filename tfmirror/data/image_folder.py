"""Finds the images of a folder with a sub-folder for each class.

    found = find("pictures", Options(image_size=(64, 64)))
    found.class_names                                   # ("cat", "dog")
    found.splits["train"].paths[0], found.splits["train"].labels[0]

    pictures/train/cat/1.jpg      or, with eval_fraction,      pictures/cat/1.jpg
    pictures/val/dog/2.png                                     pictures/dog/2.png

The examples are in the order of a hash of their paths within the split's folder. So the
first of them are of all classes, and a file that is added moves none to another split.
"""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tfmirror import errors

ENDINGS = (
    ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp",
)  # fmt: skip
TRAIN_FOLDER = "train"
EVAL_FOLDERS = ("val", "test")  # in order of preference
MOST_NAMES = 5  # that a message lists


@dataclasses.dataclass(frozen=True)
class Options:
    """How a folder is read."""

    image_size: tuple[int, ...] = ()  # (H, W) to resize to; (): all must have one size
    channels: int = 3  # 1: grey, 3: RGB
    eval_fraction: float = 0.0  # of the images, if there are no folders of splits
    in_memory: str = "auto"  # "auto", "yes" or "no"
    # Of the model that is evaluated, in its order: only the images for evaluation are
    # read, and their classes may be a part of these. (): all images are read.
    class_names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """E image files and their labels, in the order of the examples."""

    folder: pathlib.Path
    paths: tuple[str, ...]  # within `folder`
    hashes: np.ndarray  # [E] uint64, of the paths; ascending
    labels: np.ndarray  # [E] int32 in [0, K)

    def __len__(self) -> int:
        """Returns E, the number of files."""
        return len(self.paths)

    def path(self, index: int) -> str:
        """Returns the path of a file, to open it."""
        return f"{self.folder}/{self.paths[index]}"

    def chosen(self, indices: np.ndarray | slice) -> "ImageFiles":
        """Returns some of the files, in the order of `indices`."""
        numbers = np.arange(len(self))[indices]
        paths = tuple(self.paths[k] for k in numbers)
        return ImageFiles(
            self.folder, paths, self.hashes[numbers], self.labels[numbers]
        )


@dataclasses.dataclass(frozen=True)
class Found:
    """What `find` found."""

    class_names: tuple[str, ...]  # [K]
    splits: dict[str, ImageFiles]  # "train" and "eval"
    num_passed_over: int  # files that are no images by their names


def find(folder: pathlib.Path, options: Options) -> Found:
    """Returns the image files in a folder, and the names of its classes.

    Names that begin with a dot are left out, and so are files without an ending of
    `ENDINGS` in upper or lower case. Images may stand in sub-folders of their class.
    Links to files and folders are followed.

    Raises:
      InputError: the folder has no classes, a class without images, images without a
        class, a class of one split alone, or a link to a folder that it is in; or the
        options do not fit.
    """
    evaluated = options.class_names
    train, evaluation = folder / TRAIN_FOLDER, _eval_folder(folder)
    if not train.is_dir() and not (evaluated and evaluation):
        if evaluation:
            raise errors.InputError(
                f"{folder} has a folder {evaluation.name}, but no folder train: add it"
            )
        return _find_undivided(folder, options)
    if options.eval_fraction:
        raise errors.InputError(
            f"eval_fraction must be 0 for a folder that has its own folder train or "
            f"{' or '.join(EVAL_FOLDERS)}: got {options.eval_fraction:g} for {folder}"
        )
    if not evaluation:
        raise errors.InputError(
            f"{folder} has a folder train, but no folder {' or '.join(EVAL_FOLDERS)}: "
            f"add one, or give --data_dir='{train}' with --eval_fraction=0.1"
        )
    folders = (
        {"eval": evaluation} if evaluated else {"train": train, "eval": evaluation}
    )
    trees = {split: _read_classes(place) for split, place in folders.items()}
    names = evaluated or trees["train"].class_names
    _check_same_classes(folders, trees, names, is_part_allowed=bool(evaluated))
    splits = {split: _files(tree, names) for split, tree in trees.items()}
    return _found(names, splits, trees.values())


def _eval_folder(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder of the images for evaluation; None: there is none."""
    places = (folder / name for name in EVAL_FOLDERS)
    return next((place for place in places if place.is_dir()), None)


def _find_undivided(folder: pathlib.Path, options: Options) -> Found:
    """Returns the files of a folder whose sub-folders are the classes."""
    fraction, evaluated = options.eval_fraction, options.class_names
    tree = _read_classes(folder)
    if not fraction and not evaluated:
        raise errors.InputError(
            f"{folder} has classes, but no folders train and val: add these, or choose "
            "a part of the images for evaluation, as with --eval_fraction=0.1"
        )
    names = evaluated or tree.class_names
    _check_same_classes({"eval": folder}, {"eval": tree}, names, is_part_allowed=True)
    files = _files(tree, names)
    is_eval = files.hashes.astype(np.float64) / 2**64 < (fraction or 2)
    splits = {"train": files.chosen(~is_eval), "eval": files.chosen(is_eval)}
    if not evaluated:
        counts = np.bincount(splits["train"].labels, minlength=len(names))
        if not counts.all():
            lacking = _listed(np.array(names)[counts == 0].tolist())
            raise errors.InputError(
                f"eval_fraction must leave a training image of each class: got "
                f"{fraction:g}, which leaves none of {lacking}"
            )
    return _found(names, splits, [tree])


def _found(
    names: tuple[str, ...], splits: dict[str, ImageFiles], trees: "Iterable[_Tree]"
) -> Found:
    """Returns a Found with both splits, of which "train" may be empty."""
    if not len(splits["eval"]):
        raise errors.InputError(
            "eval_fraction must be larger, so that images are left for evaluation: got "
            "too few images for it"
        )
    splits = {"train": splits["eval"].chosen(slice(0))} | splits
    return Found(names, splits, sum(tree.num_passed_over for tree in trees))


@dataclasses.dataclass(frozen=True)
class _Tree:
    """The classes in a folder, and the images in each of them."""

    folder: pathlib.Path
    paths: dict[str, list[str]]  # class -> paths of its images, from `folder` on
    num_passed_over: int

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, sorted."""
        return tuple(self.paths)


def _read_classes(folder: pathlib.Path) -> _Tree:
    """Returns the classes in a folder.

    Raises:
      InputError: there are fewer than two, a name can't be shown, a class has no image,
        or an image no class.
    """
    paths: dict[str, list[str]] = {}
    num_passed_over = 0
    for entry in sorted(_visible(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            if not entry.name.isprintable():
                raise errors.InputError(
                    f"{folder}: a class must have a name in UTF-8 that can be printed: "
                    f"got {entry.name!r}; rename the folder"
                )
            files = list(_walk(entry.path, ()))
            paths[entry.name] = [
                os.path.relpath(path, folder) for path in files if _is_image(path)
            ]
            num_passed_over += len(files) - len(paths[entry.name])
        elif _is_image(entry.name):
            raise errors.InputError(
                f"{folder} must hold a sub-folder for each class, and images only in "
                f"these: got {entry.name} in none; move it, or check --data_dir"
            )
        else:
            num_passed_over += 1
    if len(paths) < 2:
        got = _listed(list(paths)) or "none"
        raise errors.InputError(
            f"{folder} must hold a sub-folder for each class, at least two: got {got}"
        )
    if empty := [name for name, files in paths.items() if not files]:
        raise errors.InputError(
            f"{folder}: each class must have an image ({', '.join(ENDINGS)}): got none "
            f"in {_listed(empty)}; add images, or remove the sub-folder"
        )
    return _Tree(folder, paths, num_passed_over)


def _visible(folder: str | pathlib.Path) -> list[os.DirEntry[str]]:
    """Returns what is in a folder and not hidden.

    Raises:
      InputError: the folder can't be read.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise errors.InputError(f"{folder} can't be read: {error.strerror}") from error


def _walk(folder: str, parents: tuple[str, ...]) -> Iterator[str]:
    """Yields the paths of all files below a folder.

    Args:
      parents: real paths of the folders that it was reached through.

    Raises:
      InputError: a link leads back to one of them.
    """
    real = os.path.realpath(folder)
    if real in parents:
        raise errors.InputError(
            f"{folder} is a link to a folder that it is in itself; remove it"
        )
    for entry in _visible(folder):
        if entry.is_dir():
            yield from _walk(entry.path, (*parents, real))
        else:
            yield entry.path


def _is_image(path: str) -> bool:
    """Returns whether a file is an image by the ending of its name."""
    return path.lower().endswith(ENDINGS)


def _check_same_classes(
    folders: dict[str, pathlib.Path],
    trees: dict[str, _Tree],
    names: Sequence[str],
    *,
    is_part_allowed: bool,
) -> None:
    """Raises InputError if the images for evaluation have other classes than `names`.

    Args:
      is_part_allowed: whether some classes may have no images for evaluation.
    """
    found = trees["eval"].class_names
    unknown = [name for name in found if name not in set(names)]
    missing = [name for name in names if name not in set(found)]
    if is_part_allowed:
        missing = []
    parts = [("unknown", unknown), ("missing", missing)]
    if listed := "; ".join(f"{what}: {_listed(few)}" for what, few in parts if few):
        raise errors.InputError(
            f"{folders['eval']} must have the {len(names)} classes of the training "
            f"images: got {len(found)}, {listed}; rename, add or remove sub-folders"
        )


def _files(tree: _Tree, names: Sequence[str]) -> ImageFiles:
    """Returns the files of a tree, in the order of the examples."""
    numbers = {name: number for number, name in enumerate(names)}
    rows = sorted(
        (path_hash(path), path, numbers[name])
        for name, paths in tree.paths.items()
        for path in paths
    )
    return ImageFiles(
        tree.folder,
        tuple(path for _, path, _ in rows),
        np.array([key for key, _, _ in rows], np.uint64),
        np.array([label for _, _, label in rows], np.int32),
    )


def path_hash(path: str) -> int:
    """Returns the 64 bits that decide an example's place in the order."""
    return int.from_bytes(hashlib.blake2b(os.fsencode(path), digest_size=8).digest())


def _listed(names: Sequence[str]) -> str:
    """Returns names for a message: the first few, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
