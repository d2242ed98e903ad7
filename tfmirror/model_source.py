"""Models of the user's own: a function in a file or in a module that returns a model.

source = load("nets.py:small")               # runs nets.py
source = of_function(small)                  # from Python
source.build((28, 28, 1), 10)                # a Keras model, as the function made it
source.name, source.sha256                   # what a run records of it
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import pathlib
import sys
import traceback
import types
import typing
from collections.abc import Callable, Sequence

from tfmirror import errors

if typing.TYPE_CHECKING:
    import keras

HOW_TO_NAME = "FILE.py:FUNCTION or package.module:FUNCTION"
HELP_OF_RUN = (
    "function that made the run's model, if that is one of your own; it is needed for "
    f"a checkpoint, and for layers of your own: {HOW_TO_NAME}; empty: not given"
)

# (input_shape (H, W, C), num_classes) -> a model that gives logits
Build = Callable[[tuple[int, ...], int], "keras.Model"]


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """A function that returns a model, and what is recorded of it."""

    name: str  # as it was given, such as nets.py:small
    function: Build
    file: str  # that defines the function; empty: not known
    sha256: str  # of that file, or of the function's text; empty: neither is known

    def build(self, input_shape: Sequence[int], num_classes: int) -> typing.Any:
        """Returns what the function returns.

        Args:
          input_shape: (H, W, C) of the images.
          num_classes: K.

        Raises:
          InputError: the function raised an exception.
        """
        try:
            return self.function(tuple(input_shape), num_classes)
        except errors.InputError:
            raise
        # The user's code may raise anything.
        except Exception as error:
            what = describe_error(error, self.file)
            raise errors.InputError(
                f"model {self.name}, called with input_shape={tuple(input_shape)} and "
                f"num_classes={num_classes}, raised {what}"
            ) from error


def is_own(model: str) -> bool:
    """Returns whether a setting `model` names a function, not a built-in model."""
    return ":" in model


def function_name(model: str) -> str:
    """Returns the name of the function in a setting `model`; empty: built in."""
    return model.rpartition(":")[2] if is_own(model) else ""


def check(builtin: Sequence[str], model: str) -> None:
    """Checks a setting `model` without running anything of the user's.

    Args:
      builtin: names of the models that are built in.
      model: one of them, or FILE.py:FUNCTION, or package.module:FUNCTION.

    Raises:
      InputError: it is neither, or there is no such file.
    """
    place, _, function = model.rpartition(":")
    if not place:
        known = f"one of {', '.join(builtin)}, or " if builtin else ""
        errors.require(model in builtin, "model", model, f"{known}{HOW_TO_NAME}")
        return
    parts = [function] if _is_file(place) else [*place.split("."), function]
    is_met = all(part.isidentifier() for part in parts)
    errors.require(is_met, "model", model, HOW_TO_NAME)
    if _is_file(place):
        path = errors.expand_path("model", place)
        errors.require(path.is_file(), "model", model, "of an existing file")


def check_of_run(builtin: Sequence[str], model: str) -> None:
    """Checks a setting `model` of commands that use a run's model; "" is allowed."""
    if model:
        check(builtin, model)


def _is_file(place: str) -> bool:
    """Returns whether the part before the colon is a path, not a module's name."""
    return place.endswith(".py") or "/" in place or "\\" in place


def load(model: str) -> ModelSource:
    """Returns the function that a setting names; runs its file or imports its module.

    Args:
      model: FILE.py:FUNCTION or package.module:FUNCTION; `check` accepts it.

    Raises:
      InputError: the file or module can't be run, or has no such function.
    """
    place, _, name = model.rpartition(":")
    try:
        if _is_file(place):
            module = _run_file(errors.expand_path("model", place).resolve())
        else:
            module = importlib.import_module(place)
    # The user's code may raise anything, and end the process.
    except (Exception, SystemExit) as error:
        raise errors.InputError(
            f"model {model} can't be loaded: {describe_error(error, place)}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if inspect.isfunction(v)]
        raise errors.InputError(
            f"model must name a function of {place}: got {name!r}; it has "
            f"{', '.join(known) or 'none'}"
        )
    file = module.__file__ or ""
    return ModelSource(model, function, file, _sha256(pathlib.Path(file)))


def of_function(function: Build) -> ModelSource:
    """Returns the ModelSource of a function that is given from Python.

    Its digest covers the file that defines it; in a notebook, its own text.

    Raises:
      InputError: it is not a function.
    """
    errors.require(callable(function), "model", function, "a function")
    module = getattr(function, "__module__", "") or "__main__"
    own_name = getattr(function, "__name__", "")
    # Names are those that the flag of a command could have; a lambda has none.
    name = f"{module}:{own_name if own_name.isidentifier() else 'function'}"
    try:
        file = inspect.getsourcefile(function) or ""
        text = inspect.getsource(function)
    except (TypeError, OSError):  # for example typed at the interpreter's prompt
        return ModelSource(name, function, "", "")
    path = pathlib.Path(file)
    digest = _sha256(path) if path.is_file() else _digest(text.encode())
    return ModelSource(name, function, file, digest)


def _run_file(path: pathlib.Path) -> types.ModuleType:
    """Returns the module of a Python file; the file is run once for each content.

    The file's folder is searched for imports, as when Python runs the file.
    """
    name = f"tfmirror_model_{path.stem}_{_sha256(path)[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and Keras look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _sha256(path: pathlib.Path) -> str:
    """Returns the digest of a file's content, as 64 hexadecimal digits."""
    return _digest(path.read_bytes())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def describe_error(error: BaseException, file: str) -> str:
    """Returns an exception for people: its kind, its text, and the line in `file`.

    Args:
      file: path, or its end, of the user's file; empty: the line is left out.
    """
    where = ""
    stem = pathlib.Path(file).name
    if isinstance(error, SyntaxError) and error.lineno:
        where = f" in line {error.lineno}"
    for frame in traceback.extract_tb(error.__traceback__):
        if stem and pathlib.Path(frame.filename).name == stem:
            where = f" in line {frame.lineno}"
    text = str(error.msg if isinstance(error, SyntaxError) else error)
    text = " ".join(text.split())
    kind = type(error).__name__
    shortened = text if len(text) <= 300 else f"{text[:300]}..."
    return f"{kind}{where}: {shortened}" if shortened else f"{kind}{where}"
