"""Facts about the machine, found without starting TensorFlow in this process."""

import dataclasses
import os
import pathlib
import re

CPUINFO = pathlib.Path("/proc/cpuinfo")
NVIDIA_DRIVER = pathlib.Path("/proc/driver/nvidia/version")
MEMINFO = pathlib.Path("/proc/meminfo")
# Limit, use and statistics of the process's control group, of version 2 and 1.
CGROUP_MEMORY = tuple(
    tuple(pathlib.Path("/sys/fs/cgroup", name) for name in names)
    for names in (
        ("memory.max", "memory.current", "memory.stat"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
        ),
    )
)

# Prefixes of the flags that decide TensorFlow's speed on x86 processors, in Linux'
# spelling.
CPU_FLAG_PREFIXES = ("avx", "amx", "fma")
# Instructions for bfloat16: those for matrices, and all. Without any of them TensorFlow
# 2.21 falls back to slow kernels (BUILD_NOTES.md).
BFLOAT16_MATRIX_FLAGS = frozenset({"amx_bf16"})
BFLOAT16_FLAGS = BFLOAT16_MATRIX_FLAGS | {"avx512_bf16", "avx_ne_convert"}


@dataclasses.dataclass(frozen=True)
class Cpu:
    """The processor, as far as Linux describes it."""

    model: str  # name; empty: not known
    flags: tuple[str, ...]  # sorted, those that begin with one of CPU_FLAG_PREFIXES


def has_nvidia_driver() -> bool:
    """Returns whether NVIDIA's driver is loaded and its GPUs are not hidden."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return NVIDIA_DRIVER.exists() and not hidden


def nvidia_driver_version() -> str:
    """Returns the version of NVIDIA's driver; empty: there is none."""
    return parse_driver(NVIDIA_DRIVER.read_text() if NVIDIA_DRIVER.exists() else "")


def parse_driver(text: str) -> str:
    """Returns the version in the text of /proc/driver/nvidia/version; empty: none.

    Its first line is "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue
    Mar 5 ...", or with "Open Kernel Module for x86_64" in it.
    """
    found = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, re.MULTILINE)
    return found[1] if found else ""


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe_cpu() -> Cpu:
    """Returns the processor of this machine; empty fields on systems but Linux."""
    return parse_cpuinfo(CPUINFO.read_text() if CPUINFO.exists() else "")


def cpu_has_any(flags: frozenset[str]) -> bool:
    """Returns whether the processor has at least one of `flags`."""
    return not flags.isdisjoint(describe_cpu().flags)


def parse_cpuinfo(text: str) -> Cpu:
    """Returns the first processor in the text of Linux' /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", "").split()
    return Cpu(
        model=fields.get("model name", ""),
        flags=tuple(sorted(f for f in flags if f.startswith(CPU_FLAG_PREFIXES))),
    )


def available_memory() -> int:
    """Returns the bytes of memory that this process could still take.

    It is what Linux calls available, or what is left of the limit of the process's
    control group if that is less. On other systems it is half of all memory.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = MEMINFO.read_text() if MEMINFO.exists() else ""
    found = re.search(r"^MemAvailable: +(\d+) kB", text, re.MULTILINE)
    left = [int(found[1]) * 1024 if found else total // 2]
    for limit, used, statistics in CGROUP_MEMORY:
        if limit.exists() and used.exists() and statistics.exists():
            most = limit.read_text().strip()  # or "max"
            # Files that were read count as used until their memory is needed.
            cached = re.search(r"^inactive_file (\d+)$", statistics.read_text(), re.M)
            in_use = int(used.read_text()) - (int(cached[1]) if cached else 0)
            left += [int(most) - in_use] if most.isdigit() else []
    return max(0, min(left))
