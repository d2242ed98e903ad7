"""How a command starts and ends: flags in, one call, exit code out.

    if __name__ == "__main__":
        command.run(main, config.TrainConfig, __doc__, check=config.check)

Exit codes: 0 done; 1 unexpected, with its traceback; 2 wrong flag or input, one line;
3 training stopped; 4 a verified claim does not hold; 130 interrupted.
"""

import contextlib
import importlib
import os
import sys
import tempfile

from tfmirror import errors, flags

EXIT_WRONG_INPUT = 2
EXIT_STOPPED = 3
EXIT_CLAIM_FAILED = 4
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as a shell has it: 128 and the number of SIGPIPE

# TensorFlow's own switch (0 shows all). Set by the user, nothing is kept out of sight.
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def run(main, settings_class, synopsis, check, *, needs_tensorflow=True):
    """Parses flags into a `settings_class`, calls `main` with it, exits the process.

    Args:
      main: function of the settings; imports TensorFlow only when called.
      check: function of the settings that raises InputError, called before TensorFlow
        is imported: wrong flags are answered at once.
      needs_tensorflow: whether `main` imports it.
    """
    prepare = import_tensorflow_quietly if needs_tensorflow else None
    try:
        code = run_and_return_exit_code(
            main, settings_class, synopsis, check, sys.argv[1:], prepare
        )
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_BROKEN_PIPE
    sys.exit(code)


def run_and_return_exit_code(main, settings_class, synopsis, check, argv, prepare=None):
    """Does what `run` does with the arguments `argv`, but returns the exit code.

    Args:
      prepare: called before `main`; None: nothing is.
    """
    try:
        settings = flags.parse(argv, settings_class, synopsis)
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
        # What the system says of a path that was given: a name too long, no permission.
        print_error(f"{error.filename!r} can't be used: {error.strerror}")
        return EXIT_WRONG_INPUT
    except (errors.InterruptedRunError, KeyboardInterrupt) as error:
        print_error(str(error) or "interrupted")
        return EXIT_INTERRUPTED
    return 0


def print_error(error):
    """Prints one line on standard error."""
    text = " ".join(str(error).split())
    print(f"error: {text}", file=sys.stderr, flush=True)


def print_line(text):
    """Prints one line, at once."""
    print(text, flush=True)


def print_to_stderr(text):
    """Prints one line beside the output: on standard error."""
    print(text, file=sys.stderr, flush=True)


def import_tensorflow_quietly():
    """Imports TensorFlow without its start-up lines, unless the user set its log level.

    Some of them are written before TensorFlow reads its log level (2.21), straight to
    file descriptor 2: it points to a file during the import, which is shown if that
    fails.
    """
    if LOG_LEVEL in os.environ:
        return
    os.environ[LOG_LEVEL] = "3"
    with tempfile.TemporaryFile() as captured:
        try:
            with _standard_error_to(captured):
                tensorflow = importlib.import_module("tensorflow")
            # Its Python warnings are for who writes the graph, such as on retracing.
            tensorflow.get_logger().setLevel("ERROR")
        except BaseException:
            captured.seek(0)
            sys.stderr.write(captured.read().decode(errors="replace"))
            raise


@contextlib.contextmanager
def _standard_error_to(file):
    """Lets file descriptor 2 point to `file`, for C++ as for Python."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
