"""Which devices the replicas live on, and the strategy that mirrors variables on them.

devices = choose(num_gpus=2)
strategy = make_strategy(devices)
"""

import contextlib
import dataclasses
import math

import tensorflow as tf

from tfmirror import config, errors, hardware
from tfmirror.parallel import allocator, reduction

# Logical devices can be made only once, before TensorFlow's runtime starts. Idle ones
# cost nothing that we could measure (BUILD_NOTES.md), so there are always enough for
# runs with other numbers of replicas later in the same process.
MIN_LOGICAL_CPUS = 8


@dataclasses.dataclass(frozen=True)
class Devices:
    """The device of each replica."""

    names: tuple[str, ...]  # as TensorFlow writes them: "GPU:0"
    are_stand_ins: bool  # logical CPU devices in place of GPUs

    @property
    def num_replicas(self):
        """Replicas, one a device (N)."""
        return len(self.names)

    def describe(self):
        """Returns one line for people."""
        listed = ", ".join(self.names)
        if self.are_stand_ins:
            return f"{listed} (logical CPU devices stand in for GPUs; no speed-up)"
        return listed


def choose(num_gpus, device_type="auto", keeps_memory=True):
    """Returns the Devices for `num_gpus` replicas.

    0 takes all GPUs there are, or config.NUM_STAND_INS logical CPU devices.
    `device_type` "auto" takes GPUs, or logical CPU devices on a machine without any;
    "gpu" refuses that, "cpu" asks for it. On CPUs freed memory stays with the process
    (`allocator.keep_freed_memory`) unless `keeps_memory` is False.

    Raises:
      InputError: fewer GPUs than asked for; a GPU that TensorFlow can't see; logical
        CPU devices needed after the runtime was started with fewer.
    """
    config.check_device_settings(num_gpus, device_type)
    physical_gpus = (
        [] if device_type == "cpu" else tf.config.list_physical_devices("GPU")
    )
    wants_gpus = device_type == "gpu" or (
        device_type == "auto" and (physical_gpus or hardware.has_nvidia_driver())
    )
    if not wants_gpus:
        count = num_gpus or config.NUM_STAND_INS
        if keeps_memory:
            allocator.keep_freed_memory()
        _make_logical_cpus(count)
        return Devices(tuple(f"CPU:{k}" for k in range(count)), are_stand_ins=True)
    if not physical_gpus or num_gpus > len(physical_gpus):
        raise errors.InputError(_too_few_gpus(num_gpus, len(physical_gpus)))
    count = num_gpus or len(physical_gpus)
    return Devices(tuple(f"GPU:{k}" for k in range(count)), are_stand_ins=False)


def count_gpus(device_type="auto"):
    """Returns how many GPUs TensorFlow sees; none for device_type "cpu"."""
    return 0 if device_type == "cpu" else len(tf.config.list_physical_devices("GPU"))


def make_strategy(devices, all_reduce="auto"):
    """Returns a tf.distribute.MirroredStrategy with one replica on each of `devices`.

    The default reduction (CollectiveAllReduce) keeps group sizes for the whole process,
    so a second strategy of another size fails under it (TensorFlow 2.21); these don't.
    On logical CPUs adding on one device is as fast as a ring.

    Args:
      all_reduce: how gradients are added, one of config.ALL_REDUCES.

    Raises:
      InputError: a reduction of GPUs on logical CPU devices.
    """
    if all_reduce == "auto":
        all_reduce = "one_device" if devices.are_stand_ins else "nccl"
    if devices.are_stand_ins and all_reduce != "one_device":
        raise errors.InputError(
            f"all_reduce={all_reduce} is of GPUs alone: logical CPU devices stand in; "
            "give auto or one_device"
        )
    return tf.distribute.MirroredStrategy(list(devices.names), REDUCTIONS[all_reduce]())


# All gradients travel in one pack, unless they are packed before (--pack_mb).
REDUCTIONS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


def set_threads(intra_op, inter_op):
    """Lets an operation, and operations at a time, have so many threads; 0: as it is.

    Raises:
      InputError: TensorFlow's runtime runs with others already.
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
            "intra_op_threads and inter_op_threads can't be changed once TensorFlow "
            "runs: give them to the first run of a process"
        ) from error


def use_one_thread_per_op(devices, num_microbatches):
    """Lets each operation run in one thread, if microbatches keep all cores busy.

    TensorFlow has one pool of threads for the operations of all logical CPU devices.
    With more than one in it, an operation waits for threads that another microbatch's
    occupies: up to a third of the CNN's speed on two cores (BUILD_NOTES.md). For who
    has the process to itself: once TensorFlow runs, its threads stay as they are.

    Args:
      num_microbatches: of a global batch. Where they are fixed, threads may not follow
        the number of replicas: oneDNN adds a kernel's gradient by thread.
    """
    if devices.are_stand_ins and num_microbatches >= hardware.num_cores():
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)


def max_concurrent_microbatches(devices):
    """Returns how many of its microbatches each replica may compute at a time.

    Where an operation has one thread, so many that no core is without work: a power of
    two, as `subtrees.compile_sums` takes it, and not less than a replica's share of the
    cores. Elsewhere one.
    """
    threading = tf.config.threading
    if not devices.are_stand_ins or threading.get_intra_op_parallelism_threads() != 1:
        return 1
    cores = hardware.num_cores()
    running = min(cores, threading.get_inter_op_parallelism_threads() or cores)
    return reduction.tree_size(math.ceil(running / devices.num_replicas))


def make_usual_strategy(devices):
    """Returns the strategy that one makes without a second thought, to compare with.

    A MirroredStrategy as it comes, which serves once a process (see `make_strategy`);
    for one device none, which is what TensorFlow's default strategy is.
    """
    if devices.num_replicas == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(list(devices.names))


def use_deterministic_operations():
    """Lets TensorFlow use only operations that give the same bits each time.

    For the rest of the process. On GPUs it is what makes two runs alike; on CPUs those
    used here are so already.
    """
    tf.config.experimental.enable_op_determinism()


def _too_few_gpus(num_gpus, num_found):
    """Returns the message that says what is there and what can be done."""
    asked = num_gpus or "at least 1"
    message = f"gpus: {asked} asked for, but TensorFlow sees {num_found}"
    if num_found:
        return f"{message}; ask for --gpus={num_found}, or for --device_type=cpu"
    if hardware.has_nvidia_driver():
        return (
            f"{message} although an NVIDIA driver is there; install the CUDA libraries "
            "with pip install 'tfmirror[cuda]', or ask for --device_type=cpu"
        )
    return f"{message}; without --device_type=gpu, logical CPU devices stand in"


def _make_logical_cpus(count):
    """Makes at least `count` logical CPU devices, unless the runtime has them already.

    Raises:
      InputError: the runtime runs with fewer, and can't be given more.
    """
    physical = tf.config.list_physical_devices("CPU")[0]
    wanted = [tf.config.LogicalDeviceConfiguration()] * max(count, MIN_LOGICAL_CPUS)
    try:
        tf.config.set_logical_device_configuration(physical, wanted)
    except RuntimeError:  # the runtime has started
        there = len(tf.config.list_logical_devices("CPU"))
        if there < count:
            raise errors.InputError(
                f"gpus: {count} logical CPU devices asked for, but TensorFlow runs "
                f"with {there} already; call devices.choose before anything else "
                "uses it"
            ) from None
