"""Values of variables over workers: what they start from, what they read as outside.

Ops for ``tf.function``s around the linked step, where ``cross_worker`` emits nodes
inside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import wire_types
from replicator.collectives.buckets import positions_by_dtype
from replicator.placement import devices as device_lib
from replicator.placement.collective_types import NCCL_DTYPES
from replicator.placement.worker_group import CPU_GROUP_KEY, GPU_GROUP_KEY
from replicator.variables import outside_values
from replicator.variables.copy_values import replica_value
from replicator.variables.kinds import Kind, is_averaged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.collectives.wire_types import Wire
    from replicator.placement.topology import Topology
    from replicator.placement.worker_group import Group
    from replicator.variables.table import Entry


class OutsideValues:
    """What replica-local and random variables read as outside, over all workers."""

    def __init__(
        self, entries: Sequence[Entry], topology: Topology, group: Group
    ) -> None:
        self._entries = tuple(entries)
        self._topology = topology
        self._group = group
        self._keys: dict[tf.DType, int] = {}
        for entry in self._entries:
            if self._is_transferred(entry):
                wire = wire_types.added(_number(entry.variable.dtype)).dtype
                # Drawn once: a function that is traced again uses the same.
                self._keys.setdefault(wire, next(group.keys))

    def read(self) -> list[tf.Tensor]:
        """Emits one reduction per type; returns a value for each entry."""
        transferred = [entry for entry in self._entries if self._is_transferred(entry)]
        shares = [
            self._of_first(entry) if share is None else share
            for entry, share in zip(
                transferred, outside_values.sums(transferred), strict=True
            )
        ]
        totals = iter(
            _packed(
                [_to_number(share) for share in shares],
                self._reduce,
                wire_types.added,
            )
        )
        return [
            self._of_total(entry, next(totals))
            if self._is_transferred(entry)
            else self._local(entry)
            for entry in self._entries
        ]

    def _of_first(self, entry: Entry) -> tf.Tensor:
        """What this worker adds where only the value of replica 0 of the job counts."""
        value = entry.copies[0].value()
        return value if self._topology.program_id == 0 else tf.zeros_like(value)

    def _is_transferred(self, entry: Entry) -> bool:
        dtype = entry.variable.dtype
        return entry.kind is Kind.LOCAL and dtype != tf.string

    def _of_total(self, entry: Entry, total: tf.Tensor) -> tf.Tensor:
        value = tf.cast(total, entry.variable.dtype)
        if not is_averaged(entry.variable):
            return value
        return value / tf.cast(self._topology.num_replicas, value.dtype)

    def _local(self, entry: Entry) -> tf.Tensor:
        if entry.kind is not Kind.RANDOM:
            return entry.copies[0].value()
        # The fold is its own inverse: this is the state of replica 0.
        topology = self._topology
        return replica_value(
            entry.copies[0].value(),
            Kind.RANDOM,
            topology.first_replica_id,
            topology.num_replicas,
        )

    def _reduce(self, value: tf.Tensor) -> tf.Tensor:
        return reduce(
            value,
            self._topology,
            self._group,
            self._keys[value.dtype],
            device=_near(self._topology, value.dtype),
        )


def _near(topology: Topology, dtype: tf.DType) -> str:
    """Where values of a type are summed over workers: on GPUs if NCCL can do it."""
    device = topology.replica_devices[0]
    is_refused = topology.has_virtual_gpus or dtype not in NCCL_DTYPES
    return device if device_lib.is_gpu(device) and not is_refused else cpu(topology)


def add_up(
    values: Sequence[tf.Tensor], topology: Topology, group: Group
) -> list[tf.Tensor]:
    """Sums values over all workers, eagerly.

    Args:
      values: Numbers, in the same order on all workers, of the same shapes and types.
      topology: Where the replicas of this program are.
      group: The workers.
    """
    return _packed(
        values,
        lambda value: reduce(value, topology, group, next(group.keys)),
        wire_types.added,
    )


def broadcast_initial_values(
    variables: Sequence[Any], topology: Topology, group: Group
) -> None:
    """Broadcasts the initial values of variables from worker 0 to all workers.

    Args:
      variables: In the same order on all workers, of the same shapes and types.
      topology: Where the replicas of this program are.
      group: The workers.
    """
    movable = [v for v in variables if v.dtype != tf.string]
    values = [tf.convert_to_tensor(v) for v in movable]
    received = _packed(
        values,
        lambda value: _send(value, 0, topology, group),
        lambda dtype: wire_types.moved(dtype, "broadcast"),
    )
    if group.worker_id:
        for variable, value in zip(movable, received, strict=True):
            variable.assign(value)


def move(variable: Any, source: int, topology: Topology, group: Group) -> tf.Tensor:
    """Sends the value of a variable from one worker to all others, eagerly.

    Args:
      variable: Of static shape; its value is read on the source only.
      source: Worker id of the source.
      topology: Where the replicas of this program are.
      group: The workers.

    Returns:
      The source's value.
    """
    wire = wire_types.moved(variable.dtype, "broadcast")
    value = tf.zeros(variable.shape, variable.dtype)
    if source == group.worker_id:
        value = tf.convert_to_tensor(variable)
    sent = _send(wire.convert(value), source, topology, group)
    return wire.restore(sent, variable.dtype)


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
    """Emits the sum of one tensor over all workers.

    Args:
      value: The tensor.
      topology: Where the replicas of this program are.
      group: The workers.
      key: From ``group.keys``.
      device: Of this worker's value; by default its CPU.
    """
    place = cpu(topology) if device is None else device
    is_gpu = device_lib.is_gpu(place)
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


def _number(dtype: tf.DType) -> tf.DType:
    return tf.int32 if dtype == tf.bool else dtype


def _to_number(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.int32) if value.dtype == tf.bool else value


def cpu(topology: Topology) -> str:
    """The device of values that workers exchange: the CPU of replica 0."""
    return device_lib.cpu_of(topology.replica_devices[0])
