"""Plan: how each collective of a step is carried out, decided before linking.

The linker has all collectives of a step at once. Reductions are balanced over owner
devices, largest first, so that no device sums more than its share. If a transfer
costs more than a copy (between devices with separate memories, and more so between
worker processes), small tensors of one call are fused into buckets; if replicas
share memory, nothing is transferred, and fusing would only add copies.

Between workers, processes and GPUs, transfers are ordered as a backward pass produces
their operands: by distance from the inputs of the step. All workers then have the same
order, and the first transfers overlap with the rest of the computation. Between GPUs,
where a copy into a bucket costs less than the start of a reduction, large tensors share
buckets too, and buckets become smaller towards the end (``transport.fill``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any

from replicator._tf.distribute import GRADIENT_SCOPE
from replicator.collectives import transport
from replicator.collectives.kinds import BROADCAST, GATHER, NOTHING
from replicator.core import context, devices
from replicator.engine.body import Body, before_of, producer
from replicator.engine.liveness import REMOTE, Liveness
from replicator.errors import OptimizerOptionError

if TYPE_CHECKING:
    from typing import TypeAlias

    import tensorflow as tf

    from replicator.collectives.kinds import Collective, Transfer
    from replicator.engine.trace import TracedStep
    from replicator.variables.table import Owner

    Fill: TypeAlias = Callable[
        [Sequence[Hashable], Sequence[int]], list[tuple[int, ...]]
    ]


# Below this, the fixed cost of a transfer between devices outweighs the copy into a
# bucket; above, tensors go alone.
FUSE_BELOW_BYTES = 64 * 1024
BUCKET_BYTES = 1024 * 1024
# The same between worker processes, where a transfer takes a millisecond at least.
FUSE_BETWEEN_WORKERS_BELOW_BYTES = 1024 * 1024
WORKER_BUCKET_BYTES = 2 * 1024 * 1024
# And between the processes of one graph, where all go through the client's runtime.
FUSE_BETWEEN_PROCESSES_BELOW_BYTES = 4 * 1024 * 1024
PROCESS_BUCKET_BYTES = 8 * 1024 * 1024
# And between GPUs: a reduction takes some 30 us to start, in which 4 MB could be sent,
# and the last one hides behind nothing.
LEAST_GPU_BUCKET_BYTES = 1024 * 1024
MOST_GPU_BUCKET_BYTES = 25 * 1024 * 1024
# Algorithms by which each replica takes part on its own device.
FLAT = ("nccl", "ring")
# Of these, those whose ops wait for the start of the one before, between processes.
BY_START = ("nccl",)
_WAYS = {GATHER: "ring", BROADCAST: "tree"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Tensors of one collective that are sent together."""

    positions: tuple[int, ...]  # Which tensors of the call.
    # Their size on one replica, in the type in which they are sent; 0 where shapes are
    # unknown.
    num_bytes: int
    owner: int  # Replica whose device combines them.
    logical_device: int = 0  # Which of its devices: where the operands are computed.
    is_for_owner: bool = False  # Whether nobody else needs the results.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CollectivePlan:
    collective: Collective  # The call.
    # ``add_n`` (sum on an owner device), ``nccl`` or ``ring`` (one op on each device,
    # over all replicas of the job), ``pairwise`` (minimum, maximum), ``pack`` (gather),
    # ``concat`` (joined rows), ``parts`` (each part on the device of its replica),
    # ``wire`` (a replica reads what another one has, or there is nothing to do).
    algorithm: str
    buckets: tuple[Bucket, ...]  # Tensors by transfer.


