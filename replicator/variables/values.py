"""Values of variables: what users read between steps, and what workers exchange.

A replica-local variable reads as the mean, the sum or replica 0's of its copies, as its
``aggregation`` says (``kinds``). The copies of a replica are sent as one vector per
type, so that R replicas need R - 1 transfers per type, whatever the number of
variables; between the processes of one graph it is one per process, which adds those of
its replicas first, and between workers one reduction per type. All are ops for
``tf.function``s around the linked step, in which ``cross_worker`` emits nodes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import handles as _tf_handles
from replicator.collectives import differentiable
from replicator.collectives.kind import (
    Transfer,
    num_bytes,
    pack,
    positions_by_dtype,
    unpack,
)
from replicator.core import devices as devices_lib
from replicator.core.devices import NCCL_DTYPES
from replicator.core.step import traced_once
from replicator.core.topology import CPU_GROUP_KEY, GPU_GROUP_KEY
from replicator.variables.kinds import Kind, is_averaged, is_summed, replica_value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.collectives.differentiable import Wire
    from replicator.core.topology import Group, Topology
    from replicator.variables.table import Entry


def combine(variable: Any, kind: Kind, copies: Sequence[tf.Tensor]) -> tf.Tensor:
    """Combines the copies of all replicas: sum, mean, or that of replica 0."""
    if not _is_from_all(variable, kind):
        return copies[0]
    return _of_total(variable, tf.add_n(list(map(to_number, copies))), len(copies))


class OutsideValues:
    """The values of some variables, as ops of the graph that is being built."""

    def __init__(
        self, entries: Sequence[Entry], topology: Topology, group: Group | None = None
    ) -> None:
        self._entries = tuple(entries)
        self._topology = topology
        self._group = group
        self._keys: dict[tf.DType, int] = {}
        for entry in self._entries:
            if group is not None and _is_transferred(entry):
                wire = differentiable.wire_of_sum(_number(entry.variable.dtype)).dtype
                # Drawn once: a function that is traced again uses the same.
                self._keys.setdefault(wire, next(group.keys))

    @property
    def are_sent(self) -> bool:
        """Whether reading them is communication with other workers."""
        return bool(self._keys)

    @property
    def transfers(self) -> list[Transfer]:
        """What is sent between memories where one program has all replicas."""
        return [
            Transfer(
                source=replicas[0],
                target=0,
                num_bytes=sum(
                    num_bytes(self._entries[place].variable.shape, first.variable.dtype)
                    for place in places
                ),
            )
            for places in _alike(self._entries)
            for first in [self._entries[places[0]]]
            for replicas in _near(first)
            if 0 not in replicas
        ]

    def read(self) -> list[tf.Tensor]:
        """Emits the value of each entry."""
        # Here sums, where they are sent to be added to those of other workers.
        found = _combined(self._entries, is_sent=self._group is not None)
        if self._group is not None:
            found = self._over_workers(found, self._group)
        return [
            self._of_first(entry) if value is None else value
            for entry, value in zip(self._entries, found, strict=True)
        ]

    def _over_workers(
        self, totals: Sequence[tf.Tensor | None], group: Group
    ) -> list[tf.Tensor | None]:
        """Emits one reduction per type; None where a worker knows the value."""
        is_sent = list(map(_is_transferred, self._entries))
        shares = [
            self._share_of_first(entry) if total is None else total
            for entry, total, sends in zip(self._entries, totals, is_sent, strict=True)
            if sends
        ]
        received = iter(
            _packed(
                [to_number(share) for share in shares],
                lambda value: reduce(
                    value,
                    self._topology,
                    group,
                    self._keys[value.dtype],
                    device=reduction_device(self._topology, value.dtype),
                ),
                differentiable.wire_of_sum,
            )
        )
        return [
            self._of_job(entry, next(received)) if sends else None
            for entry, sends in zip(self._entries, is_sent, strict=True)
        ]

    def _of_job(self, entry: Entry, received: tf.Tensor) -> tf.Tensor:
        """The value of a variable, from the sum over all workers."""
        if not _is_from_all(entry.variable, entry.kind):
            return tf.cast(received, entry.variable.dtype)
        with tf.device(_sum_device(entry)):
            return _of_total(entry.variable, received, self._topology.num_replicas)

    def _share_of_first(self, entry: Entry) -> tf.Tensor:
        """What this worker adds where only the value of replica 0 of the job counts."""
        value = entry.copies[0].value()
        return value if self._topology.program_id == 0 else tf.zeros_like(value)

    def _of_first(self, entry: Entry) -> tf.Tensor:
        value = entry.copies[0].value()
        if entry.kind is not Kind.RANDOM:
            return value
        # The fold is its own inverse: this is the state of replica 0 of the job, which
        # need not be sent.
        topology = self._topology
        return replica_value(
            value, Kind.RANDOM, topology.first_replica_id, topology.num_replicas
        )


def reduction_device(topology: Topology, dtype: tf.DType) -> str:
    """Where values of a type are summed over workers: on GPUs if NCCL can do it."""
    device = topology.replica_devices[0]
    is_refused = topology.has_virtual_gpus or dtype not in NCCL_DTYPES
    if devices_lib.is_gpu(device) and not is_refused:
        return device
    return cpu(topology)


def _is_from_all(variable: Any, kind: Kind) -> bool:
    """Whether the copies of all replicas count, and not that of replica 0 alone."""
    return kind is Kind.LOCAL and (is_averaged(variable) or is_summed(variable))


def _is_transferred(entry: Entry) -> bool:
    return entry.kind is Kind.LOCAL and entry.variable.dtype != tf.string


def _of_total(variable: Any, total: tf.Tensor, num_replicas: int) -> tf.Tensor:
    """The sum over replicas, or their mean."""
    if is_summed(variable):
        return tf.cast(total, variable.dtype)
    mean = total / tf.constant(num_replicas, total.dtype)
    return tf.cast(mean, variable.dtype)


def _number(dtype: tf.DType) -> tf.DType:
    """In what copies are added: of float16 the sum may overflow, and not the mean."""
    return {tf.bool: tf.int32, tf.float16: tf.float32}.get(dtype, dtype)


def to_number(value: tf.Tensor) -> tf.Tensor:
    """A copy in the type in which copies are added."""
    return tf.cast(value, _number(value.dtype))


def _combined(entries: Sequence[Entry], *, is_sent: bool) -> list[tf.Tensor | None]:
    """Emits what the copies of each variable amount to."""
    found: list[tf.Tensor | None] = [None] * len(entries)
    for places in _alike(entries):
        members = [entries[place] for place in places]
        values = _combine_alike(members, is_sent=is_sent)
        for place, value in zip(places, values, strict=True):
            found[place] = value
    return found


def _alike(entries: Sequence[Entry]) -> list[list[int]]:
    """Which variables are combined as one vector."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, entry in enumerate(entries):
        if _is_from_all(entry.variable, entry.kind):
            is_static = entry.variable.shape.is_fully_defined()
            devices = tuple(copy.device for copy in entry.copies)
            alone = -1 if is_static else place
            what = entry.variable.dtype, is_summed(entry.variable)
            key = what, _sum_device(entry), devices, alone
            groups.setdefault(key, []).append(place)
    return list(groups.values())


