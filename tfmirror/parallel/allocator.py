"""How the C library's allocator treats the memory that tensors leave.

    keep_freed_memory()                                 # once, before training on CPUs

By default glibc gives the memory of every large tensor back to the system as soon as it
is freed, and asks for it again in the next step, where each page is filled with zeros
and mapped once more. Training on CPUs spends half of its time on that, or more
(BUILD_NOTES.md).
"""

import ctypes

# Of glibc's malloc.h, for mallopt(3). Another threshold for mmap has no effect on
# aligned memory beyond the size of a thread's heap; no mmap at all has.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
LARGEST = 2**31 - 1


def keep_freed_memory():
    """Lets the process keep freed memory for its next tensors; returns whether it does.

    For the rest of the process. Where the C library is no glibc it does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST))
