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
from replicator.placement.worker_group import CPU_GROUP_KEY
from replicator.variables.copy_values import outside_value, replica_value
from replicator.variables.kinds import Kind, is_averaged, is_summed

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
        shares = [self._share(entry) for entry in transferred]
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

    def _share(self, entry: Entry) -> tf.Tensor:
        """What this worker adds: its sum, or the value of replica 0 if that is here."""
        copies = [tf.identity(copy) for copy in entry.copies]
        if is_averaged(entry.variable) or is_summed(entry.variable):
            return tf.add_n(copies)
        is_first = self._topology.program_id == 0
        return copies[0] if is_first else tf.zeros_like(copies[0])

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
            return outside_value(entry)
        # The fold is its own inverse: this is the state of replica 0.
        topology = self._topology
        return replica_value(
            entry.copies[0].value(),
            Kind.RANDOM,
            topology.first_replica_id,
            topology.num_replicas,
        )

    def _reduce(self, value: tf.Tensor) -> tf.Tensor:
        key = self._keys[value.dtype]
        return reduce(value, self._topology, self._group, key)


def add_up(
    values: Sequence[tf.Tensor], topology: Topology, group: Group
) -> list[tf.Tensor]:
    """Sums values over all workers, now.

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
    """Gives variables the values that they have on worker 0, on all workers.

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
    """Sends the value of a variable from one worker to all others, now.

    Args:
      variable: Of static shape; elsewhere than on the source its value is not read.
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


def reduce(value: tf.Tensor, topology: Topology, group: Group, key: int) -> tf.Tensor:
    """Emits the sum of one tensor over all workers; ``key`` is from ``group.keys``."""
    with tf.device(cpu(topology)):
        return tf.raw_ops.CollectiveReduceV2(
            input=value,
            group_size=group.num_workers,
            group_key=CPU_GROUP_KEY,
            instance_key=key,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="ring",
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
    """Where values that workers exchange are: the CPU of replica 0."""
    return device_lib.cpu_of(topology.replica_devices[0])