def _combine_alike(entries: Sequence[Entry], *, is_sent: bool) -> list[tf.Tensor]:
    """Combines the copies of variables of one type that lie on the same devices."""
    first = entries[0]
    vectors = []
    # Calls: the end of each is one node here, where the end of each read would be one
    # for which the caller's device waits. Of replicas on one device, one function.
    read = functools.cache(lambda _: _make_read(entries))
    for replica, copy in enumerate(first.copies):
        with tf.device(copy.device):
            if len(entries) == 1:
                vectors.append(to_number(copy.value()))
            else:
                of_replica = [_tf_handles.of(e.copies[replica]) for e in entries]
                vectors.append(read(copy.device)(*of_replica))
    added = []
    for replicas in _near(first):
        with tf.device(_kernel_device(first, first.copies[replicas[0]].device)):
            of_process = [vectors[replica] for replica in replicas]
            added.append(tf.add_n(of_process) if len(replicas) > 1 else of_process[0])
    with tf.device(_sum_device(first)):
        total = tf.add_n(added)
        if not is_sent:
            total = _of_total(first.variable, total, len(first.copies))
        if len(entries) == 1:
            return [total]
        return unpack(total, [entry.variable.shape for entry in entries])


def _make_read(entries: Sequence[Entry]) -> Callable[..., tf.Tensor]:
    """A function of the handles of one replica's copies, which reads them as one."""
    variables = [entry.variable for entry in entries]

    def read(*handles: tf.Tensor) -> tf.Tensor:
        values = []
        for handle, variable in zip(handles, variables, strict=True):
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
            value.set_shape(variable.shape)
            values.append(value)
        return to_number(pack(values))

    signature = [tf.TensorSpec([], tf.resource)] * len(variables)
    return traced_once(read, input_signature=signature)


