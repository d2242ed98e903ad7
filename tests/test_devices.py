"""Which devices are taken, and what is said where they can't be."""

import subprocess
import sys

import pytest
import tensorflow as tf

from tfmirror import config, errors, hardware
from tfmirror.parallel import devices
from tfmirror.training import setup


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
    chosen = devices.choose(num_gpus, device_type)
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
            "2 asked for, but TensorFlow sees 0; without --device_type",
        ),
        (0, "gpu", 0, False, "at least 1 asked for, but TensorFlow sees 0"),
        (4, "auto", 2, True, "4 asked for, but TensorFlow sees 2; ask for --gpus=2"),
        (2, "auto", 0, True, r"driver is there; .* pip install 'tfmirror\[cuda\]'"),
        (9, "cpu", 0, False, "9 logical CPU devices asked for, but .* with 8 already"),
    ],
)
def test_choose_says_what_is_there(
    fake_machine, num_gpus, device_type, there, has_driver, says
):
    fake_machine(there, has_driver)
    with pytest.raises(errors.InputError, match=says):
        devices.choose(num_gpus, device_type)


def test_describe_says_loudly_that_cpus_stand_in():
    two = devices.Devices(("CPU:0", "CPU:1"), are_stand_ins=True)
    assert two.describe() == (
        "CPU:0, CPU:1 (logical CPU devices stand in for GPUs; no speed-up)"
    )
    assert devices.Devices(("GPU:0",), are_stand_ins=False).describe() == "GPU:0"


def test_the_reduction_is_one_that_bears_several_strategies_in_a_process():
    cpus = devices.make_strategy(devices.choose(2, "cpu"))
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
    with pytest.raises(errors.InputError, match=f"all_reduce={all_reduce} is of GPUs"):
        devices.make_strategy(two, all_reduce)


def test_threads_are_set_before_tensorflow_runs_or_refused():
    tf.constant(0)
    devices.set_threads(0, 0)  # as they are
    with pytest.raises(errors.InputError, match="can't be changed once TensorFlow"):
        devices.set_threads(1, 0)
    code = (
        "import tensorflow as tf\n"
        "from tfmirror.parallel import devices\n"
        "devices.set_threads(1, 2)\n"
        "devices.choose(2, 'cpu')\n"
        "assert tf.config.threading.get_intra_op_parallelism_threads() == 1\n"
        "assert tf.config.threading.get_inter_op_parallelism_threads() == 2\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("settings", "threads"),
    [
        ("gpus=4", 1),
        ("gpus=8", 1),
        ("gpus=3", 0),  # one pool for all of them: the fourth core is to have work too
        ("gpus=1", 0),
        ("gpus=4, intra_op_threads=3", 3),
        # Fixed microbatches: as many as cores, or not, on any number of replicas.
        ("gpus=1, microbatches=4", 1),
        ("gpus=8, microbatches=9", 1),
        ("gpus=1, microbatches=3", 0),
        ("gpus=3, microbatches_per_replica='1,1,1'", 0),
        ("gpus=2, microbatches_per_replica='4,1'", 1),
        ("gpus=1, microbatches=4, intra_op_threads=2", 2),
    ],
)
def test_operations_of_replicas_on_all_of_four_cores_are_kept_apart(settings, threads):
    code = (
        "import os\n"
        "os.sched_getaffinity = lambda pid: range(4)\n"
        "import tensorflow as tf\n"
        "from tfmirror import config\n"
        "from tfmirror.rundir import environment\n"
        "from tfmirror.training import setup\n"
        f"settings = config.TrainConfig({settings}, device_type='cpu')\n"
        "setup.choose_threads(settings)\n"
        "chosen, resolved = setup.choose(settings)\n"
        "assert resolved.intra_op_threads == settings.intra_op_threads\n"
        "print(environment.describe(chosen)['intra_op_threads'])\n"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    assert int(done.stdout) == threads


@pytest.mark.parametrize(
    ("threads", "num_replicas", "are_stand_ins", "expected"),
    [
        ((1, 0), 1, True, 8),  # a power of two, and no core without work
        ((1, 0), 2, True, 4),
        ((1, 0), 3, True, 2),
        ((1, 0), 4, True, 2),
        ((1, 0), 6, True, 1),
        ((1, 0), 8, True, 1),
        ((1, 1), 1, True, 1),  # only one operation at a time
        ((1, 4), 2, True, 2),
        ((1, 99), 1, True, 8),
        ((0, 0), 1, True, 1),  # TensorFlow's own number: an operation has all cores
        ((6, 0), 1, True, 1),
        ((1, 0), 1, False, 1),  # a GPU has memory for one
    ],
)
def test_a_replica_computes_so_many_microbatches_at_once_that_six_cores_have_work(
    monkeypatch, threads, num_replicas, are_stand_ins, expected
):
    for kind, number in zip(("intra", "inter"), threads, strict=True):
        name = f"get_{kind}_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, name, lambda number=number: number)
    monkeypatch.setattr(hardware, "num_cores", lambda: 6)
    names = tuple(f"X:{k}" for k in range(num_replicas))
    chosen = devices.Devices(names, are_stand_ins)
    assert devices.max_concurrent_microbatches(chosen) == expected


def test_a_process_that_runs_already_keeps_its_threads():
    tf.constant(0)
    before = tf.config.threading.get_intra_op_parallelism_threads()
    setup.choose_threads(config.TrainConfig(gpus=8, device_type="cpu"))
    assert tf.config.threading.get_intra_op_parallelism_threads() == before != 1
