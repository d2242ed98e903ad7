"""What the machine has, without starting TensorFlow in this process."""

import os
import pathlib

CPUINFO = pathlib.Path("/proc/cpuinfo")
NVIDIA_DRIVER = pathlib.Path("/proc/driver/nvidia/version")

# What decides TensorFlow's speed on x86 processors, as Linux writes it.
CPU_FLAG_PREFIXES = ("avx", "amx", "fma")
# Instructions for bfloat16: for matrices, and any. Without them TensorFlow 2.21 falls
# back to kernels of its own (BUILD_NOTES.md).
BFLOAT16_MATRIX_FLAGS = frozenset({"amx_bf16"})
BFLOAT16_FLAGS = BFLOAT16_MATRIX_FLAGS | {"avx512_bf16", "avx_ne_convert"}


def has_nvidia_driver():
    """Returns whether NVIDIA's driver is there, with GPUs not hidden on purpose."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return NVIDIA_DRIVER.exists() and not hidden


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
