"""Devices: names, choices, and how replicas are divided over them and workers."""

import re
import types

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import errors
from replicator.core import devices as devices_lib
from replicator.core import topology
from replicator.core.topology import per_worker
from replicator.errors import DeviceError

HOST = "/job:localhost/replica:0/task:0"


@pytest.fixture
def gpus(monkeypatch):
    def pretend(count):
        real = tf.config.list_logical_devices
        fakes = [types.SimpleNamespace(name=f"/device:GPU:{i}") for i in range(count)]

        def list_devices(kind=None):
            return fakes if kind == "GPU" else [*real(kind), *fakes]

        monkeypatch.setattr(tf.config, "list_physical_devices", list_devices)
        monkeypatch.setattr(tf.config, "list_logical_devices", list_devices)

    return pretend


@pytest.mark.parametrize(
    "name", ["CPU:1", "/CPU:1", "/device:CPU:1", f"{HOST}/device:CPU:1"]
)
def test_every_way_to_write_a_device_gives_its_full_name(name):
    assert [f"{HOST}/device:CPU:1"] == devices_lib.resolve(1, [name], distinct=True)


def test_without_gpus_replicas_share_the_cpu_or_get_virtual_ones():
    """Backends that need distinct devices split the CPU."""
    assert [f"{HOST}/device:CPU:0"] * 3 == devices_lib.resolve(3, None, distinct=False)
    assert [f"{HOST}/device:CPU:{i}" for i in range(3)] == devices_lib.resolve(
        3, None, distinct=True
    )


def test_gpus_are_taken_first(gpus):
    gpus(4)

    assert [f"{HOST}/device:GPU:0", f"{HOST}/device:GPU:1"] == devices_lib.resolve(
        2, None, distinct=False
    )


def test_multi_gpu_takes_all_gpus_and_runs_on_a_laptop(gpus):
    """Without a number: every GPU; without GPUs: one replica, or as many as asked."""
    assert 1 == replicator.MultiGpuReplicator().num_replicas
    on_cpu = replicator.MultiGpuReplicator(num_gpus=2)
    step = tf.autograph.experimental.do_not_convert(
        lambda: replicator.all_sum(tf.constant(1))
    )

    assert [2, 2] == [int(v) for v in on_cpu.run(step)]
    gpus(3)
    on_gpu = replicator.MultiGpuReplicator()
    assert [f"{HOST}/device:GPU:{i}" for i in range(3)] == on_gpu.devices
    assert "mirrored" == on_gpu.variable_placement


