"""What the machine has, without starting TensorFlow in this process."""

import os
import pathlib

CPUINFO = pathlib.Path("/proc/cpuinfo")
NVIDIA_DEVICES = pathlib.Path("/proc/driver/nvidia/gpus")

# What decides TensorFlow's speed on x86 processors, as Linux writes it.
CPU_FLAG_PREFIXES = ("avx", "amx", "fma")
BFLOAT16_MATRIX_UNITS = frozenset({"amx_bf16"})
BFLOAT16 = BFLOAT16_MATRIX_UNITS | {"avx512_bf16", "avx_ne_convert"}


def has_gpus():
    """Returns whether NVIDIA GPUs are there, and not hidden on purpose."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return NVIDIA_DEVICES.is_dir() and any(NVIDIA_DEVICES.iterdir()) and not hidden


def num_cores():
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def describe_cpu():
    """Returns {"model": name, "flags": [...]}, empty where Linux does not say."""
    return parse_cpuinfo(CPUINFO.read_text() if CPUINFO.exists() else "")


def cpu_has_any(flags):
    """Returns whether the processor has one of `flags`, a set."""
    return not flags.isdisjoint(describe_cpu()["flags"])


def parse_cpuinfo(text):
    """Returns {"model": name, "flags": [...]} of the text of Linux's /proc/cpuinfo."""
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", "").split()
    return {
        "model": fields.get("model name", ""),
        "flags": sorted(f for f in flags if f.startswith(CPU_FLAG_PREFIXES)),
    }
