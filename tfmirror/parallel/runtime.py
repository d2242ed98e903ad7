"""Settings of the whole process: threads of TensorFlow, memory of the allocator.

    runtime.configure(devices, num_microbatches=8)      # before TensorFlow starts

Threads, on logical CPU devices. TensorFlow has one pool of threads for all of them, and
fixes it when it starts:

| microbatches in a global batch | threads of one operation | microbatches at a time |
|---|---|---|
| at least one for each core | 1 | of a replica: its share of the cores |
| fewer | one for each core | 1 |
| `intra_op_threads` is given | that many | 1, or as above if it is 1 |

With one thread an operation does not wait for threads that work on another microbatch:
up to a third of the CNN's speed on two cores. oneDNN's sums depend on the number of
threads, so it must not follow the number of replicas if microbatches are fixed. On GPUs
nothing is changed.

Memory: by default glibc returns the memory of each large tensor to the system as soon
as it is freed, and asks for it again in the next step, where each page is filled with
zeros and mapped anew. On CPUs that takes half of the training time or more.
BUILD_NOTES.md has the measurements.
"""

import contextlib
import ctypes
import math

import tensorflow as tf

from tfmirror import errors, hardware
from tfmirror.parallel import reduction
from tfmirror.parallel.devices import Devices

# From glibc's malloc.h, for mallopt(3). Another threshold for mmap has no effect on
# aligned memory beyond the size of a thread's heap. No mmap at all has.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
LARGEST = 2**31 - 1


def configure(
    devices: Devices,
    num_microbatches: int,
    *,
    intra_op_threads: int = 0,
    inter_op_threads: int = 0,
) -> None:
    """Sets threads and allocator of this process for training on `devices`.

    If TensorFlow has started, its threads stay as they are.

    Args:
      num_microbatches: in a global batch; without fixed microbatches, the replicas.
      intra_op_threads: threads of one operation; 0: see the table above.
      inter_op_threads: operations at a time; 0: one for each core.

    Raises:
      InputError: a number of threads is given, but TensorFlow runs with another one.
    """
    set_threads(intra_op_threads, inter_op_threads)
    if not intra_op_threads:
        use_one_thread_per_op(devices, num_microbatches)
    if devices.are_stand_ins:
        keep_freed_memory()


def set_threads(intra_op: int, inter_op: int) -> None:
    """Sets the threads of one operation, and operations at a time; 0: unchanged.

    Raises:
      InputError: TensorFlow runs with another number already.
    """
    threading = tf.config.threading
    try:
        # Once the runtime has started even the same numbers are refused.
        if intra_op and threading.get_intra_op_parallelism_threads() != intra_op:
            threading.set_intra_op_parallelism_threads(intra_op)
        if inter_op and threading.get_inter_op_parallelism_threads() != inter_op:
            threading.set_inter_op_parallelism_threads(inter_op)
    except RuntimeError as error:
        raise errors.InputError(
            "intra_op_threads and inter_op_threads can't change once TensorFlow runs: "
            f"got {intra_op} and {inter_op}; give them to the first run of a process"
        ) from error


def use_one_thread_per_op(devices: Devices, num_microbatches: int) -> None:
    """Gives each operation one thread, if there is a microbatch for each core.

    If TensorFlow has started, its threads stay as they are.
    """
    if devices.are_stand_ins and num_microbatches >= hardware.num_cores():
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)


def max_concurrent_microbatches(devices: Devices) -> int:
    """Returns how many of its microbatches each replica may compute at a time.

    If an operation has one thread: enough to keep all cores busy, a power of two of at
    least a replica's share of the cores, as `reduction.compile_sums` takes it. Else 1.
    """
    threading = tf.config.threading
    if not devices.are_stand_ins or threading.get_intra_op_parallelism_threads() != 1:
        return 1
    cores = hardware.num_cores()
    running = min(cores, threading.get_inter_op_parallelism_threads() or cores)
    return reduction.tree_size(math.ceil(running / devices.num_replicas))


def keep_freed_memory() -> bool:
    """Makes the allocator keep freed memory for the next tensors; returns whether.

    For the rest of the process. If the C library is not glibc, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST))


def use_deterministic_operations() -> None:
    """Restricts TensorFlow to operations that give the same bits each time.

    For the rest of the process. GPUs need it for two equal runs. On CPUs the operations
    used here are deterministic anyway.
    """
    tf.config.experimental.enable_op_determinism()


def disable_arithmetic_optimizer() -> None:
    """Makes TensorFlow add in the order in which the graph says it.

    Its graph optimizer rewrites trees of additions into AddN, which adds in an order of
    its own. For all that the process traces afterwards.
    """
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