def make_plan(
    collectives: Sequence[Collective],
    topology: devices.Topology,
    depths: Mapping[str, int] | None = None,
    needed_by: Mapping[str, tuple[int, ...]] | None = None,
    logical_devices: Mapping[str, int] | None = None,
    owned: Mapping[str, Owner] | None = None,
) -> tuple[CollectivePlan, ...]:
    # Where nothing is sent, tensors go alone.
    fill = _filling(topology) if topology.communicates else None
    loads: dict[int, list[int]] = {}
    plans = []
    for call in collectives:
        algorithm = "wire"
        if call.num_replicas > 1:
            algorithm = call.kind.algorithm(call, topology)
        # Where all get all, what has an owner need not be sent apart.
        needed, kept = ({}, {}) if algorithm in FLAT else (needed_by or {}, owned or {})
        targets: list[tuple[int, int | None, Owner | None]] = []
        for operand, marker in zip(call.operands, call.markers, strict=True):
            logical_device = (logical_devices or {}).get(operand, 0)
            # One algorithm per call: what a replica has on its host goes through its
            # GPU.
            if logical_device and (
                topology.at(logical_device).has_own_gpus != topology.has_own_gpus
            ):
                logical_device = 0
            owner, replicas = kept.get(marker), needed.get(marker, ())
            only = replicas[0] if len(replicas) == 1 else None
            targets.append(
                (logical_device, only if owner is None else owner.primary, owner)
            )
        order = list(range(len(call.markers)))
        if depths is not None:
            # Gradients of equal depth: a backward pass comes to later variables first.
            depth = [depths[operand] for operand in call.operands]
            order = sorted(order, key=lambda p: (depth[p], -p))
        sizes = [
            transport.num_bytes(shape, call.kind.sent_dtype(dtype))
            for shape, dtype in zip(call.shapes, call.dtypes, strict=True)
        ]
        groups: list[tuple[int, ...]] = [(position,) for position in order]
        if fill is not None and call.kind.is_fused:
            keys = [(call.dtypes[p], targets[p]) for p in order]
            filled = fill(keys, [sizes[p] for p in order])
            groups = [tuple(order[index] for index in bucket) for bucket in filled]
        totals = {group: sum(sizes[p] for p in group) for group in groups}
        buckets = {}
        # Each bucket, largest first, goes to its preferred or the least loaded owner.
        for group in sorted(groups, key=totals.__getitem__, reverse=True):
            logical_device, preferred, _ = targets[group[0]]
            load = loads.setdefault(logical_device, [0] * topology.num_local_replicas)
            combines = load.index(min(load)) if preferred is None else preferred
            load[combines] += max(totals[group], 1)
            buckets[group] = Bucket(
                positions=group,
                num_bytes=totals[group],
                owner=combines,
                logical_device=logical_device,
                is_for_owner=preferred is not None,
            )
        of_algorithm = tuple(buckets[group] for group in groups)
        plans.append(
            CollectivePlan(collective=call, algorithm=algorithm, buckets=of_algorithm)
        )
    return tuple(plans)


def explain(plans: Sequence[CollectivePlan], topology: devices.Topology) -> str:
    """Describes a plan: one line per collective, then what each device has to do."""
    if not plans:
        return "no collectives"
    load: dict[tuple[int, int], int] = {}
    lines, on_all = [], []
    for plan in plans:
        collective = plan.collective
        fused = sum(len(b.positions) > 1 for b in plan.buckets)
        total = sum(b.num_bytes for b in plan.buckets)
        for bucket in plan.buckets:
            if plan.algorithm in FLAT:
                on_all.append(bucket.num_bytes)
                continue
            owner = bucket.logical_device, bucket.owner
            load[owner] = load.get(owner, 0) + bucket.num_bytes
        num_kept = sum(bucket.is_for_owner for bucket in plan.buckets)
        kept = f"; {num_kept} for their owners alone" if num_kept else ""
        compressed = _compression(collective, topology)
        if collective.needed_if is not None:
            compressed += ", in calls that update"
        lines.append(
            f"#{collective.index} {collective.kind}: "
            f"{len(collective.markers)} tensors, {total} bytes per replica, "
            f"algorithm {plan.algorithm}, "
            f"{len(plan.buckets)} transfers of which {fused} fused{compressed}"
            f"{_between_workers(plan, topology)}"
            f"{kept}"
        )
    if on_all:
        lines.append(
            f"each device starts {len(on_all)} reductions in a step, of {on_all[0]} "
            f"bytes first and {on_all[-1]} bytes last"
        )
    lines += [
        f"owner {replica} ({topology.devices[replica][logical_device]}): "
        f"combines {load.get((logical_device, replica), 0)} bytes"
        for logical_device in sorted({0, *(device for device, _ in load)})
        for replica in range(topology.num_local_replicas)
    ]
    return "\n".join(lines)


def _between_workers(plan: CollectivePlan, topology: devices.Topology) -> str:
    num_workers = topology.num_programs
    if num_workers == 1:
        return ""
    if plan.algorithm in FLAT:
        return f" over all replicas of {num_workers} workers"
    kind = plan.collective.kind
    costs = [kind.between_workers(b.num_bytes, topology) for b in plan.buckets]
    op, total = costs[0].op, sum(cost.num_bytes for cost in costs)
    if op == NOTHING:
        return f"; nothing over {num_workers} workers"
    owners = {topology.devices[b.owner][b.logical_device] for b in plan.buckets}
    is_nccl = all(map(devices.is_gpu, owners))
    way = _WAYS.get(op, "NCCL" if is_nccl else "ring")
    return (
        f"; then {op} over {num_workers} workers ({way}), {round(total)} bytes in all"
    )


def _compression(collective: Collective, topology: devices.Topology) -> str:
    sent = {collective.kind.sent_dtype(dtype) for dtype in collective.dtypes}
    narrow = sorted(dtype.name for dtype in sent - set(collective.dtypes))
    if not narrow:
        return ""
    if len(set(topology.memories)) == 1 and topology.num_programs == 1:
        return ", in one memory: nothing is sent, so nothing is compressed"
    return f", {', '.join(narrow)} between memories"


