"""Reads weights from files of Keras, which may be damaged or hostile.

model = load_model(path)            # a .keras file, without running code of its own
saved = read_weights(path)          # a .weights.h5 file: arrays by layer

Sizes are checked before memory is taken.
"""

import collections
import json
import math
import pathlib
import zipfile

import h5py
import keras
import numpy as np

from tfmirror import archives, files
from tfmirror.models import keras_defaults
from tfmirror.models.layer_weights import SavedWeights
from tfmirror.models.variable_shapes import variable_shapes

KERAS_CONFIG, KERAS_WEIGHTS = "config.json", "model.weights.h5"  # in a .keras file
MAX_UNSAVED_VALUES = 1000  # such as the seeds of dropout layers

VARIABLES = "vars"  # group of a layer's own variables in a file of weights
OPTIMIZER = "optimizer"  # group beside the layers', if the model was compiled


class UnusableFileError(Exception):
    """A file can't be used; the message says why in one line."""


@keras_defaults.scope()
def load_model(file: pathlib.Path) -> keras.Model:
    """Returns the model in a `.keras` file; refuses one that holds code (safe mode).

    Raises:
      UnusableFileError: it can't be loaded.
    """
    try:
        size = files.check_size(file, files.memory_bytes())
        with zipfile.ZipFile(file) as archive:
            archives.check_stored(archive, size)
            if broken := archive.testzip():
                raise zipfile.BadZipFile(f"bad checksum of {broken}")
            _check_variables(archive)
        return keras.models.load_model(file, compile=False, safe_mode=True)
    # Keras, HDF5 and zipfile raise many kinds of errors for damaged and hostile files.
    except Exception as error:
        raise _unusable(error) from error


@keras_defaults.scope()
def load_weights(file: pathlib.Path, model: keras.Model) -> None:
    """Gives a model the weights in the `.keras` file of such a model.

    Raises:
      UnusableFileError: they can't be loaded, or are those of another model.
    """
    try:
        size = files.check_size(file, files.memory_bytes())
        with zipfile.ZipFile(file) as archive:
            archives.check_stored(archive, size)
            if broken := archive.testzip():
                raise zipfile.BadZipFile(f"bad checksum of {broken}")
            size = archive.getinfo(KERAS_WEIGHTS).file_size
            with archive.open(KERAS_WEIGHTS) as inner, h5py.File(inner, "r") as weights:
                _count_values(weights, size)
        model.load_weights(file)
    except Exception as error:
        raise _unusable(error) from error


def read_weights(file: pathlib.Path) -> SavedWeights:
    """Returns the SavedWeights in a `.weights.h5` file; it has no names of variables.

    The file is what `Model.save_weights` of Keras 3 writes (3.15.1): the layers' arrays
    by number, in groups that have the layers' names as attributes.

    Raises:
      UnusableFileError: it is something else, or damaged.
    """
    try:
        size = files.check_size(file, files.memory_bytes())
        with h5py.File(file, "r") as weights:
            _count_values(weights, size)
            return _parse(weights)
    except Exception as error:
        raise _unusable(error) from error


def _unusable(error: Exception) -> UnusableFileError:
    """Returns an error with the first line of another one's message."""
    return UnusableFileError(str(error).strip().split("\n")[0] or type(error).__name__)


def _check_variables(archive: zipfile.ZipFile) -> None:
    """Raises ValueError if the model in a `.keras` file is larger than the file.

    Keras gives memory to all variables that the model's description asks for, and to
    all values that the file of weights announces, before it compares the two.
    """
    if archive.getinfo(KERAS_CONFIG).file_size > files.MAX_JSON_BYTES:
        raise ValueError(f"{KERAS_CONFIG} in it is too large")
    description = json.loads(archive.read(KERAS_CONFIG))
    shapes = variable_shapes(
        lambda: keras.saving.deserialize_keras_object(description, safe_mode=True)
    )
    num_values = sum(math.prod(shape) for shape in shapes)
    size = archive.getinfo(KERAS_WEIGHTS).file_size
    with archive.open(KERAS_WEIGHTS) as file, h5py.File(file, "r") as weights:
        num_stored = _count_values(weights, size)
    if num_values > num_stored + MAX_UNSAVED_VALUES:
        raise ValueError(
            f"its model has {num_values:,} values, its weights are {num_stored:,}"
        )


def _count_values(weights: h5py.File, num_bytes: int) -> int:
    """Returns how many values the arrays in an HDF5 file have together.

    Args:
      num_bytes: size of the file.

    Raises:
      ValueError: the values of an array are packed, elsewhere, not there at all, or
        shared with another array.
    """
    arrays: list[h5py.Dataset] = []

    def note(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.chunks or item.is_virtual or item.external:
            raise ValueError(f"{name} is not stored plainly")
        if item.nbytes != item.id.get_storage_size():
            raise ValueError(f"{name} announces {item.nbytes:,} bytes, but has fewer")
        arrays.append(item)

    weights.visititems(note)
    announced = sum(array.nbytes for array in arrays)
    if announced > num_bytes:
        raise ValueError(f"it announces {announced:,} bytes and has {num_bytes:,}")
    return sum(array.size for array in arrays)


def _parse(weights: h5py.File) -> SavedWeights:
    """Returns the SavedWeights in an open file whose sizes are checked.

    Raises:
      ValueError: an array is not where Keras writes them, a layer has no name, or two
        have the same one.
    """
    names: dict[str, str] = {}  # of layers, by the paths of their groups
    arrays: dict[str, dict[int, np.ndarray]] = collections.defaultdict(dict)

    def note(path: str, item: h5py.Group | h5py.Dataset) -> None:
        if path.split("/")[0] == OPTIMIZER:
            return
        above, _, last = f"/{path}".rpartition("/")
        if isinstance(item, h5py.Dataset):
            group, _, kind = above.rpartition("/")
            if kind != VARIABLES or not last.isdecimal():
                raise ValueError(f"{path} is no array of a layer's variable")
            arrays[group][int(last)] = item[()]
        elif last == VARIABLES and isinstance(name := item.attrs.get("name"), str):
            names[above] = name

    # Visits every object once, and follows no links to other files.
    weights.visititems(note)
    if "" not in names:
        raise ValueError(
            "it has no names of layers: write it with save_weights, Keras 3"
        )
    layers: dict[str, dict[str, np.ndarray]] = {}
    for group, numbered in arrays.items():
        path = _layer_path(group, names)
        if path in layers:
            raise ValueError(f"two layers in it are called {path}")
        if sorted(numbered) != list(range(len(numbered))):
            raise ValueError(f"{path} in it lacks a variable")
        layers[path] = {str(k): numbered[k] for k in range(len(numbered))}
    return SavedWeights(names[""], layers, has_names=False)


def _layer_path(group: str, names: dict[str, str]) -> str:
    """Returns the path of a layer: the names of those that hold it, and its own.

    Args:
      group: path of its group, such as "/layers/sequential/layers/conv2d".
      names: of layers, by the paths of their groups.
    """
    if group not in names:
        raise ValueError(f"the layer {group} in it has no name")
    parts = group.split("/")
    above = ["/".join(parts[: k + 1]) for k in range(1, len(parts))]
    return "/".join(names[g] for g in above if g in names)
