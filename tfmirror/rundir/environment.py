"""What a run ran on, for environment.json: versions, processor, GPUs, threads.

write(folder, [*earlier_starts, describe_start(devices, settings, num_steps=0)])

environment.json holds one entry for each start of the run, so that the history of a run
on several machines is known.
"""

import datetime
import pathlib
import platform
from collections.abc import Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

import tfmirror
from tfmirror import config, files, hardware


class Devices(Protocol):
    """The part of parallel.devices.Devices that is recorded."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def are_stand_ins(self) -> bool: ...


def describe(devices: Devices) -> dict[str, Any]:
    """Returns versions, devices, processor and threads, for a run on `devices`."""
    cpu = hardware.describe_cpu()
    return {
        "tfmirror": tfmirror.__version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "devices": list(devices.names),
        "stand_in_devices": devices.are_stand_ins,
        **describe_gpus(devices),
        "cpu_model": cpu.model,
        "cpu_flags": list(cpu.flags),
        "num_cpus": hardware.num_cores(),
        # 0: TensorFlow takes one thread for each core.
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
    }


def describe_gpus(devices: Devices) -> dict[str, Any]:
    """Returns the GPUs among `devices`: models, driver, and CUDA's versions.

    The versions of CUDA and cuDNN are those that TensorFlow was built with. Without a
    GPU there are no models, and the versions are empty.
    """
    physical = {
        f"GPU:{k}": device
        for k, device in enumerate(tf.config.list_physical_devices("GPU"))
    }
    used = [physical[name] for name in devices.names if name in physical]
    details = [tf.config.experimental.get_device_details(device) for device in used]
    build = tf.sysconfig.get_build_info() if used else {}
    return {
        "gpus": [detail.get("device_name", "") for detail in details],
        "nvidia_driver": hardware.nvidia_driver_version() if used else "",
        "cuda": build.get("cuda_version", ""),
        "cudnn": build.get("cudnn_version", ""),
    }


def describe_start(
    devices: Devices,
    settings: config.ResolvedConfig,
    num_steps: int,
    now: datetime.datetime | None = None,
) -> dict[str, Any]:
    """Returns the entry of environment.json for one start of a run.

    Args:
      num_steps: training steps that were taken before.
      now: the time in UTC; None: the current time.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    return {
        "time": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "step": num_steps,
        "host": platform.node(),
        **describe(devices),
        "settings": settings.to_json(),
    }


def write(folder: pathlib.Path, starts: Sequence[dict[str, Any]]) -> None:
    """Writes environment.json into the run directory `folder`.

    Args:
      starts: the entry of each start, from the first to the last.

    Raises:
      OSError: it can't be written.
    """
    files.write_json(folder / "environment.json", {"starts": list(starts)})
