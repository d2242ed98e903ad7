"""Exceptions of runs and commands, and checks that raise them with a one-line message.

require(number >= 1, "epochs", number, "at least 1")
path = check_new_file("json_file", "~/verified.json")
"""

import os
import pathlib
import re
from collections.abc import Iterable

MOST_SHOWN = 200  # characters of a wrong value


class InputError(ValueError):
    """A wrong flag or input.

    The message says what was got, what is expected and what to do. The commands print
    it as one line and exit with code 2.
    """


class ClaimFailedError(RuntimeError):
    """A verified claim does not hold (exit code 4)."""


class InterruptedRunError(RuntimeError):
    """The process was asked to end, and ended between two steps (exit code 130)."""


class TrainingStoppedError(RuntimeError):
    """Training can't continue, for example after a loss that is not finite (code 3)."""


def require(is_met: object, name: str, got: object, expected: str) -> None:
    """Raises InputError unless `is_met` is true: "NAME must be EXPECTED: got GOT"."""
    if not is_met:
        raise InputError(f"{name} must be {expected}: got {shown(got)}")


def shown(got: object) -> str:
    """Returns a value for a message: its beginning if it is long."""
    try:
        text = repr(got)
    except ValueError:  # Python refuses to write integers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def without_long_words(text: str) -> str:
    """Returns a message with each word of hundreds of characters cut off."""
    return re.sub(rf"(\S{{{MOST_SHOWN}}})\S+", r"\1...", text)


def require_one_of(allowed: Iterable[str], name: str, got: str) -> None:
    """Raises InputError, which lists what is allowed, unless `got` is allowed."""
    allowed = tuple(allowed)
    require(got in allowed, name, got, f"one of {', '.join(allowed)}")


def expand_path(name: str, text: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path of a text that may begin with ~.

    Args:
      name: the setting, for the message of the error.
      text: the path as it was given.

    Raises:
      InputError: the text names an unknown user, or holds a zero byte.
    """
    require("\0" not in str(text), name, text, "a path without zero bytes")
    try:
        return pathlib.Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{name} names an unknown user: got {text!r}") from error


def require_utf8(name: str, text: str) -> None:
    """Raises InputError unless a path is UTF-8, as TensorFlow's writers need."""
    try:
        text.encode()
    except UnicodeEncodeError:
        require(False, name, text, "a path in UTF-8")


def check_new_file(name: str, text: str) -> pathlib.Path:
    """Returns the path of a file to write.

    Args:
      name: the setting, for the message of the error.
      text: the path as it was given; may begin with ~.

    Raises:
      InputError: no file can be written at that path.
    """
    path = expand_path(name, text)
    can_exist = path.parent.is_dir() and not path.is_dir() and path.name
    require(can_exist, name, text, "a file in an existing folder")
    is_writable = os.access(path.parent, os.W_OK | os.X_OK)
    require(is_writable, name, text, "in a writable folder")
    return path


def split_names(text: str) -> tuple[str, ...]:
    """Returns the names in a comma-separated text; () for an empty one."""
    return tuple(name.strip() for name in text.split(",")) if text else ()
