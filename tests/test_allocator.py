"""Freed memory stays with the process, where the C library can be told so."""

import ctypes
import resource
import subprocess
import sys

import pytest

from tfmirror.parallel import allocator

# Frees and takes 64 MiB again and again; prints the pages that had to be mapped anew.
PROGRAM = """
import ctypes, resource, sys
from tfmirror.parallel import memory
if sys.argv[1] == "keep":
    assert allocator.keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
size = 64 << 20
def use():
    block = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(block, 1, size)
    libc.free(block)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode):
    """Returns the page faults of PROGRAM."""
    command = [sys.executable, "-c", PROGRAM, mode]
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is no glibc"
)
def test_freed_memory_is_not_mapped_anew():
    pages = (64 << 20) // resource.getpagesize()
    assert faults("keep") < pages / 10
    assert faults("leave") > pages / 10  # so the other figure says something


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert allocator.keep_freed_memory() is False
