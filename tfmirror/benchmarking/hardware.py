"""What the machine has, without starting TensorFlow in this process."""

import os
import pathlib

NVIDIA_DEVICES = pathlib.Path("/proc/driver/nvidia/gpus")


def has_gpus():
    """Returns whether NVIDIA GPUs are there, and not hidden on purpose."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return NVIDIA_DEVICES.is_dir() and any(NVIDIA_DEVICES.iterdir()) and not hidden


def num_cores():
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))
