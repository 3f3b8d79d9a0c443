"""Devices of replicas, and their topology: who shares memory, and who communicates.

A *program* is one linked graph, run by one client. In-graph replication has one program
for all replicas of the job, local or remote; between-graph replication has one in every
worker process, connected by TensorFlow's collective ops (Buchlovsky et al. 2019,
figure 1). The engine takes all facts about placement from here. Groups say who takes
part in the same collectives: a *worker group* has one device of each worker, a *flat
group* one device of each replica of the job, in one process or in several.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator.catalog import MAX_REPLICAS
from replicator.core.validation import format_value, is_integer, listed
from replicator.errors import DeviceError

# Types that TensorFlow's collective ops reduce on GPUs by NCCL. They accept bfloat16
# too, and then fail (the list is a constant in the library). int32 is in host memory.
NCCL_DTYPES = frozenset({tf.float16, tf.float32, tf.float64, tf.int64})
# By their ring.
RING_DTYPES = NCCL_DTYPES | {tf.bfloat16}


def resolve(
    num_replicas: int, devices: Sequence[str] | None, *, distinct: bool
) -> list[str]:
    _check_count(num_replicas)
    if devices is not None:
        return _explicit(num_replicas, devices, distinct=distinct)
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        logical = tf.config.list_logical_devices("GPU")
        if len(logical) < num_replicas:
            raise DeviceError(
                f"{num_replicas} replicas need {num_replicas} GPUs, but there are "
                f"{len(logical)}; use fewer replicas, or devices=['CPU:0', ...]"
            )
        return [_full_name(d.name) for d in logical[:num_replicas]]
    if not distinct:
        return [_full_name("/device:CPU:0")] * num_replicas
    return split_cpu(num_replicas)


def resolve_logical(
    num_replicas: int,
    num_logical_devices: int,
    devices: Sequence[str] | Sequence[Sequence[str]] | None,
) -> list[list[str]]:
    """Returns the full names of the devices of each replica, by logical device."""
    count = check_num_logical(num_logical_devices)
    is_list = isinstance(devices, (list, tuple))
    flat: Any = tf.nest.flatten(devices) if is_list else devices
    if count == 1:
        names = resolve(num_replicas, flat, distinct=False)
        return [[name] for name in names]
    try:
        names = resolve(num_replicas * count, flat, distinct=flat is None)
    except DeviceError as error:
        raise DeviceError(
            f"{num_replicas} replicas of {count} logical devices need "
            f"{num_replicas * count} devices: {error}"
        ) from error
    return [names[r * count : (r + 1) * count] for r in range(num_replicas)]


def check_num_logical(count: Any) -> int:
    if not is_integer(count, least=1, most=MAX_REPLICAS):
        raise DeviceError(
            f"logical_devices_per_replica {format_value(count)} must be an integer of "
            f"at least 1 and at most {MAX_REPLICAS}"
        )
    return count


def split_cpu(num_devices: int) -> list[str]:
    """Splits the CPU into virtual devices unless there are enough already."""
    _check_count(num_devices)
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu) or [None]
    if len(configured) < num_devices:
        try:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
            )
        except RuntimeError as error:
            raise DeviceError(
                f"{num_devices} virtual CPU devices are needed, but TensorFlow has "
                f"already been initialized with {len(configured)}; create the "
                "replicator before the first op, or call "
                "tf.config.set_logical_device_configuration at program start"
            ) from error
    return [_full_name(f"/device:CPU:{i}") for i in range(num_devices)]


def memory(device: str) -> str:
    """The memory of a device; all CPU devices of one process share one."""
    spec = tf.DeviceSpec.from_string(device)
    return str(spec.replace(device_index=0).to_string()) if is_cpu(device) else device


def process(device: str) -> str:
    return device.rpartition("/device:")[0]


def device_type(device: str) -> str:
    return str(tf.DeviceSpec.from_string(device).device_type)


def is_cpu(device: str) -> bool:
    return device_type(device) == "CPU"


def is_gpu(device: str) -> bool:
    return device_type(device) == "GPU"


def first_cpu(device: str) -> str:
    """The first CPU of the process that a device is in."""
    spec = tf.DeviceSpec.from_string(device)
    return str(spec.replace(device_type="CPU", device_index=0).to_string())


def cpu_of(device: str) -> str:
    """The CPU for host work of a device: the first of its process; a CPU itself."""
    return device if is_cpu(device) else first_cpu(device)


def have_virtual_gpus(devices: Sequence[str]) -> bool:
    """Whether two different GPUs of this process are parts of one physical GPU."""
    names = filter(is_gpu, devices)
    logical = {int(tf.DeviceSpec.from_string(name).device_index or 0) for name in names}
    physical = [
        position
        for position, gpu in enumerate(tf.config.get_visible_devices("GPU"))
        for _ in tf.config.get_logical_device_configuration(gpu) or [None]
    ]
    used = [physical[index] for index in logical if index < len(physical)]
    return len(set(used)) < len(used)


def _check_count(num_replicas: Any) -> None:
    if not is_integer(num_replicas, least=1, most=MAX_REPLICAS):
        raise DeviceError(
            f"num_replicas {format_value(num_replicas)} must be an integer from 1 to "
            f"{MAX_REPLICAS}, and so must num_replicas times logical devices"
        )


def _explicit(num_replicas: int, passed: Sequence[str], *, distinct: bool) -> list[str]:
    try:
        devices = [] if isinstance(passed, str) else listed(passed, "devices")
    except TypeError:
        devices = []
    if len(devices) != num_replicas:
        raise DeviceError(
            f"devices {format_value(passed)} must be a list with one device per "
            f"replica, for {num_replicas} replicas; pass names such as ['CPU:0', "
            "'CPU:1']"
        )
    names = [_full_name(device) for device in devices]
    known = {_full_name(d.name) for d in tf.config.list_logical_devices()}
    missing = [d for d, name in zip(devices, names, strict=True) if name not in known]
    if missing:
        raise DeviceError(
            f"device {missing[0]!r} does not exist; this process has "
            f"{', '.join(sorted(name.rpartition('/device:')[2] for name in known))}"
        )
    if distinct and len(set(names)) != num_replicas:
        raise DeviceError(
            f"devices {list(devices)!r} must all be different for this backend"
        )
    return names


def _full_name(device: str) -> str:
    name = device if str(device).startswith("/") else f"/device:{device}"
    try:
        spec = tf.DeviceSpec.from_string(name)
    except (TypeError, ValueError) as error:
        raise DeviceError(
            f"device {format_value(device)} is not a device name; use names such as "
            "'CPU:0' or 'GPU:1'"
        ) from error
    kind, index = _tf_workers.own_address()
    spec = tf.DeviceSpec(job=kind, replica=0, task=index).make_merged_spec(spec)
    return str(spec.to_string())


# Group of the first CPU device of every worker.
CPU_GROUP_KEY = 1
# Groups of a whole job begin here, beyond what stock strategies of the process use.
FLAT_GROUP_KEY = 1 << 24
# Group of the GPU of replica 0 of every worker, for values of variables.
GPU_GROUP_KEY = FLAT_GROUP_KEY - 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """The replicas of one program. Replicas are counted from 0 within the program."""

    devices: tuple[tuple[str, ...], ...]  # Full names, by replica and logical device.
    # By replica, the first replica whose devices read the same memory.
    memories: tuple[int, ...]
    # By replica, the replica whose copy of mirrored variables it uses; a replica that
    # keeps its own copy is its own primary.
    primaries: tuple[int, ...]
    num_replicas: int  # Replicas in the whole job.
    first_replica_id: int = 0  # Id in the job of this program's replica 0.
    num_programs: int = 1  # Programs of the job that run concurrently.
    program_id: int = 0  # Index of this program.
    spans_processes: bool = False  # Whether its replicas are in several processes.
    # Whether some of its GPUs are parts of one physical GPU, which NCCL refuses.
    has_virtual_gpus: bool = False

    @property
    def num_local_replicas(self) -> int:
        return len(self.devices)

    @property
    def num_logical_devices(self) -> int:
        return len(self.devices[0])

    @property
    def replica_devices(self) -> tuple[str, ...]:
        """The first device of each replica, which receives its inputs."""
        return tuple(devices[0] for devices in self.devices)

    @property
    def cpu(self) -> str:
        """The CPU beside replica 0, for host work and values that workers exchange."""
        return cpu_of(self.replica_devices[0])

    @property
    def is_shared(self) -> bool:
        """Whether all replicas of this program use one copy of mirrored variables."""
        return not any(self.primaries)

    @property
    def communicates(self) -> bool:
        """Whether collectives move data from one memory to another."""
        return self.num_programs > 1 or len(set(self.memories)) > 1

    @property
    def has_own_gpus(self) -> bool:
        """Whether every replica has a logical GPU of its own in this process."""
        names = self.replica_devices
        is_distinct = len(set(names)) == len(names)
        return is_distinct and not self.spans_processes and all(map(is_gpu, names))

    def leaders(self, owner: int) -> tuple[int, ...]:
        """By replica, the one through whose device its process sends to an owner."""
        # In one process each memory stands for itself. In several, the memories of each
        # are combined first, in the place that the owner has in its own.
        if not self.spans_processes:
            return self.memories
        names = [process(name) for name in self.replica_devices]
        by_name: dict[str, list[int]] = {}
        for memory in dict.fromkeys(self.memories):
            by_name.setdefault(names[memory], []).append(memory)
        index = by_name[names[owner]].index(self.memories[owner])
        return tuple(by_name[name][index % len(by_name[name])] for name in names)

    def at(self, logical_device: int) -> Topology:
        """The same replicas, with their memories, on one of their logical devices."""
        if self.num_logical_devices == 1:
            return self
        devices = tuple((names[logical_device],) for names in self.devices)
        return dataclasses.replace(self, devices=devices)

    def replica_id(self, local: int) -> int:
        return self.first_replica_id + local

    def logical_device_of(self, device: str) -> int:
        """Index of a device among the logical devices of replica 0; 0 by default."""
        mine = self.devices[0]
        return mine.index(device) if device in mine else 0

    def members(self, memory: int) -> tuple[int, ...]:
        return tuple(r for r, m in enumerate(self.memories) if m == memory)


def make_topology(
    devices: Sequence[Sequence[str]], *, is_mirrored: bool = False, **facts: Any
) -> Topology:
    """Finds out which replicas share memory; if mirrored, each has its own copies."""
    places = [tuple(map(memory, names)) for names in devices]
    memories = tuple(places.index(memory_key) for memory_key in places)
    return Topology(
        devices=tuple(tuple(names) for names in devices),
        memories=memories,
        primaries=tuple(range(len(places))) if is_mirrored else memories,
        spans_processes=len({process(names[0]) for names in devices}) > 1,
        **{"num_replicas": len(places), **facts},
    )


def place_group_key(device: str) -> int:
    """The key of a worker group: devices of one place in all workers."""
    spec = tf.DeviceSpec.from_string(device)
    kind = 0 if is_cpu(device) else 1
    return CPU_GROUP_KEY + 2 * int(spec.device_index or 0) + kind


class Keys:
    """Draws the instance keys of collectives."""

    def __init__(self) -> None:
        self.value = 1  # the next; alike on workers that have run the same program

    def draw(self, count: int) -> int:
        """Draws ``count`` consecutive keys; returns the first."""
        self.value += count
        return self.value - count

    def __next__(self) -> int:
        return self.draw(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The workers of a program's collectives, which have no timeout of their own."""

    num_workers: int  # Worker processes.
    worker_id: int  # Index of this process.
    # Worker ids in the order in which a gather returns their parts.
    order: tuple[int, ...]
    # Instance keys; all workers draw them in the same order.
    keys: Keys = dataclasses.field(default_factory=Keys)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatGroup:
    """All replicas of a job, each on a device of its own."""

    size: int  # Replicas of the job.
    key: int  # The same in all processes.
    keys: Keys  # Instance keys; all processes draw them in the same order.