def _filling(topology: devices.Topology) -> Fill:
    """How tensors of one call are joined where the replicas are."""
    if topology.has_own_gpus:
        return functools.partial(
            transport.fill,
            limit=MOST_GPU_BUCKET_BYTES,
            least=LEAST_GPU_BUCKET_BYTES,
            alone_from=MOST_GPU_BUCKET_BYTES,
        )
    limit, alone_from = BUCKET_BYTES, FUSE_BELOW_BYTES
    if topology.num_programs > 1:
        limit, alone_from = WORKER_BUCKET_BYTES, FUSE_BETWEEN_WORKERS_BELOW_BYTES
    elif topology.spans_processes:
        limit, alone_from = PROCESS_BUCKET_BYTES, FUSE_BETWEEN_PROCESSES_BELOW_BYTES
    return functools.partial(transport.fill, limit=limit, alone_from=alone_from)


# Users place some ops and variables; the placement of all others follows: a gradient
# runs on the device of its forward op, an op that accesses a variable on that of the
# variable, any other on that of its inputs. This is decided on the traced graph, in
# which gradients still have the names of their forward ops.


def place(traced: TracedStep, topology: devices.Topology) -> None:
    """Gives the nodes of a traced graph their logical devices, in place."""
    nodes = traced.graph_def.node
    _bypass_tuples(nodes)
    # Before the optimizer runs, which renames gradients, and merges only nodes of one
    # device: it has to know them. What nobody placed is placed here, too,
    # since TensorFlow would put it on the first device, and send activations there and
    # back. Devices are those of no replica yet: copies get theirs from the topology.
    by_user = {
        node.name: index
        for node in nodes
        if (index := context.logical_index(node.device)) is not None
    }
    handles = {
        name: topology.logical_device_of(variable.device)
        for name, variable in traced.variables.items()
    }
    in_scope: dict[str, set[int]] = {}
    for name, index in by_user.items():
        for scope in _scopes(name):
            in_scope.setdefault(scope, set()).add(index)
    assigned = dict(by_user)
    for node in nodes:  # in the order of their making
        names = [producer(text) for text in node.input if not text.startswith("^")]
        known = [handles[name] for name in names if name in handles][:1]
        if not known and node.name.startswith(GRADIENT_SCOPE):
            # What flows back comes from a later device; the values of the forward pass
            # tell where this op's own forward op ran.
            known = _forward_devices(node.name, assigned, in_scope)
            known = known or [by_user[name] for name in names if name in by_user]
        known = known or [assigned[name] for name in names if name in assigned]
        if known and node.op != "Placeholder" and not node.device:
            assigned[node.name] = max(known)
    _follow_consumers(nodes, assigned)
    for node in nodes:
        if assigned.get(node.name) and not node.device:
            node.device = context.logical_name(assigned[node.name])


def _forward_devices(
    name: str, assigned: Mapping[str, int], in_scope: Mapping[str, set[int]]
) -> list[int]:
    """Where the forward op of a gradient ran, if its scope tells."""
    for scope in _scopes(name.removeprefix(GRADIENT_SCOPE)):
        places = {assigned[scope]} if scope in assigned else in_scope.get(scope, set())
        if len(places) == 1:
            return [*places]
    return []


def _follow_consumers(nodes: Any, index: dict[str, int]) -> None:
    """Puts constants where their only users are, so that they are not sent."""
    users: dict[str, set[int]] = {}
    for node in nodes:
        for text in node.input:
            users.setdefault(producer(text), set()).add(index.get(node.name, 0))
    for node in nodes:
        where = users.get(node.name, set())
        if node.op == "Const" and node.name not in index and len(where) == 1:
            index[node.name] = min(where)


