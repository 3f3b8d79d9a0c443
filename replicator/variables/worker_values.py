"""Values of variables between workers: sums, and what one worker sends to all.

Ops for ``tf.function``s around the linked step, where ``cross_worker`` emits nodes
inside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import wire_types
from replicator.collectives.buckets import positions_by_dtype
from replicator.placement import devices as device_lib
from replicator.placement.worker_group import CPU_GROUP_KEY, GPU_GROUP_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.collectives.wire_types import Wire
    from replicator.placement.topology import Topology
    from replicator.placement.worker_group import Group


def add_up(
    values: Sequence[tf.Tensor], topology: Topology, group: Group
) -> list[tf.Tensor]:
    """Sums values over all workers, eagerly."""
    return packed(
        values,
        lambda value: reduce(value, topology, group, next(group.keys)),
        wire_types.added,
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
    return packed(
        values,
        lambda value: _send(value, source, topology, group),
        lambda dtype: wire_types.moved(dtype, "broadcast"),
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


def packed(
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
    return device_lib.cpu_of(topology.replica_devices[0])
