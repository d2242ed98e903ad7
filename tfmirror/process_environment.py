"""What the environment of the process asks for and tfmirror can't give.

    check_keras()           # before Keras is imported: it reads these when it is
    check_tf_config()       # before a strategy is made

Each raises an InputError that says what was got and what to set. This module imports
neither Keras nor TensorFlow.
"""

import json
import os
import pathlib
from typing import Any

from tfmirror import errors

KERAS_BACKEND = "tensorflow"
# What Keras 3 accepts in keras.json; it ends with a traceback on anything else.
KERAS_CHOICES = {
    "floatx": ("float16", "float32", "float64"),
    "image_data_format": ("channels_last", "channels_first"),
}
KERAS_NUMBERS = ("KERAS_MAX_EPOCHS", "KERAS_MAX_STEPS_PER_EPOCH")
TF_CONFIG = "TF_CONFIG"


def check_keras() -> None:
    """Raises InputError unless Keras can be imported, with TensorFlow as its backend.

    Reads Keras' variables and keras.json as Keras itself does.
    """
    file = _keras_file()
    settings = _read_keras_file(file)
    backend, place = settings.get("backend", KERAS_BACKEND), str(file)
    if given := os.environ.get("KERAS_BACKEND"):
        backend, place = given, "KERAS_BACKEND"
    if backend != KERAS_BACKEND:
        raise errors.InputError(
            f"Keras' backend must be {KERAS_BACKEND}: got {backend!r} from {place}; "
            f"set KERAS_BACKEND={KERAS_BACKEND}"
        )
    for name, choices in KERAS_CHOICES.items():
        got = settings.get(name, choices[0])
        expected = f"one of {', '.join(choices)}"
        errors.require(got in choices, f"{name} in {file}", got, expected)
    epsilon = settings.get("epsilon", 1e-7)
    is_met = isinstance(epsilon, float)
    errors.require(is_met, f"epsilon in {file}", epsilon, "a number such as 1e-07")
    _check_nnx(settings, file)
    for name in KERAS_NUMBERS:
        text = os.environ.get(name, "0")
        errors.require(text.isdecimal(), name, text, "a whole number, or not set")


def _check_nnx(settings: dict[str, Any], file: pathlib.Path) -> None:
    """Raises InputError if Keras is asked for Flax's NNX, which only JAX has."""
    asked, place = settings.get("nnx_enabled", False), f"nnx_enabled in {file}"
    if (given := os.environ.get("KERAS_NNX_ENABLED")) is not None:
        asked, place = given.lower() in ("true", "1"), "KERAS_NNX_ENABLED"
    errors.require(not asked, place, asked, "false, or not set")


def _keras_file() -> pathlib.Path:
    """Returns the path of keras.json, in the folder that Keras 3 would take."""
    home = os.path.expanduser("~")
    base = home if os.access(home, os.W_OK) else "/tmp"
    folder = os.environ.get("KERAS_HOME", os.path.join(base, ".keras"))
    return pathlib.Path(os.path.expanduser(os.path.join(folder, "keras.json")))


def _read_keras_file(file: pathlib.Path) -> dict[str, Any]:
    """Returns the settings in keras.json; {} if there is none, or it is not JSON."""
    try:
        settings = json.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}  # as Keras does
    is_met = isinstance(settings, dict)
    errors.require(is_met, str(file), type(settings).__name__, "a JSON object")
    return settings


def check_tf_config() -> None:
    """Raises InputError unless TF_CONFIG is unset, or names one process at most.

    TF_CONFIG describes a cluster of several processes, which tfmirror does not train
    on. One that names a single process changes nothing.
    """
    text = os.environ.get(TF_CONFIG)
    if text is None:
        return
    advice = "unset TF_CONFIG: tfmirror trains on the devices of one machine"
    try:
        value = json.loads(text)
        tasks = sum(map(_num_tasks, value.get("cluster", {}).values()))
    except (AttributeError, TypeError, ValueError, RecursionError):
        raise errors.InputError(
            "TF_CONFIG must be a JSON object of a cluster: got "
            f"{_short(text)}; {advice}"
        ) from None
    if tasks > 1:
        raise errors.InputError(
            f"TF_CONFIG must name one process at most: got {tasks}; {advice}"
        )


def _num_tasks(job: Any) -> int:
    """Returns how many processes a job of a cluster has: [address] or {index: address}.

    Raises:
      TypeError: the job is something else.
    """
    if not isinstance(job, list | dict):
        raise TypeError(f"not a job: {job!r}")
    return len(job)


def _short(text: str) -> str:
    """Returns the beginning of a text, in quotes."""
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