# By devices: TensorFlow and NCCL keep a group, and its memory, as long as the process.
_FLAT_GROUPS: dict[tuple[int, tuple[str, ...]], FlatGroup] = {}


def flat_group(topology: Topology, group: Group | None) -> FlatGroup:
    """The flat group of a topology, always the same one."""
    key = topology.num_replicas, topology.replica_devices
    if key not in _FLAT_GROUPS:
        _FLAT_GROUPS[key] = FlatGroup(
            size=topology.num_replicas,
            key=FLAT_GROUP_KEY + len(_FLAT_GROUPS),
            keys=Keys() if group is None else group.keys,
        )
    return _FLAT_GROUPS[key]


def per_worker(
    num_replicas: Any, num_workers: int, num_logical_devices: int = 1
) -> int:
    """Divides the replicas of a job evenly over its workers."""
    if not is_integer(num_replicas):
        raise DeviceError(
            f"num_replicas {format_value(num_replicas)} must be an integer"
        )
    share, remainder = divmod(num_replicas * num_logical_devices, num_workers)
    if remainder or share < 1:
        parts = (
            f" times logical_devices_per_replica {num_logical_devices}"
            if num_logical_devices != 1
            else ""
        )
        raise DeviceError(
            f"num_replicas {num_replicas} of the whole job{parts} is not divisible by "
            f"its {num_workers} workers; use a multiple, such as "
            f"{max(share, 1) * num_workers}"
        )
    return share