def _near(entry: Entry) -> list[list[int]]:
    """Replicas whose copies are added before they are sent: of another process."""
    near: dict[str, list[int]] = {}
    for replica, copy in enumerate(entry.copies):
        near.setdefault(devices_lib.process(copy.device), []).append(replica)
    own = near.pop(devices_lib.process(_sum_device(entry)), [])
    return [[replica] for replica in own] + list(near.values())


def _sum_device(entry: Entry) -> str:
    """Where copies are added: with the user's variable."""
    return _kernel_device(entry, entry.variable.device)


def _kernel_device(entry: Entry, device: str) -> str:
    """A device, if it has the kernels that add copies, or else the CPU beside it."""
    is_kernel_there = entry.variable.dtype.is_floating
    return device if is_kernel_there else devices_lib.cpu_of(device)


def add_up(
    values: Sequence[tf.Tensor], topology: Topology, group: Group
) -> list[tf.Tensor]:
    """Sums values over all workers, eagerly."""
    return _packed(
        values,
        lambda value: reduce(value, topology, group, next(group.keys)),
        differentiable.wire_of_sum,
    )


def broadcast_initial_values(
    variables: Sequence[Any], topology: Topology, group: Group
) -> None:
    """Broadcasts the initial values of variables from worker 0 to all workers."""
    movable = [v for v in variables if v.dtype != tf.string]
    values = list(map(tf.convert_to_tensor, movable))
    received = _broadcast(values, 0, topology, group)
    if group.worker_id:
        for variable, value in zip(movable, received, strict=True):
            # Not where it is equal: that would reset what a checkpoint has restored.
            if variable.numpy().tobytes() != value.numpy().tobytes():
                variable.assign(value)


def move(variable: Any, source: int, topology: Topology, group: Group) -> tf.Tensor:
    """Sends the value of a variable from one worker to all others, eagerly."""
    value = tf.zeros(variable.shape, variable.dtype)
    if source == group.worker_id:
        value = tf.convert_to_tensor(variable)
    (received,) = _broadcast([value], source, topology, group)
    return received


def _broadcast(
    values: Sequence[tf.Tensor], source: int, topology: Topology, group: Group
) -> list[tf.Tensor]:
    return _packed(
        values,
        lambda value: _send(value, source, topology, group),
        lambda dtype: differentiable.wire_of_move(dtype, "broadcast"),
    )


def _send(value: tf.Tensor, source: int, topology: Topology, group: Group) -> tf.Tensor:
    common = {
        "group_size": group.num_workers,
        "group_key": CPU_GROUP_KEY,
        "instance_key": next(group.keys),
        "communication_hint": "ring",
    }
    with tf.device(cpu(topology)):
        if group.worker_id == source:
            return tf.raw_ops.CollectiveBcastSendV2(input=value, **common)
        return tf.raw_ops.CollectiveBcastRecvV2(
            T=value.dtype, shape=tf.shape(value), **common
        )


def reduce(
    value: tf.Tensor,
    topology: Topology,
    group: Group,
    key: int,
    device: str | None = None,
) -> tf.Tensor:
    """Emits the sum of one tensor over all workers."""
    place = cpu(topology) if device is None else device
    is_gpu = devices_lib.is_gpu(place)
    with tf.device(place):
        return tf.raw_ops.CollectiveReduceV2(
            input=value,
            group_size=group.num_workers,
            group_key=GPU_GROUP_KEY if is_gpu else CPU_GROUP_KEY,
            instance_key=key,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="nccl" if is_gpu else "ring",
        )


def _packed(
    values: Sequence[tf.Tensor],
    transfer: Callable[[tf.Tensor], tf.Tensor],
    wire_of: Callable[[tf.DType], Wire],
) -> list[tf.Tensor]:
    """Transfers values as one vector per type that is sent."""
    wires = [wire_of(value.dtype) for value in values]
    wide = [wire.convert(value) for wire, value in zip(wires, values, strict=True)]
    results: dict[int, tf.Tensor] = {}
    for places in positions_by_dtype(wide).values():
        flat = [tf.reshape(wide[place], [-1]) for place in places]
        # One element more: TensorFlow may crash on vectors without elements.
        flat.append(tf.zeros([1], flat[0].dtype))
        received = transfer(tf.concat(flat, axis=0))
        parts = tf.split(received, [tf.size(part) for part in flat])[:-1]
        for place, part in zip(places, parts, strict=True):
            shaped = tf.reshape(part, tf.shape(wide[place]))
            results[place] = wires[place].restore(shaped, values[place].dtype)
    return [results[place] for place in range(len(values))]


def cpu(topology: Topology) -> str:
    """The device of values that workers exchange: the CPU of replica 0."""
    return devices_lib.cpu_of(topology.replica_devices[0])
