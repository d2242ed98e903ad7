"""What a run ran on: versions, processor, threads. Goes into environment.json."""

import platform

import keras
import numpy as np
import tensorflow as tf

import tfmirror
from tfmirror import hardware


def describe(devices):
    """Returns the environment as a dict for JSON.

    Args:
      devices: parallel.devices.Devices of the run.
    """
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
        "cpu_model": cpu["model"],
        "cpu_flags": cpu["flags"],
        "num_cpus": hardware.num_cores(),
        # 0: TensorFlow takes one thread a processor.
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
    }
