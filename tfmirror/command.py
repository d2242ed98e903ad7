"""How a command starts and ends: flags in, one call, exit code out.

    if __name__ == "__main__":
        command.run(main, config.TrainConfig, __doc__, check=config.check)

Exit codes: 0 done; 1 unexpected error, with its traceback; 2 wrong flag or input, one
line; 3 training stopped; 4 a verified claim does not hold; 130 interrupted, one line;
141 the reader of the output closed it.
"""

import contextlib
import errno
import importlib
import io
import os
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator, Sequence

from tfmirror import errors, flags, process_environment
from tfmirror.training import interruption

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = typing.TypeVar("T", bound="DataclassInstance")

EXIT_WRONG_INPUT = 2
EXIT_STOPPED = 3
EXIT_CLAIM_FAILED = 4
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # 128 + the number of SIGPIPE, as shells report it

# TensorFlow's log level; 0 shows everything. If the user sets it, nothing is hidden.
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def run(
    main: Callable[[T], None],
    settings_class: type[T],
    synopsis: str | None,
    *,
    check: Callable[[T], None],
    presets: flags.Presets | None = None,
    needs_tensorflow: bool = True,
) -> typing.NoReturn:
    """Parses the process's arguments, calls `main`, and exits the process.

    Args:
      main: function of the settings; imports TensorFlow only when it is called.
      settings_class: dataclass of the settings.
      synopsis: first paragraph of --help: the docstring of the command.
      check: function of the settings that raises InputError. It is called before
        TensorFlow is imported, so wrong flags are reported at once.
      presets: settings to start from by name; None: the command has no flag preset.
      needs_tensorflow: whether `main` imports TensorFlow.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # for file names that are not UTF-8
        sys.stdout.reconfigure(errors="surrogateescape")

    def call() -> int:
        return run_and_return_exit_code(
            main,
            settings_class,
            synopsis,
            check=check,
            argv=sys.argv[1:],
            presets=presets,
            prepare=import_tensorflow_quietly if needs_tensorflow else None,
        )

    try:
        code = _interruptible(call)
        with _unless_terminal_is_closed(sys.stdout):
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has read enough
        _write_nowhere(sys.stdout)
        code = EXIT_BROKEN_PIPE
    sys.exit(code)


def _interruptible(call: Callable[[], int]) -> int:
    """Returns the exit code that `call` returns, or that of a signal to end."""
    with interruption.Watch(raises=True) as watch:
        try:
            return call()
        except Exception:
            # Code in C may turn the signal's exception into another one.
            if not watch.is_asked:
                raise
            print_error("interrupted")
        except KeyboardInterrupt as error:
            print_error(str(error) or "interrupted")
    return EXIT_INTERRUPTED


def _write_nowhere(output: typing.TextIO) -> None:
    """Lets what is yet to be written to an output vanish.

    The end of Python would try to write it once more.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


@contextlib.contextmanager
def _unless_terminal_is_closed(output: typing.TextIO) -> Iterator[None]:
    """Passes over the failure to write to a terminal that is closed."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        _write_nowhere(output)


def run_and_return_exit_code(
    main: Callable[[T], None],
    settings_class: type[T],
    synopsis: str | None,
    *,
    check: Callable[[T], None],
    argv: Sequence[str],
    presets: flags.Presets | None = None,
    prepare: Callable[[], None] | None = None,
) -> int:
    """Does what `run` does, but returns the exit code.

    Args:
      main, settings_class, synopsis, check, presets: those of `run`.
      argv: arguments without the program's name.
      prepare: called after `check` and before `main`; None: nothing is called.
    """
    try:
        settings = flags.parse(argv, settings_class, synopsis or "", presets=presets)
        check(settings)
        if prepare:
            prepare()
        main(settings)
    except flags.HelpRequested as request:
        print(request)
    except errors.InputError as error:
        print_error(error)
        return EXIT_WRONG_INPUT
    except errors.TrainingStoppedError as error:
        print_error(error)
        return EXIT_STOPPED
    except errors.ClaimFailedError as error:
        print_error(error)
        return EXIT_CLAIM_FAILED
    except OSError as error:
        if not error.filename:
            raise
        # The system's own reason why a given path is wrong, such as a name too long.
        print_error(f"{error.filename!r} can't be used: {error.strerror}")
        return EXIT_WRONG_INPUT
    except (errors.InterruptedRunError, KeyboardInterrupt) as error:
        print_error(str(error) or "interrupted")
        return EXIT_INTERRUPTED
    return 0


def print_error(error: BaseException | str) -> None:
    """Prints an error as one line on standard error."""
    text = " ".join(str(error).split())
    text = text.encode("utf-8", "backslashreplace").decode()  # names may not be UTF-8
    with _unless_terminal_is_closed(sys.stderr):
        print(f"error: {text}", file=sys.stderr, flush=True)


def print_line(text: str) -> None:
    """Prints one line on standard output, and flushes it."""
    print(text, flush=True)


def print_to_stderr(text: str) -> None:
    """Prints one line on standard error, and flushes it."""
    print(text, file=sys.stderr, flush=True)


def import_tensorflow_quietly() -> None:
    """Imports TensorFlow without its start-up lines, unless the user set its log level.

    TensorFlow 2.21 writes some of them to file descriptor 2 before it reads its log
    level. So the descriptor points to a file during the import; if the import fails,
    the content of the file is printed.

    Raises:
      InputError: the user's settings of Keras don't let it run on TensorFlow.
    """
    process_environment.check_keras()
    if LOG_LEVEL in os.environ:
        return
    os.environ[LOG_LEVEL] = "3"
    with tempfile.TemporaryFile() as captured:
        try:
            with _standard_error_to(captured):
                tensorflow = importlib.import_module("tensorflow")
            # Its Python warnings, such as on retracing, are for authors of graphs.
            tensorflow.get_logger().setLevel("ERROR")
        except Exception:  # not an interruption
            captured.seek(0)
            sys.stderr.write(captured.read().decode(errors="replace"))
            raise


@contextlib.contextmanager
def _standard_error_to(file: typing.IO[bytes]) -> Iterator[None]:
    """Makes file descriptor 2 point to `file`, for both C++ and Python."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
