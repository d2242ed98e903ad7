"""The history of runs: each start, and what it ran on.

for start in history([reader.read("runs/first")]):
    start.time, start.step, start.devices
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from tfmirror.rundir.reader import RunRecord


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a run, as texts for people. Empty: not known."""

    run_number: int  # from 1, in the given order
    run_name: str
    time: str  # UTC
    step: str  # training steps taken before
    host: str
    devices: str
    processor: str
    driver: str  # of the GPUs
    cuda: str  # versions of CUDA and cuDNN
    tensorflow: str


def history(runs: Sequence[RunRecord]) -> list[Start]:
    """Returns all starts of `runs`, from the first to the last of each."""
    return [
        _start(number, run.name, entry)
        for number, run in enumerate(runs, start=1)
        for entry in run.starts
    ]


def _start(number: int, name: str, entry: dict[str, Any]) -> Start:
    """Returns the Start of one entry of environment.json; see reader.read_starts."""
    return Start(
        run_number=number,
        run_name=name,
        time=_text(entry, "time"),
        step=_text(entry, "step"),
        host=_text(entry, "host"),
        devices=_devices(entry),
        processor=_text(entry, "cpu_model"),
        driver=_text(entry, "nvidia_driver"),
        cuda=" / ".join(t for t in (_text(entry, "cuda"), _text(entry, "cudnn")) if t),
        tensorflow=_text(entry, "tensorflow"),
    )


def _text(entry: dict[str, Any], key: str) -> str:
    """Returns a value as a text; empty if there is none."""
    return str(entry.get(key, ""))


def _devices(entry: dict[str, Any]) -> str:
    """Returns the devices in words: "2 x NVIDIA H200", "4 logical CPU devices"."""
    gpus = entry.get("gpus")
    if isinstance(gpus, list) and gpus:
        counts = collections.Counter(str(gpu) for gpu in gpus)
        return ", ".join(f"{count} x {gpu}" for gpu, count in counts.items())
    names = entry.get("devices")
    if not isinstance(names, list):
        return ""
    if entry.get("stand_in_devices"):
        return f"{len(names)} logical CPU device{'s' if len(names) > 1 else ''}"
    return ", ".join(map(str, names))
