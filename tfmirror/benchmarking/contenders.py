"""Processes that train on request, and are idle otherwise.

    with Contender(workload) as contender:
        contender.info.trace_seconds
        contender.train(100)                       # seconds that 100 steps took

Each contender has a process with its own runtime, threads and memory. So contenders
don't disturb each other, and all of them can be measured alternately.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import typing
from collections.abc import Callable

from tfmirror import errors
from tfmirror.benchmarking import messages
from tfmirror.benchmarking.messages import ContenderInfo, Request, RequestKind
from tfmirror.benchmarking.workload import Workload

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # By default the first process takes all the memory of a GPU.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}
TORCH_PROGRAM = pathlib.Path(__file__).with_name("torch_ddp.py")
SECONDS_TO_END = 10  # after which a process is killed

T = typing.TypeVar("T")


class Contender:
    """A running process of one workload; a context manager that ends the process.

    Each method raises InputError if the process has ended or sends no valid answer; the
    message says why.
    """

    def __init__(self, workload: Workload, torch_python: str = "") -> None:
        """Starts the process, and waits until it is ready to train.

        Args:
          workload: what it trains.
          torch_python: Python interpreter of an environment with PyTorch; used by the
            contender torch_ddp only.

        Raises:
          InputError: the process ended before it was ready; the message says why.
          OSError: the interpreter can't be started.
        """
        self.workload = workload
        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            # PyTorch's environment gets this package, and nothing else of this one.
            path = stack.enter_context(tempfile.TemporaryDirectory())
            pathlib.Path(path, PACKAGE.name).symlink_to(PACKAGE)
            self._errors = stack.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [*_program(workload, torch_python), workload.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
            )
            self._requests = typing.cast(typing.IO[str], self._process.stdin)
            self._answers = typing.cast(typing.IO[str], self._process.stdout)
            stack.callback(self._end)
            self.info = self._read(ContenderInfo.from_json)
            self.start_seconds = time.monotonic() - start
            self._stack = stack.pop_all()

    def __enter__(self) -> typing.Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def train(self, num_steps: int) -> float:
        """Takes `num_steps` training steps; returns the seconds they took."""
        return self._ask(Request(RequestKind.TRAIN, num_steps), float)

    def peak_bytes(self) -> int:
        """Returns the largest memory that the process has had, in bytes."""
        return self._ask(Request(RequestKind.PEAK_BYTES), int)

    def peak_flops(self) -> float:
        """Returns the matrix-multiply peak of the process's devices, in FLOP/s."""
        return self._ask(Request(RequestKind.PEAK_FLOPS), float)

    def step_parts(self) -> messages.StepParts:
        """Returns the parts of a training step."""
        request = Request(RequestKind.STEP_PARTS)
        return self._ask(request, messages.StepParts.from_json)

    def _ask(self, request: Request, parse: Callable[[typing.Any], T]) -> T:
        """Sends a request; returns the process's answer."""
        with contextlib.suppress(OSError):  # the process has ended; `_read` says why
            self._requests.write(f"{request.to_json()}\n")
            self._requests.flush()
        return self._read(parse)

    def _read(self, parse: Callable[[typing.Any], T]) -> T:
        """Returns what `parse` makes of the JSON in the process's next line."""
        line = self._answers.readline()
        if not line:
            raise self._error(self._why_it_ended())
        try:
            return parse(json.loads(line))
        except (TypeError, ValueError) as error:
            raise self._error(f"its process sent {line.strip()!r}") from error

    def _error(self, why: str) -> errors.InputError:
        """Returns the error that says why the workload can't be measured."""
        return errors.InputError(f"{self.workload.name} can't be measured: {why}")

    def _why_it_ended(self) -> str:
        """Returns the last line of the ended process's errors, or its exit code."""
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        if code > 0 and lines:
            return lines[-1]
        return f"its process ended with code {code}"

    def _end(self) -> None:
        """Ends the process: closes its input, and kills it if that does not help."""
        with contextlib.suppress(OSError):  # the process has already ended
            self._requests.close()
        try:
            self._process.wait(timeout=SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()


def _program(workload: Workload, torch_python: str) -> list[str]:
    """Returns the command line of a workload's process, without the workload."""
    if workload.contender == "torch_ddp":
        python = errors.expand_path("torch_python", torch_python)
        return [str(python), str(TORCH_PROGRAM)]
    return [sys.executable, "-m", "tfmirror.benchmarking.contender_process"]
