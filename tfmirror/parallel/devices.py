"""Which devices the replicas live on, and the strategy that mirrors variables on them.

devices = set_up(num_gpus=2)
strategy = make_strategy(devices)
"""

import dataclasses
import os

import tensorflow as tf

from tfmirror import config, errors, hardware, process_environment, recipes

# Logical devices can be made only once, before TensorFlow's runtime starts. Idle ones
# have no measurable cost (BUILD_NOTES.md), so a process always makes enough for later
# runs with other numbers of replicas.
MIN_LOGICAL_CPUS = 8


@dataclasses.dataclass(frozen=True)
class Devices:
    """The device of each replica."""

    names: tuple[str, ...]  # as TensorFlow writes them: "GPU:0"
    are_stand_ins: bool  # logical CPU devices instead of GPUs

    @property
    def num_replicas(self) -> int:
        """Replicas, one on each device (N)."""
        return len(self.names)

    def describe(self) -> str:
        """Returns one line for people."""
        listed = ", ".join(self.names)
        if self.are_stand_ins:
            return f"{listed} (logical CPU devices stand in for GPUs; no speed-up)"
        return listed


def set_up(num_gpus: int, device_type: str = "auto") -> Devices:
    """Returns the Devices for `num_gpus` replicas; makes logical CPU devices if needed.

    Args:
      num_gpus: 0: all GPUs, or recipes.NUM_STAND_INS logical CPU devices.
      device_type: "auto": GPUs, or logical CPU devices on a machine without any;
        "gpu": GPUs only; "cpu": logical CPU devices.

    Raises:
      InputError: TF_CONFIG names several processes; or there are fewer GPUs than
        asked for, or TensorFlow can't see them; or TensorFlow has started with fewer
        logical CPU devices than needed.
    """
    process_environment.check_tf_config()
    config.check_device_settings(num_gpus, device_type)
    physical_gpus = (
        [] if device_type == "cpu" else tf.config.list_physical_devices("GPU")
    )
    wants_gpus = device_type == "gpu" or (
        device_type == "auto" and (physical_gpus or hardware.has_nvidia_driver())
    )
    if not wants_gpus:
        count = num_gpus or recipes.NUM_STAND_INS
        _make_logical_cpus(count)
        return Devices(tuple(f"CPU:{k}" for k in range(count)), are_stand_ins=True)
    if not physical_gpus or num_gpus > len(physical_gpus):
        raise errors.InputError(_too_few_gpus(num_gpus, len(physical_gpus)))
    count = num_gpus or len(physical_gpus)
    return Devices(tuple(f"GPU:{k}" for k in range(count)), are_stand_ins=False)


def count_gpus(device_type: str = "auto") -> int:
    """Returns how many GPUs TensorFlow sees; 0 for device_type "cpu"."""
    return 0 if device_type == "cpu" else len(tf.config.list_physical_devices("GPU"))


def make_strategy(
    devices: Devices, all_reduce: str = "auto"
) -> tf.distribute.MirroredStrategy:
    """Returns a MirroredStrategy with one replica on each of `devices`.

    TensorFlow's default reduction (CollectiveAllReduce) keeps group sizes for the whole
    process, so a second strategy of another size fails under it (TensorFlow 2.21).
    Those used here don't. On logical CPU devices, adding on one device is as fast as a
    ring.

    Args:
      all_reduce: how gradients are added, a choice of the setting all_reduce.

    Raises:
      InputError: `all_reduce` is unknown, or needs GPUs, but `devices` are logical
        CPU devices; or TF_CONFIG names several processes.
    """
    process_environment.check_tf_config()
    errors.require_one_of(ALL_REDUCES, "all_reduce", all_reduce)
    if all_reduce == "auto":
        all_reduce = "one_device" if devices.are_stand_ins else "nccl"
    if devices.are_stand_ins and all_reduce != "one_device":
        raise errors.InputError(
            f"all_reduce={all_reduce} needs GPUs, but this run uses logical CPU "
            "devices: use auto or one_device"
        )
    return tf.distribute.MirroredStrategy(list(devices.names), REDUCTIONS[all_reduce]())


# Each sends all gradients in one pack, unless pack_mb has packed them before.
REDUCTIONS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}
ALL_REDUCES = ("auto", *REDUCTIONS)


def make_default_strategy(devices: Devices) -> tf.distribute.Strategy:
    """Returns a MirroredStrategy with TensorFlow's defaults, to compare with.

    A process can use only one size of it (see `make_strategy`). For one device it is
    TensorFlow's default strategy, which distributes nothing.
    """
    if devices.num_replicas == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(list(devices.names))


def _too_few_gpus(num_gpus: int, num_found: int) -> str:
    """Returns the message: what was asked for, what was found, and what to do."""
    asked = num_gpus or "at least 1"
    message = f"gpus: {asked} asked for, but TensorFlow sees {num_found}"
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        message += f", and CUDA_VISIBLE_DEVICES={visible!r} can hide some"
    if num_found:
        return f"{message}; ask for gpus={num_found}, or for device_type=cpu"
    if hardware.has_nvidia_driver():
        return (
            f"{message}, although there is an NVIDIA driver; install CUDA's libraries "
            "with pip install 'tfmirror[cuda]', or ask for device_type=cpu"
        )
    return f"{message}; without device_type=gpu, logical CPU devices take their place"


def _make_logical_cpus(count: int) -> None:
    """Makes at least `count` logical CPU devices, unless TensorFlow has them already.

    Raises:
      InputError: TensorFlow has started with fewer, and can't make more.
    """
    physical = tf.config.list_physical_devices("CPU")[0]
    wanted = [tf.config.LogicalDeviceConfiguration()] * max(count, MIN_LOGICAL_CPUS)
    try:
        tf.config.set_logical_device_configuration(physical, wanted)
    except RuntimeError:  # the runtime has started
        there = len(tf.config.list_logical_devices("CPU"))
        if there < count:
            raise errors.InputError(
                f"gpus: {count} logical CPU devices asked for, but TensorFlow has "
                f"started with {there}; call devices.set_up before anything else uses "
                "TensorFlow"
            ) from None
