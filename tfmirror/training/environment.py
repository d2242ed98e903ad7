"""What a run ran on: versions, processor, threads. Goes into environment.json."""

import os
import pathlib
import platform

import keras
import numpy as np
import tensorflow as tf

import tfmirror

CPUINFO = pathlib.Path("/proc/cpuinfo")
# What decides TensorFlow's speed on x86 processors, as Linux writes it.
CPU_FLAG_PREFIXES = ("avx", "amx", "fma")
BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "avx_ne_convert"})


def describe(devices):
    """Returns the environment as a dict for JSON.

    Args:
      devices: parallel.devices.Devices of the run.
    """
    cpu = parse_cpuinfo(CPUINFO.read_text() if CPUINFO.exists() else "")
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
        "num_cpus": len(os.sched_getaffinity(0)),
        # 0: TensorFlow takes one thread a processor.
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
    }


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


def computes_bfloat16():
    """Returns whether the processor has instructions for bfloat16.

    Without them TensorFlow 2.21 falls back to kernels of its own (BUILD_NOTES.md).
    """
    text = CPUINFO.read_text() if CPUINFO.exists() else ""
    return not BFLOAT16_FLAGS.isdisjoint(parse_cpuinfo(text)["flags"])
