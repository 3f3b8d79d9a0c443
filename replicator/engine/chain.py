"""Chain: the collective ops of one program, and what each of them waits for.

All workers emit the same ops in the same order, so that two of them can never wait for
each other in two collectives. There are three ways to keep that order:

- An op waits until its predecessor has *ended*: rings between processes.
- It waits until its predecessor was *started*: NCCL between processes. The end of a
  kernel would be too late: by then the backward pass is queued on the stream of the
  device, all of it, and a reduction waits for what is queued when it starts.
- It waits for nothing but batches: replicas of one process. TensorFlow starts an op of
  NCCL when all its parts are there, on all devices at once, so there is one order
  already. Nor has it an edge from the batches, which would be a transfer from each
  device to each other: its keys are constants, and what has no inputs runs once all is
  there that the call of the step waits for (``Assembly.call``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from replicator.collectives.transport import wire_over_workers
from replicator.core import devices
from replicator.core.devices import NCCL_DTYPES, cpu_of
from replicator.engine import emitter, plan
from replicator.errors import CollectiveTypeError

if TYPE_CHECKING:
    from replicator.engine.body import Ref, Tensor
    from replicator.engine.plan import UpdatedVariable


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Started:
    """An op over all replicas whose successor waits for its start."""

    keys: tuple[int, ...] = ()  # Its instance key, or nothing.
    # Its parts in this program, unless something waits for their end already.
    nodes: tuple[str, ...] = ()


_MERGE_OPS = {"sum": "Add", "mean": "Add", "min": "Min", "max": "Max"}


class Operand(NamedTuple):
    """What a worker has of a transfer."""

    ref: Any  # Its ``Tensor``; None where only another worker has it.
    dtype: tf.DType
    shape: tf.TensorShape  # Its static shape, the same on all workers.
    device: str

    @property
    def is_empty(self) -> bool:
        return bool(self.shape.is_fully_defined()) and self.shape.num_elements() == 0


# In between-graph replication every worker process links its own replicas first. This
# leaves one tensor per worker, which a chain of a group combines over all workers. What
# an op there is called, its keys and its order follow from the plan alone, and never
# from what this worker happens to have: one that emits one more, one less, or two in
# another order stops all of them without an error.
class Chain:
    """Emits TensorFlow's collective ops, one after the other."""

    def __init__(
        self,
        group: devices.Group | None,
        emit: emitter.Emitter,
        first_controls: Sequence[str],
        *,
        has_virtual_gpus: bool = False,
    ) -> None:
        # The worker processes; None where this one has all replicas.
        self.group: Any = group
        self.emit = emit
        self._has_virtual_gpus = has_virtual_gpus
        # By call, the numbers of rows of its tensors, by worker.
        self._row_counts: dict[int, Ref] = {}
        # One order for all, although transfers could overlap: TensorFlow starts ops as
        # their inputs come, which differs from worker to worker, and two workers that
        # hold all threads of a ring in different ones wait forever.
        self._before = list(first_controls)
        self._first_controls = tuple(first_controls)
        # By device, what replaces that where the last op ran on several devices.
        self._before_on: dict[str, str] = {}
        # The last op that orders its successor by its start, and the one before it.
        self._started, self._started_before = _Started(), _Started()
        # Ops that nothing in the program waits for, without and with the last one.
        self._free_before: list[str] = []
        self._free: list[str] = []

    @property
    def ends(self) -> list[str]:
        """The nodes after which all ops have ended, and another program may begin."""
        # Two programs at once would meet the ops of other workers in another order, and
        # if they are two calls of one program, under the same keys.
        before = () if tuple(self._before) == self._first_controls else self._before
        on_devices = self._before_on.values()
        return sorted({*before, *on_devices, *self._started.nodes, *self._free})

    def continue_after(self, node: str) -> None:
        self._before = [node]
        self._before_on = {}
        self._started = dataclasses.replace(self._started, nodes=())

    def continue_after_gate(self, nodes: Mapping[str, str]) -> None:
        """The same after an op on several devices that may be skipped, by device."""
        self._before_on.update(nodes)
        # A skipped op never starts, but the one before it does.
        self._started = self._started_before
        self._free = self._free_before

    def sum_all(
        self,
        name: str,
        flat: devices.FlatGroup,
        operands: Mapping[str, Tensor],
        dtype: tf.DType,
        algorithm: str,
    ) -> dict[str, Ref]:
        """Emits the next op: a sum over all replicas of the job, by device."""
        keys = {
            "group_size": flat.size,
            "group_key": flat.key,
            "instance_key": next(flat.keys),
        }
        hint = {"communication_hint": "ring" if algorithm == "ring" else "nccl"}
        is_alone = self.group is None
        waits_for_start = not is_alone and algorithm in plan.BY_START
        sums = {}
        for index, (device, ref) in enumerate(operands.items()):
            part = f"{name}_{index}"
            last = self._before_on.get(device)
            before = self._before if last is None else [last]
            if waits_for_start:
                # Only the first version of the op has ``wait_for``.
                op, inputs = "CollectiveReduce", [ref]
                attrs = {
                    **keys,
                    "merge_op": "Add",
                    "final_op": "Id",
                    "subdiv_offsets": [0],
                    "wait_for": list(self._started.keys),
                }
            else:
                op, attrs = "CollectiveReduceV2", _reduction("Add")
                inputs = [ref, *self._keys(part, device, keys)]
            waits = [] if is_alone else before
            sums[device] = self.emit.add(
                part, op, inputs, device, waits, T=dtype, **hint, **attrs
            )
        nodes = tuple(ref.node for ref in sums.values())
        if is_alone:
            self._free_before, self._free = self._free, [*self._free, *nodes]
        elif waits_for_start:
            self._started_before = self._started
            self._started = _Started(keys=(keys["instance_key"],), nodes=nodes)
        else:
            self._before_on.update(zip(sums, nodes, strict=True))
        return sums

    def add(
        self,
        name: str,
        op: str,
        data: Sequence[Tensor],
        dtype: tf.DType,
        device: str,
        key_offset: Tensor | None = None,
        last_inputs: Sequence[Tensor] = (),
        **attrs: Any,
    ) -> Ref:
        num_instances = 1 if key_offset is None else emitter.NUM_LENGTHS
        cpu = cpu_of(device)
        keys = {
            "group_size": self.group.num_workers,
            "group_key": devices.place_group_key(device),
            "instance_key": self.group.keys.draw(num_instances),
        }
        size, group, instance = self._keys(name, cpu, keys)
        if key_offset is not None:
            both = [instance, key_offset]
            instance = self.emit.add(f"{name}/own_key", "AddV2", both, cpu, T=tf.int32)
        is_nccl = devices.is_gpu(device) and not self._has_virtual_gpus
        is_nccl = is_nccl and dtype in NCCL_DTYPES
        ref = self.emit.add(
            name,
            op,
            [*data, size, group, instance, *last_inputs],
            device,
            [*self._before_on.values(), *self._started.nodes] or self._before,
            T=dtype,
            communication_hint="nccl" if is_nccl else "ring",
            **attrs,
        )
        self.continue_after(name)
        return ref

    def reduce(self, name: str, op: str, given: Operand) -> Tensor:
        """Emits a sum (of a mean too), minimum or maximum over workers."""
        dtype, cpu = given.dtype, cpu_of(given.device)
        if op in emitter.PAIRWISE and dtype == tf.uint64 and not given.is_empty:
            flip, both = emitter.signed, [(given.ref, dtype)]
            signed = self._inline(f"{name}/flip", flip, both, cpu)
            given = given._replace(ref=signed, dtype=tf.int64)
            reduced = [(self.reduce(name, op, given), tf.int64)]
            return self._inline(f"{name}/unflip", emitter.unsigned, reduced, cpu)

        def transfer(value: Tensor, *where: Any) -> Ref:
            attrs = _reduction(_MERGE_OPS[op])
            return self.add(name, "CollectiveReduceV2", [value], *where, **attrs)

        return self._transfer(name, given, "all_reduce", transfer)

    def broadcast(self, name: str, given: Operand, source: int) -> Tensor:
        def transfer(
            value: Tensor, dtype: tf.DType, device: str, key: Ref | None = None
        ) -> Ref:
            if source == self.group.worker_id:
                op = "CollectiveBcastSendV2"
                return self.add(name, op, [value], dtype, device, key)
            where = f"{name}/shape"
            if given.shape.is_fully_defined():
                dims = given.shape.as_list()
                if dtype.size < given.dtype.size:
                    dims.append(given.dtype.size // dtype.size)  # complex: pairs
                sizes = np.array(dims, np.int32)
                shape = self.emit.const(where, sizes, cpu_of(device))
            else:
                shape = self.emit.add(where, "Shape", [value], device, T=dtype)
            op = "CollectiveBcastRecvV2"
            return self.add(name, op, [], dtype, device, key, [shape])

        return self._transfer(name, given, "broadcast", transfer)

    def gather(self, name: str, given: Operand) -> Tensor:
        """Emits a concatenation over workers, by worker id."""
        # ``[replicas of this worker] + dims`` becomes ``[replicas of the job] + dims``.

        def transfer(value: Tensor, *where: Any) -> Ref:
            return self._join(name, value, *where)

        count = self.group.num_workers
        return self._transfer(name, given, "all_gather", transfer, count)

    def check_shape(self, name: str, given: Operand) -> None:
        """Compares shapes over workers where the trace does not know them."""
        if given.shape.is_fully_defined():
            return
        device, both = given.device, [(given.ref, given.dtype)]
        row = self._inline(f"{name}/row", emitter.shape_row, both, device)
        rows = self._join(f"{name}/gathered", row, tf.int64, device)
        both = [(rows, tf.int64), (row, tf.int64)]
        _, (check,) = self.emit.inline(f"{name}/same", emitter.check_rows, both, device)
        self.continue_after(check)

    def gather_rows(
        self, name: str, call: int, given: Operand, num_replicas: int
    ) -> Tensor:
        """Emits the concatenation of all workers' rows, by worker id."""
        # The tensors of one call have the same numbers of rows. TensorFlow gathers
        # tensors of equal shapes only: each worker pads its rows to the largest number,
        # and every worker removes the padding.
        dtype, shape, device = given.dtype, given.shape, given.device
        if shape.rank is None:
            raise CollectiveTypeError(
                f"{dtype.name} rows of unknown rank cannot be sent between worker "
                "processes; give the values of tf.IndexedSlices a static rank"
            )
        if shape[0] is not None:
            rows = tf.TensorShape([shape[0] * num_replicas, *shape[1:]])
            return self.gather(name, given._replace(shape=rows))
        own = given.ref, dtype
        if call not in self._row_counts:
            count = self._inline(f"{name}/count", emitter.num_rows, [own], device)
            self._row_counts[call] = self._join(
                f"{name}/counts", count, tf.int32, cpu_of(device)
            )
        counts = self._row_counts[call], tf.int32
        pad, cut = emitter.pad_rows, emitter.cut_rows
        padded = self._inline(
            f"{name}/padded", pad, [own, counts], device, rank=shape.rank
        )
        both = [(self.gather(f"{name}/all", given._replace(ref=padded)), dtype), counts]
        num_workers = self.group.num_workers
        return self._inline(
            f"{name}/joined", cut, both, device, num_workers=num_workers
        )

    def share(
        self,
        name: str,
        shares: Sequence[UpdatedVariable],
        values: Sequence[Tensor],
        device: str,
    ) -> list[Ref]:
        """Emits the transfer of one bucket, from its source to all other programs."""
        # Only the source has values.
        dtype, source = shares[0].dtype, shares[0].source
        shapes = [share.shape.as_list() for share in shares]
        size = sum(int(share.shape.num_elements()) for share in shares)
        packed = None
        if values:
            ops = emitter.NodeOps(self.emit, f"{name}/packed", dtype, device)
            packed = ops.pack(values, shapes)
        given = Operand(packed, dtype, tf.TensorShape([size]), device)
        received = self.broadcast(name, given, source)
        ops = emitter.NodeOps(self.emit, f"{name}/unpacked", dtype, device)
        return ops.unpack(received, shapes)

    def _inline(self, *arguments: Any, **options: Any) -> Ref:
        (result,), _ = self.emit.inline(*arguments, **options)
        return result

    def _join(
        self, name: str, ref: Tensor, dtype: tf.DType, device: str, *key: Any
    ) -> Ref:
        """Emits a concatenation of tensors of one shape, in a type that is sent."""
        joined = self.add(
            name, "CollectiveGatherV2", [ref], dtype, device, *key, is_stateless=False
        )
        # The op gathers in an order of its own.
        order, workers = self.group.order, range(self.group.num_workers)
        if order == tuple(workers):
            return joined
        places, sort = tuple(map(order.index, workers)), emitter.in_order
        return self._inline(
            f"{name}/sorted", sort, [(joined, dtype)], device, places=places
        )

    def _transfer(
        self,
        name: str,
        given: Operand,
        kind: str,
        transfer: Callable[..., Ref],
        count: int = 1,
    ) -> Tensor:
        """Transfers a tensor as a type that can be sent, also one of unknown shape."""
        # The result has so many times its rows.
        ref, dtype, shape, device = given
        # A sum has to keep the bits of the type itself, so it goes as a wider type;
        # what is only moved goes as any type of the same width.
        wire = wire_over_workers(dtype, kind)
        if given.is_empty:
            dims = [n * count for n in shape[:1]] + shape[1:].as_list()
            nothing = np.zeros(dims, dtype.as_numpy_dtype)
            return self.emit.const(name, nothing, device)

        def convert(part: str, ref: Tensor, source: tf.DType, target: tf.DType) -> Ref:
            where = cpu_of(device) if wire.op == "Cast" else device
            by, own = wire.convert, [(ref, source)]
            return self._inline(f"{name}/{part}", by, own, where, dtype=target)

        sent = wire.dtype
        if ref is not None and wire.op:
            ref = convert("in", ref, dtype, sent)
        # GPU integers are sent through the host.
        device = cpu_of(device) if sent.is_integer else device
        if shape.is_fully_defined():
            result = transfer(ref, sent, device)
        else:
            own = [(ref, sent)]
            (value, key_offset), _ = self.emit.inline(
                f"{name}/sent", emitter.pad_any_size, own, device, cpu=cpu_of(device)
            )
            both = [(transfer(value, sent, device, key_offset), sent), *own]
            restore = emitter.unpadded
            result = self._inline(f"{name}/result", restore, both, device, count=count)
        return convert("out", result, sent, dtype) if wire.op else result

    def _keys(self, name: str, device: str, keys: Mapping[str, int]) -> list[Ref]:
        return [
            self.emit.const(f"{name}/{what}", np.int32(value), device)
            for what, value in keys.items()
        ]


def _reduction(merge_op: str) -> dict[str, Any]:
    # There is no timeout among them: each starts a thread that sleeps until it is over
    # (``cluster/liveness.py``). The caller of the program limits it.
    return {"merge_op": merge_op, "final_op": "Id", "is_stateless": False}
