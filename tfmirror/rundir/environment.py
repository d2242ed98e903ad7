"""The environment of a run, for environment.json: versions, processor, threads."""

import platform
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

import tfmirror
from tfmirror import hardware


class Devices(Protocol):
    """The part of parallel.devices.Devices that is recorded."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def are_stand_ins(self) -> bool: ...


def describe(devices: Devices) -> dict[str, Any]:
    """Returns what environment.json of a run on `devices` holds."""
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
        "cpu_model": cpu.model,
        "cpu_flags": list(cpu.flags),
        "num_cpus": hardware.num_cores(),
        # 0: TensorFlow takes one thread for each core.
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
    }