def _scopes(name: str) -> list[str]:
    """``a/b/c`` gives ``a/b/c``, ``a/b`` and ``a``."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


def operand_devices(traced: TracedStep) -> dict[str, int]:
    """The logical device of each operand of a collective, unless it is the first."""
    operands = {name for call in traced.collectives for name in call.operands}
    return {
        node.name: index
        for node in traced.graph_def.node
        if node.name in operands and (index := context.logical_index(node.device))
    }


def _bypass_tuples(nodes: Any) -> None:
    """Lets what reads an output of ``IdentityN`` read the input behind it."""
    # ``tf.custom_gradient``, and so each collective, ends in one for all of its
    # results. It has one device: results of all parts of a replica would be sent there
    # and back.
    behind = {
        node.name: [text for text in node.input if not text.startswith("^")]
        for node in nodes
        if node.op == "IdentityN" and not any(t.startswith("^") for t in node.input)
    }

    def source(text: str) -> str:
        while not text.startswith("^") and producer(text) in behind:
            name, _, port = text.partition(":")
            text = behind[name][int(port or 0)]
        return text

    for node in nodes:
        for index, text in enumerate(node.input):
            node.input[index] = source(text)


# With a sharded update over worker processes, one program updates a variable. The
# others receive its new value before anything there reads it again. Small variables of
# one owner are sent together. These transfers are part of the chain of the step's
# collectives, which is the same in every program: each comes before the first
# collective that depends on the update, or at the end.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UpdatedVariable:
    """The new value of one variable after one update."""

    node: str  # The node that updates.
    handle: str  # The placeholder of the variable's handle.
    source: int  # Program that updates.
    dtype: tf.DType  # Type of the variable.
    shape: tf.TensorShape  # Its static shape.


def schedule_shares(
    body: Body, collectives: Sequence[Collective], shares: Sequence[UpdatedVariable]
) -> dict[int, list[UpdatedVariable]]:
    """Finds the place of each share in the order of a step's collectives."""
    last = len(collectives)
    first = {name: c.index for c in collectives for name in c.read}
    for node in reversed(body.nodes):
        index = first.get(node.name, last)
        for name in before_of(node):
            first[name] = min(first.get(name, last), index)
    places: dict[int, list[UpdatedVariable]] = {}
    for share in shares:
        places.setdefault(first.get(share.node, last), []).append(share)
    return places


def levels(body: Body, shares: Iterable[UpdatedVariable]) -> dict[str, int]:
    """How many updates in a row lead to each node."""
    # Shares that are sent together must not wait for later ones, so only updates of one
    # level do.
    updates = {share.node for share in shares}
    level_of: dict[str, int] = {}
    for node in body.nodes:
        level = max((level_of.get(name, 0) for name in before_of(node)), default=0)
        level_of[node.name] = level + (node.name in updates)
    return level_of


def group(
    shares: Iterable[UpdatedVariable], level: Mapping[str, int]
) -> list[list[UpdatedVariable]]:
    """Puts shares of one level, source and type into buckets, by level."""
    members = sorted(shares, key=lambda share: level[share.node])
    filled = transport.fill(
        [(level[share.node], share.source, share.dtype) for share in members],
        [transport.num_bytes(share.shape, share.dtype) for share in members],
        limit=WORKER_BUCKET_BYTES,
    )
    buckets = [[members[index] for index in bucket] for bucket in filled]
    return sorted(buckets, key=lambda bucket: level[bucket[0].node])


def check_shares(
    body: Body,
    live: Liveness,
    slots: Mapping[str, int],
    program_id: int,
    names: Mapping[str, str],
) -> None:
    """Rejects steps that need state in one program that exists in another one only."""
    for node in body.nodes:
        handles = [ref.node for ref in node.inputs if ref.node in slots]
        if len({slots[handle] for handle in handles}) > 1:
            raise OptimizerOptionError(
                "sharded_update distributes the optimizer's state over several "
                f"workers, but one {node.op} node of the step uses the state of many "
                "variables: an update in a branch (such as Keras' "
                "gradient_accumulation_steps) is computed on one worker; use "
                "sharded_update=False, or an optimizer that updates in every call"
            )
        where = (
            {live.writers[node.name]}
            if node.name in live.writers
            else set(live.emitted.get(node.name, (0, REMOTE)))
        )
        for handle in handles:
            others = where - {REMOTE}
            if slots[handle] == program_id:
                others = where & {REMOTE}
            if others:
                raise OptimizerOptionError(
                    f"sharded_update keeps {names[handle]!r} on worker "
                    f"{slots[handle]} only, but the step uses it (in {node.op}) on "
                    "others; use the optimizer's state in apply_gradients() only, or "
                    "use sharded_update=False"
                )


def transfers(
    plans: Iterable[CollectivePlan], topology: devices.Topology
) -> Iterator[Transfer]:
    """What collectives send between memories where one program has all replicas."""
    for plan in plans:
        for bucket in plan.buckets:
            for transfer in plan.collective.kind.transfers(
                bucket.num_bytes, bucket.owner, topology
            ):
                # Of what only its owner needs, nothing comes back.
                if not bucket.is_for_owner or transfer.target == bucket.owner:
                    yield transfer


def sent(
    plans: Iterable[CollectivePlan], topology: devices.Topology, workers: Sequence[int]
) -> dict[int, int]:
    """By worker, the bytes that collectives send from it to others in one step."""
    sizes = dict.fromkeys(workers, 0.0)
    for transfer in transfers(plans, topology):
        source, target = workers[transfer.source], workers[transfer.target]
        if source != target:
            sizes[source] += transfer.num_bytes
    return {worker: round(size) for worker, size in sizes.items()}
