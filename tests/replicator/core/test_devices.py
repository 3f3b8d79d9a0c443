"""Devices: names, choices, and how replicas are divided over them and workers."""

import re
import types

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import DeviceError
from replicator.core import devices as devices_lib

HOST = "/job:localhost/replica:0/task:0"
WORKER = "/job:worker/replica:0/task"


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


def _devices(**options):
    return replicator.create("in_graph", **options).devices


@pytest.mark.parametrize(
    "name", ["CPU:1", "/CPU:1", "/device:CPU:1", f"{HOST}/device:CPU:1"]
)
def test_every_way_to_write_a_device_gives_its_full_name(name):
    assert [f"{HOST}/device:CPU:1"] == _devices(num_replicas=1, devices=[name])


def test_replicas_take_gpus_first_then_share_the_cpu(gpus):
    cpus = [f"{HOST}/device:CPU:{i}" for i in range(3)]
    assert cpus[:1] * 3 == _devices(num_replicas=3)
    mirrored = replicator.create("tf_mirrored", num_replicas=3)
    assert cpus == [*mirrored.strategy.extended.worker_devices]

    gpus(4)
    assert [f"{HOST}/device:GPU:{i}" for i in range(2)] == _devices(num_replicas=2)


def test_multi_gpu_takes_all_gpus_and_runs_on_a_laptop(gpus):
    assert 1 == replicator.MultiGpuReplicator().num_replicas
    on_cpu = replicator.MultiGpuReplicator(num_gpus=2)

    assert [2, 2] == [
        int(v) for v in on_cpu.run(lambda: replicator.all_sum(tf.constant(1)))
    ]
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
REFUSED = [
    *(
        (backend, {"num_replicas": 1, "devices": [name]}, message)
        for backend in ("single", "in_graph", "tf_mirrored")
        for name, message in WRONG_NAMES.items()
    ),
    *(
        ("in_graph", {"num_replicas": 2, "devices": devices}, NO_LIST)
        for devices in (
            *(["CPU:0"], ["CPU:0"] * 3, "CPU:0", [], 2.5, object),
            keras.Variable([1.0]),
        )
    ),
    *(
        ("in_graph", {"num_replicas": 2, "logical_devices_per_replica": value}, message)
        for value, message in (
            (10**30, r"logical_devices_per_replica 10+ must be an .* 65536"),
            (2**16, r"num_replicas 131072 must be an integer from 1 to 65"),
        )
    ),
    (
        "tf_mirrored",
        {"num_replicas": 2, "devices": ["CPU:0", "CPU:0"]},
        r"\['CPU:0', 'CPU:0'\] must all be d",
    ),
    (  # a CPU that TensorFlow already uses
        "tf_mirrored",
        {"num_replicas": 64},
        r"64 virtual CPU devices are needed.* initialized with 4; ",
    ),
]


@pytest.mark.parametrize(("backend", "options", "message"), REFUSED)
def test_devices_that_cannot_be_are_refused(backend, options, message):
    with pytest.raises(DeviceError, match=message):
        replicator.create(backend, **options)


SHARED = {"variable_placement": "shared"}


@pytest.mark.parametrize(
    ("num_gpus", "options", "message"),
    [
        (1, {}, r"2 replicas need 2 GPUs, but there are 1; use fewer"),
        (2, SHARED, r"variable_placement='shared' needs.*use 'mirrored'"),
    ],
)
def test_gpus_that_do_not_suffice_are_refused(gpus, num_gpus, options, message):
    gpus(num_gpus)

    with pytest.raises(DeviceError, match=message):
        replicator.create("in_graph", num_replicas=2, **options)


@pytest.mark.parametrize(
    ("names", "memories"),
    [
        # CPUs of a process share memory; a GPU has its own, which its replicas share.
        ([["CPU:0"], ["CPU:1"]], (0, 0)),
        ([["CPU:0"], ["GPU:0"]], (0, 1)),
        ([["GPU:0"], ["GPU:1"], ["GPU:0"]], (0, 1, 0)),
        # Replicas in parts share memory only where all their parts do.
        ([["CPU:0", "GPU:0"], ["CPU:0", "GPU:1"]], (0, 1)),
        # CPUs of two workers are reached over the network.
        ([["0 CPU:0"], ["0 CPU:1"], ["1 CPU:0"], ["1 CPU:1"]], (0, 0, 2, 2)),
    ],
    ids=str,
)
def test_which_replicas_share_memory(names, memories):
    def full(name):
        task, found, device = name.rpartition(" ")
        return f"{WORKER}:{task}/device:{device}" if found else f"{HOST}/device:{name}"

    parts = [[full(name) for name in of_replica] for of_replica in names]
    made = devices_lib.make_topology(parts)

    assert memories == made.memories == made.primaries
    assert tuple(full(parts[0]) for parts in names) == made.replica_devices
    assert [i for i, m in enumerate(memories) if m == memories[-1]] == [
        *made.members(memories[-1])
    ]


@pytest.mark.parametrize(
    ("num_logical", "used", "is_shared"),
    [
        ([1, 1, 1], [0, 1, 2], False),
        ([2, 1], [0, 1], True),
        ([2, 1], [0, 2], False),
        ([1, 4], [0, 1], False),
        ([1, 4], [1, 4], True),
        ([2, 2], [1, 1], False),
    ],
)
def test_parts_of_one_gpu_are_known_from_the_configuration(
    monkeypatch, num_logical, used, is_shared
):
    parts = {f"gpu {index}": [object()] * n for index, n in enumerate(num_logical)}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [*parts])
    monkeypatch.setattr(
        tf.config,
        "get_logical_device_configuration",
        lambda gpu: parts[gpu] if len(parts[gpu]) > 1 else None,
    )
    names = [f"{HOST}/device:GPU:{index}" for index in used]

    cpu = f"{HOST}/device:CPU:0"
    assert is_shared == devices_lib.have_virtual_gpus([*names, cpu])
    assert not devices_lib.have_virtual_gpus([cpu])


WHOLE_JOB = "of the whole job is not divisible"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2), f"num_replicas 3 {WHOLE_JOB} by its 2 workers; use a"),
        ((1, 4), "use a multiple, such as 4"),
        ((0, 2), f"num_replicas 0 {WHOLE_JOB}"),
        ((-2, 2), f"num_replicas -2 {WHOLE_JOB}"),
        ((5, 4), "such as 4"),
        ((3, 4, 2), "job times logical_devices_per_replica 2 is not divisible by its"),
        ((2.5, 2), "num_replicas 2.5 must be an integer"),
        ((True, 2), "num_replicas True must be an integer"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments, message):
    with pytest.raises(DeviceError, match=re.escape(message)):
        devices_lib.per_worker(*arguments)
