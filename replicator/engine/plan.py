"""Plan: how each collective of a step is carried out, decided before linking.

The linker sees every collective of a step at once. Reductions are balanced over owner
devices, largest first, so that no device sums more than its share. Where a transfer
costs more than a copy (between devices with their own memory), small tensors of one
call are fused into buckets; where replicas share memory there is nothing to transfer,
and fusing would only add copies.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import devices as device_lib
from replicator.reducible import wire_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.engine.trace import Collective
    from replicator.topology import Topology

# Below this, the fixed cost of a transfer between devices outweighs the copy into a
# bucket; above, tensors go alone.
FUSE_BELOW_BYTES = 64 * 1024
BUCKET_BYTES = 1024 * 1024
# What the op takes; bfloat16 is not among them.
_NCCL_DTYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Tensors of one collective that travel together.

    Attributes:
      positions: Which tensors of the call.
      num_bytes: Their size on one replica, in the type in which they travel; 0 where
        shapes are unknown.
      owner: Replica whose device combines them.
    """

    positions: tuple[int, ...]
    num_bytes: int
    owner: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CollectivePlan:
    """How one collective runs.

    Attributes:
      collective: The call.
      algorithm: ``add_n`` (sum on an owner device), ``nccl``, ``pairwise`` (minimum,
        maximum), ``pack`` (gather), ``wire`` (broadcast, or nothing to do).
      buckets: Tensors by transfer.
    """

    collective: Collective
    algorithm: str
    buckets: tuple[Bucket, ...]


def make_plan(
    collectives: Sequence[Collective], topology: Topology
) -> tuple[CollectivePlan, ...]:
    """Decides algorithm, buckets and owners for all collectives of a step.

    Args:
      collectives: Calls in order.
      topology: Where the replicas are.

    Returns:
      One plan per collective.
    """
    devices = topology.replica_devices
    fuses = len(set(topology.memories)) > 1
    load = [0] * len(devices)
    plans = []
    for collective in collectives:
        groups = _group(collective, fuse=fuses and collective.kind == "all_reduce")
        sizes = [sum(_num_bytes(collective, p) for p in group) for group in groups]
        owners = dict(_balance(sizes, load))
        plans.append(
            CollectivePlan(
                collective=collective,
                algorithm=_algorithm(collective, devices),
                buckets=tuple(
                    Bucket(positions=group, num_bytes=size, owner=owners[index])
                    for index, (group, size) in enumerate(
                        zip(groups, sizes, strict=True)
                    )
                ),
            )
        )
    return tuple(plans)


def explain(plans: Sequence[CollectivePlan], topology: Topology) -> str:
    """Prints a plan: one line per collective, then the bytes per owner device."""
    if not plans:
        return "no collectives"
    devices = topology.replica_devices
    load = [0] * len(devices)
    lines = []
    for plan in plans:
        collective = plan.collective
        fused = sum(len(b.positions) > 1 for b in plan.buckets)
        total = sum(b.num_bytes for b in plan.buckets)
        for bucket in plan.buckets:
            load[bucket.owner] += bucket.num_bytes
        operation = (
            f"{collective.kind}({collective.op})"
            if collective.op
            else (collective.kind)
        )
        compressed = _compression(collective, topology)
        lines.append(
            f"#{collective.index} {operation}: {len(collective.markers)} tensors, "
            f"{total} bytes per replica, algorithm {plan.algorithm}, "
            f"{len(plan.buckets)} transfers of which {fused} fused{compressed}"
        )
    lines += [
        f"owner {replica_id} ({device}): combines {num_bytes} bytes"
        for replica_id, (device, num_bytes) in enumerate(
            zip(devices, load, strict=True)
        )
    ]
    return "\n".join(lines)


def _compression(collective: Collective, topology: Topology) -> str:
    if collective.wire_dtype is None:
        return ""
    if len(set(topology.memories)) == 1 and topology.num_programs == 1:
        return ", in one memory: nothing travels, so nothing is compressed"
    return f", {collective.wire_dtype.name} between memories"


def _algorithm(collective: Collective, devices: Sequence[str]) -> str:
    if collective.num_replicas == 1 and collective.kind != "all_gather":
        return "wire"
    if collective.kind == "all_gather":
        return "pack"
    if collective.kind == "broadcast":
        return "wire"
    if collective.op in ("min", "max"):
        return "pairwise"
    distinct_gpus = len(set(devices)) == len(devices) and all(
        device_lib.is_gpu(device) for device in devices
    )
    has_kernel = all(
        wire_of(dtype, collective.wire_dtype) in _NCCL_DTYPES
        for dtype in collective.dtypes
    )
    return "nccl" if distinct_gpus and has_kernel else "add_n"


def _group(collective: Collective, *, fuse: bool) -> list[tuple[int, ...]]:
    """Puts small tensors of one type into buckets, in the order of the call."""
    groups: list[tuple[int, ...]] = []
    is_open: dict[Any, tuple[list[int], int]] = {}
    for position in range(len(collective.markers)):
        size = _num_bytes(collective, position)
        if not fuse or not 0 < size < FUSE_BELOW_BYTES:
            groups.append((position,))
            continue
        dtype = collective.dtypes[position]
        members, total = is_open.pop(dtype, ([], 0))
        if members and total + size > BUCKET_BYTES:
            groups.append(tuple(members))
            members, total = [], 0
        is_open[dtype] = ([*members, position], total + size)
    return groups + [tuple(members) for members, _ in is_open.values()]


def _balance(sizes: Sequence[int], load: list[int]) -> list[tuple[int, int]]:
    """Gives each bucket, largest first, to the owner with the least to do."""
    owners = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        owner = min(range(len(load)), key=lambda r: (load[r], r))
        load[owner] += max(sizes[index], 1)
        owners.append((index, owner))
    return owners


def _num_bytes(collective: Collective, position: int) -> int:
    shape = collective.shapes[position]
    if not shape.is_fully_defined():
        return 0
    wire = wire_of(collective.dtypes[position], collective.wire_dtype)
    return int(shape.num_elements() * wire.size)
