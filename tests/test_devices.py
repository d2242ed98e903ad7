"""Which devices are taken, and what is said where they can't be."""

import pytest
import tensorflow as tf

from tfmirror import errors, hardware
from tfmirror.parallel import devices


@pytest.fixture
def fake_machine(monkeypatch):
    """Returns a function that makes the machine have GPUs, or just a driver."""

    def make(num_gpus=0, has_driver=False):
        tf.config.list_logical_devices()  # starts the runtime
        real = tf.config.list_physical_devices

        def fake(device_type=None):
            return ["gpu"] * num_gpus if device_type == "GPU" else real(device_type)

        monkeypatch.setattr(tf.config, "list_physical_devices", fake)
        monkeypatch.setattr(hardware, "has_nvidia_driver", lambda: has_driver)

    return make


@pytest.mark.parametrize(
    ("num_gpus", "device_type", "there", "expected"),
    [
        (2, "auto", 0, (("CPU:0", "CPU:1"), True)),
        (0, "auto", 0, (("CPU:0", "CPU:1"), True)),
        (1, "cpu", 4, (("CPU:0",), True)),
        (3, "auto", 4, (("GPU:0", "GPU:1", "GPU:2"), False)),
        (0, "auto", 4, (("GPU:0", "GPU:1", "GPU:2", "GPU:3"), False)),
        (0, "gpu", 1, (("GPU:0",), False)),
    ],
)
def test_choose(fake_machine, num_gpus, device_type, there, expected):
    fake_machine(there)
    chosen = devices.set_up(num_gpus, device_type)
    assert (chosen.names, chosen.are_stand_ins) == expected


@pytest.mark.parametrize(
    ("num_gpus", "device_type", "there", "has_driver", "says"),
    [
        (-1, "auto", 0, False, "gpus must be at least 0 .*: got -1"),
        (1, "tpu", 0, False, "device_type must be one of auto, cpu, gpu: got 'tpu'"),
        (
            2,
            "gpu",
            0,
            False,
            "2 asked for, but TensorFlow sees 0.*; without device_type",
        ),
        (0, "gpu", 0, False, "at least 1 asked for, but TensorFlow sees 0"),
        (4, "auto", 2, True, "4 asked for, but TensorFlow sees 2.*; ask for gpus=2"),
        (2, "auto", 0, True, r"an NVIDIA driver; .* pip install 'tfmirror\[cuda\]'"),
        (9, "cpu", 0, False, "9 logical CPU devices asked for, but .* started with 8"),
    ],
)
def test_choose_says_what_is_there(
    fake_machine, num_gpus, device_type, there, has_driver, says
):
    fake_machine(there, has_driver)
    with pytest.raises(errors.InputError, match=says):
        devices.set_up(num_gpus, device_type)


def test_describe_says_loudly_that_cpus_stand_in():
    two = devices.Devices(("CPU:0", "CPU:1"), are_stand_ins=True)
    assert two.describe() == (
        "CPU:0, CPU:1 (logical CPU devices stand in for GPUs; no speed-up)"
    )
    assert devices.Devices(("GPU:0",), are_stand_ins=False).describe() == "GPU:0"


def test_the_reduction_is_one_that_bears_several_strategies_in_a_process():
    cpus = devices.make_strategy(devices.set_up(2, "cpu"))
    assert isinstance(
        cpus.extended._cross_device_ops, tf.distribute.ReductionToOneDevice
    )


@pytest.mark.parametrize(
    ("all_reduce", "are_stand_ins", "reduction"),
    [
        ("auto", False, tf.distribute.NcclAllReduce),
        ("nccl", False, tf.distribute.NcclAllReduce),
        ("hierarchical", False, tf.distribute.HierarchicalCopyAllReduce),
        ("one_device", False, tf.distribute.ReductionToOneDevice),
        ("auto", True, tf.distribute.ReductionToOneDevice),
        ("one_device", True, tf.distribute.ReductionToOneDevice),
    ],
)
def test_the_reduction_is_the_one_asked_for(
    monkeypatch, all_reduce, are_stand_ins, reduction
):
    made = []
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda *a: made.append(a))
    two = devices.Devices(("GPU:0", "GPU:1"), are_stand_ins)
    devices.make_strategy(two, all_reduce)
    ((names, operations),) = made
    assert names == ["GPU:0", "GPU:1"] and type(operations) is reduction


@pytest.mark.parametrize("all_reduce", ["nccl", "hierarchical"])
def test_a_reduction_of_gpus_is_refused_on_stand_ins(all_reduce):
    two = devices.Devices(("CPU:0", "CPU:1"), are_stand_ins=True)
    with pytest.raises(errors.InputError, match=f"all_reduce={all_reduce} needs GPUs"):
        devices.make_strategy(two, all_reduce)