# What is passed, by the replicas that it is for -> what the message says.
WRONG_NAMES = {
    "GPU:7": r"device 'GPU:7' does not exist; this process has CPU:0, CPU:1",
    "CPU:99": r"device 'CPU:99' does not exist",
    "the second": r"device 'the second' is not a device name; use names such",
    3: r"device 3 (is not a device name|does not exist)",
}
NO_LIST = r"devices .* must be a list with one device per replica"
REFUSED = {
    **{
        f"{name} of {backend}": (
            lambda backend=backend, name=name: replicator.create(
                backend, num_replicas=1, devices=[name]
            ),
            message,
        )
        for backend in ("single", "in_graph", "tf_mirrored")
        for name, message in WRONG_NAMES.items()
    },
    **{
        f"{devices!r} for two replicas": (
            lambda devices=devices: replicator.create(
                "in_graph", num_replicas=2, devices=devices
            ),
            NO_LIST,
        )
        for devices in (["CPU:0"], ["CPU:0"] * 3, "CPU:0", [], 2.5, object)
    },
    "a variable as devices": (
        lambda: devices_lib.resolve(2, keras.Variable([1.0]), distinct=False),
        NO_LIST,
    ),
    "one device for two replicas of a stock strategy": (
        lambda: replicator.create(
            "tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:0"]
        ),
        r"\['CPU:0', 'CPU:0'\] must all be d",
    ),
    "a CPU that TensorFlow already uses": (
        lambda: (tf.constant(1), devices_lib.split_cpu(64)),
        r"64 virtual CPU devices are needed.* initialized with 4; ",
    ),
    "more parts than a graph can hold": (
        lambda: devices_lib.resolve_logical(2, 10**30, None),
        r"logical_devices_per_replica 10+ must be an .* 65536",
    ),
    "more parts than a graph can hold, together": (
        lambda: devices_lib.resolve_logical(2, 2**16, None),
        r"num_replicas 131072 must be an integer from 1 to 65",
    ),
    "no replicas": (
        lambda: replicator.InGraphReplicator(num_replicas=0),
        r"num_replicas 0 must be an integer from 1",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_devices_that_cannot_be_are_refused(what):
    """By every backend: soft placement would run on the CPU unnoticed."""
    call, message = REFUSED[what]

    with pytest.raises(errors.DeviceError, match=message):
        call()


@pytest.mark.parametrize(
    ("num_gpus", "options", "message"),
    [
        (1, {}, r"2 replicas need 2 GPUs, but there are 1; use fewer"),
        (
            2,
            {"variable_placement": "shared"},
            r"variable_placement='shared' needs.*use 'mirrored'",
        ),
    ],
)
def test_gpus_that_do_not_suffice_are_refused(gpus, num_gpus, options, message):
    """Two replicas on one would measure something else; two cannot read one copy."""
    gpus(num_gpus)

    with pytest.raises(errors.DeviceError, match=message):
        replicator.create("in_graph", num_replicas=2, **options)


@pytest.mark.parametrize(
    ("names", "memories"),
    [
        (["CPU:0", "CPU:1"], (0, 0)),
        (["CPU:0", "GPU:0"], (0, 1)),
        (["GPU:0", "GPU:1", "GPU:0"], (0, 1, 0)),
    ],
)
def test_cpus_of_a_process_share_memory_and_gpus_do_not(names, memories):
    """A GPU has a memory of its own; replicas on one GPU share it."""
    full = [f"{HOST}/device:{name}" for name in names]

    assert memories == topology.make_topology([[name] for name in full]).memories
    assert [name.startswith("GPU") for name in names] == [
        devices_lib.is_gpu(device) for device in full
    ]


def test_cpus_of_two_workers_do_not_share_memory():
    """They are reached over the network; the replicas of one worker share."""
    names = [
        f"/job:worker/replica:0/task:{i // 2}/device:CPU:{i % 2}" for i in range(4)
    ]

    made = topology.make_topology([[name] for name in names])

    assert (0, 0, 2, 2) == made.memories == made.primaries
    assert (2, 3) == made.members(2)


def test_split_replicas_share_memory_only_where_all_their_parts_do():
    """A replica over CPU and GPU 0 shares nothing with one over CPU and GPU 1."""
    made = topology.make_topology(
        [[f"{HOST}/device:CPU:0", f"{HOST}/device:GPU:{r}"] for r in range(2)]
    )

    assert (0, 1) == made.memories
    assert (f"{HOST}/device:CPU:0",) * 2 == made.replica_devices


@pytest.mark.parametrize(
    ("num_logical", "used", "is_shared"),
    [
        ([1, 1, 1], [0, 1, 2], False),
        ([2, 1], [0, 1], True),
        ([2, 1], [0, 2], False),
        ([1, 4], [0, 1], False),
        ([1, 4], [1, 4], True),
        ([2, 2], [1, 1], False),
        ([], [], False),
    ],
)
def test_parts_of_one_gpu_are_found_from_how_many_each_has(
    num_logical, used, is_shared
):
    """TensorFlow numbers logical GPUs one physical GPU after the other."""
    names = [f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in used]
    names.append("/job:localhost/replica:0/task:0/device:CPU:0")

    physical = devices_lib.physical_gpus(num_logical)

    assert sum(num_logical) == len(physical)
    assert is_shared == devices_lib.share_a_gpu(names, physical)


@pytest.mark.parametrize(("parts", "is_virtual"), [(None, False), (2, True)])
def test_replicas_on_parts_of_one_gpu_are_known_from_the_configuration(
    monkeypatch, parts, is_virtual
):
    """As MirroredStrategy asks before it chooses between NCCL and a ring."""
    gpus = ["the first", "the second"]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    monkeypatch.setattr(
        tf.config,
        "get_logical_device_configuration",
        lambda gpu: [object()] * parts if parts and gpu == gpus[0] else None,
    )
    names = [f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in (0, 1)]

    assert is_virtual == devices_lib.have_virtual_gpus(names)
    assert not devices_lib.have_virtual_gpus(["/job:localhost/device:CPU:0"])


@pytest.mark.parametrize(
    ("arguments", "expected"), [((4, 2), 2), ((2, 2), 1), ((1, 2, 2), 1), ((3, 1), 3)]
)
def test_every_worker_gets_the_same_number(arguments, expected):
    """Parts of a split replica may be on different workers."""
    assert per_worker(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2), "num_replicas 3 of the whole job is not divisible by its 2 workers; "),
        ((3, 2), "use a multiple, such as 2"),
        ((1, 4), "use a multiple, such as 4"),
        ((0, 2), "num_replicas 0 of the whole job is not divisible"),
        ((-2, 2), "num_replicas -2 of the whole job is not divisible"),
        ((5, 4), "such as 4"),
        ((3, 4, 2), "job times logical_devices_per_replica 2 is not divisible by its"),
        ((2.5, 2), "num_replicas 2.5 must be an integer"),
        ((True, 2), "num_replicas True must be an integer"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments, message):
    with pytest.raises(DeviceError, match=re.escape(message)):
        per_worker(*arguments)
