"""Processes that take training steps when they are asked to, and are idle otherwise.

    with Contender(work) as contender:
        contender.ready["trace_seconds"]
        contender.ask(100)                         # seconds that 100 steps took

Each has a runtime, threads and memory of its own, so that one contender can't disturb
another's, and all can be asked in turn.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from tfmirror import errors

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # else the first takes all of a GPU's memory
}
TORCH_PROGRAM = pathlib.Path(__file__).with_name("torch_ddp.py")


class Contender:
    """One process; a context manager that ends it."""

    def __init__(self, work, torch_python=""):
        """Starts the process, and waits until it is ready to take steps.

        Args:
          work: work.Workload.
          torch_python: interpreter of an environment that has PyTorch.

        Raises:
          InputError: the process could not get ready; the message says why.
        """
        self.work = work
        program = ["-m", "tfmirror.benchmarking.contender_process"]
        interpreter = sys.executable
        if work.contender == "torch_ddp":
            program, interpreter = [str(TORCH_PROGRAM)], torch_python
        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            # PyTorch's environment is to see this package, and nothing beside it.
            path = stack.enter_context(tempfile.TemporaryDirectory())
            pathlib.Path(path, PACKAGE.name).symlink_to(PACKAGE)
            self._errors = stack.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [interpreter, *program, json.dumps(dataclasses.asdict(work))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
            )
            stack.callback(self._end)
            self.ready = self._answer()
            self.start_seconds = time.monotonic() - start
            self._stack = stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._stack.close()

    def _end(self):
        """Ends the process: by the end of its input, or else by force."""
        with contextlib.suppress(OSError):  # it has ended by itself
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, question):
        """Returns the answer: seconds to a number of steps, else what it is about."""
        with contextlib.suppress(OSError):  # it has ended: no answer will come
            self._process.stdin.write(f"{json.dumps(question)}\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        """Returns the next line of the process, as JSON."""
        line = self._process.stdout.readline()
        if line:
            try:
                return json.loads(line)
            except ValueError:
                why = f"its process said {line.strip()!r}"
        else:
            code = self._process.wait()
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            why = f"its process ended with code {code}"
            if code > 0 and lines:
                why = lines[-1]
        raise errors.InputError(f"{self.work.name} can't be measured: {why}")
