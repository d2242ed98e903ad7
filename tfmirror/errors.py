"""How a run or a command fails, and the checks that say so in one line.

require(number >= 1, "epochs", number, "at least 1")
path = check_new_file("json_file", "~/verified.json")
"""

import os
import pathlib


class InputError(ValueError):
    """A wrong flag or input.

    The message says what was got, what is expected and what to do. The commands print
    it as one line and exit with code 2.
    """


class ClaimFailedError(RuntimeError):
    """A claim that was verified does not hold (exit code 4)."""


class InterruptedRunError(RuntimeError):
    """The process was asked to end, and did so between two steps (exit code 130)."""


class TrainingStoppedError(RuntimeError):
    """Training can't go on, as with a loss that is not finite (exit code 3)."""


def require(is_met, name, got, expected):
    """Raises InputError unless `is_met`: "NAME must be EXPECTED: got GOT"."""
    if not is_met:
        raise InputError(f"{name} must be {expected}: got {got!r}")


def require_one_of(allowed, name, got):
    """Raises InputError unless `got` is among `allowed`; None is not worth a word."""
    require(got in allowed, name, got, f"one of {', '.join(filter(None, allowed))}")


def expand_path(name, text):
    """Returns the pathlib.Path of a text that may begin with ~.

    Raises:
      InputError: there is no such user.
    """
    try:
        return pathlib.Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{name} names a user that is not there: {text!r}") from error


def check_new_file(name, text):
    """Returns the path of a file to write; raises InputError if none can be there."""
    path = expand_path(name, text)
    is_met = path.parent.is_dir() and not path.is_dir() and path.name
    require(is_met, name, text, "a file in a folder that is there")
    is_met = os.access(path.parent, os.W_OK | os.X_OK)
    require(is_met, name, text, "in a folder that can be written")
    return path


def split_names(text):
    """Returns the names in a text with commas between; none for an empty one."""
    return tuple(name.strip() for name in text.split(",")) if text else ()
