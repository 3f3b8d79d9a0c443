"""Cross-worker communication: TensorFlow's collective ops, one per transfer and worker.

In between-graph replication every worker process links its own replicas first. This
leaves one tensor per worker, which the nodes emitted here combine over all workers:
``CollectiveReduceV2`` (ring on CPUs, NCCL on GPUs), ``CollectiveGatherV2``,
``CollectiveBcastSendV2`` and ``CollectiveBcastRecvV2``. All workers emit the same
nodes in the same order; they compare plans before they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.collectives import differentiable
from replicator.core.devices import cpu_of
from replicator.engine.graph.body import Emitter
from replicator.engine.link import fragments
from replicator.engine.link.chain import Chain, reduce_attrs
from replicator.errors import CollectiveTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from replicator.core.topology import Group
    from replicator.engine.analysis.plan import UpdatedVariable
    from replicator.engine.graph.body import Ref, Tensor


_MERGE_OPS = {"sum": "Add", "mean": "Add", "min": "Min", "max": "Max"}


class CrossWorker:
    """Emits the collectives of one program over all workers."""

    def __init__(
        self,
        group: Group,
        first_controls: Sequence[str] = (),
        *,
        has_virtual_gpus: bool = False,
    ) -> None:
        # Nodes of their own: an op here waits for its peers in other processes, so what
        # it is called, its keys and its order follow from the plan alone and never from
        # what this worker happens to have. A worker that emits one more,
        # one less, or two in another order stops all of them without an error.
        self.emit = Emitter()
        self.nodes = self.emit.nodes
        self.group = group
        self.num_workers = group.num_workers
        # The order of the collectives.
        self.chain = Chain(
            group, self.emit, first_controls, has_virtual_gpus=has_virtual_gpus
        )

    def reduce(
        self,
        name: str,
        ref: Tensor,
        op: str,
        dtype: tf.DType,
        shape: tf.TensorShape,
        device: str,
    ) -> Tensor:
        """Emits a sum (of a mean too), minimum or maximum over workers."""
        if op in ("min", "max") and dtype == tf.uint64 and not _is_empty(shape):
            cpu, flip = cpu_of(device), fragments.signed
            signed = self._inline(f"{name}/flip", flip, [(ref, dtype)], cpu)
            found = self.reduce(name, signed, op, tf.int64, shape, device)
            back = fragments.unsigned
            return self._inline(f"{name}/unflip", back, [(found, tf.int64)], cpu)

        def transfer(value: Tensor, key_offset: Ref | None, **place: Any) -> Ref:
            attrs = reduce_attrs(_MERGE_OPS[op])
            return self.chain.add(
                name,
                "CollectiveReduceV2",
                [value],
                attrs=attrs,
                key_offset=key_offset,
                **place,
            )

        # A sum has to keep the bits of the type itself, so it goes as a wider type;
        # what is only moved goes as any type of the same width.
        wire = differentiable.wire_over_workers(dtype, "all_reduce")
        return self._transfer(name, ref, dtype, wire, shape, device, transfer)

    def broadcast(
        self,
        name: str,
        ref: Tensor,
        dtype: tf.DType,
        shape: tf.TensorShape,
        source: int,
        device: str,
    ) -> Tensor:
        """Emits the transfer of one worker's tensor to all others."""

        def transfer(value: Tensor, key_offset: Ref | None, **place: Any) -> Ref:
            if source == self.group.worker_id:
                op = "CollectiveBcastSendV2"
                return self.chain.add(
                    name, op, [value], attrs={}, key_offset=key_offset, **place
                )
            return self.chain.add(
                name,
                "CollectiveBcastRecvV2",
                [],
                attrs={"Tshape": tf.int32},
                last_inputs=[self.emit.dims(f"{name}/shape", value, **place)],
                key_offset=key_offset,
                **place,
            )

        wire = differentiable.wire_over_workers(dtype, "broadcast")
        return self._transfer(name, ref, dtype, wire, shape, device, transfer)

    def move(
        self,
        name: str,
        ref: Tensor | None,
        dtype: tf.DType,
        shape: tf.TensorShape,
        source: int,
        device: str,
    ) -> Tensor:
        """Emits the transfer of what only one worker has to all others."""
        if ref is None:
            value = np.zeros([], dtype.as_numpy_dtype)
            one = self.emit.const(f"{name}/one", value, device)
            dims = self.emit.numbers(f"{name}/dims", shape.as_list(), device)
            attrs = {"T": dtype, "index_type": tf.int32}
            # Never computed for its value: a receiver needs the shape only.
            ref = self.emit.add(
                f"{name}/like", "Fill", [dims, one], device, "output:0", attrs
            )
        return self.broadcast(name, ref, dtype, shape, source, device)

    def gather(
        self,
        name: str,
        ref: Tensor,
        dtype: tf.DType,
        shape: tf.TensorShape,
        device: str,
    ) -> Tensor:
        """Emits a concatenation over workers, by worker id.

        ``[replicas of this worker] + dims`` becomes ``[replicas of the job] + dims``.
        """
        how, wire = differentiable.wire_over_workers(dtype, "all_gather")
        if _is_empty(shape):
            dims = [shape[0] * self.group.num_workers, *shape.as_list()[1:]]
            return self.emit.const(name, np.zeros(dims, dtype.as_numpy_dtype), device)
        sent = self.emit.convert(f"{name}/in", ref, how, dtype, wire, device)
        device = _wire_device(wire, device)
        if shape.is_fully_defined():
            result = self._join(name, sent, wire, device)
        else:
            padded = fragments.pad_any_size(
                self.emit, f"{name}/sent", sent, wire, device
            )
            part = self.emit.row(f"{name}/part", padded.value, wire, device)
            rows = self._join(f"{name}/rows", part, wire, device, padded.key_offset)
            result = self._inline(
                f"{name}/result",
                fragments.unpadded_parts,
                [(rows, wire), (sent, wire)],
                device,
                count=self.group.num_workers,
            )
        return self.emit.convert(f"{name}/out", result, how, wire, dtype, device)

    def check_shape(self, name: str, ref: Tensor, dtype: tf.DType, device: str) -> None:
        """Emits a comparison of a tensor's shape over workers, before it is sent."""
        row = self._inline(f"{name}/row", fragments.shape_row, [(ref, dtype)], device)
        part = self.emit.row(f"{name}/part", row, tf.int64, device)
        rows = self._join(f"{name}/gathered", part, tf.int64, device)
        both = [(rows, tf.int64), (row, tf.int64)]
        _, (check,) = fragments.inline(
            self.emit, f"{name}/same", fragments.check_rows, both, device
        )
        self.chain.continue_after(check)

    def gather_rows(
        self,
        name: str,
        ref: Tensor,
        dtype: tf.DType,
        shape: tf.TensorShape,
        counts: Ref,
        device: str,
    ) -> Ref:
        """Emits the same of different numbers of rows, which ``counts`` has by worker.

        TensorFlow gathers tensors of equal shapes only: each worker pads its rows to
        the largest number, and every worker removes the padding.
        """
        known, rank = (counts, tf.int32), shape.rank
        padded = self._inline(
            f"{name}/padded",
            fragments.pad_rows,
            [(ref, dtype), known],
            device,
            rank=rank,
        )
        gathered = self.gather(f"{name}/all", padded, dtype, shape, device)
        return self._inline(
            f"{name}/joined",
            fragments.cut_rows,
            [(gathered, dtype), known],
            device,
            num_workers=self.num_workers,
        )

    def count_rows(self, name: str, ref: Tensor, dtype: tf.DType, device: str) -> Ref:
        """Emits the exchange of numbers of rows; by worker."""
        count = self._inline(name, fragments.num_rows, [(ref, dtype)], device)
        return self._join(f"{name}s", count, tf.int32, cpu_of(device))

    def _inline(self, *arguments: Any, **options: Any) -> Ref:
        (result,), _ = fragments.inline(self.emit, *arguments, **options)
        return result

    def _join(
        self,
        name: str,
        ref: Tensor,
        dtype: tf.DType,
        device: str,
        key_offset: Ref | None = None,
    ) -> Ref:
        """Emits a concatenation of tensors of one shape, in a type that is sent."""
        attrs = {"is_stateless": False, "Nordering_token": 0}
        joined = self.chain.add(
            name, "CollectiveGatherV2", [ref], dtype, device, attrs,
            key_offset=key_offset,
        )  # fmt: skip
        # The op gathers in an order of its own.
        order, workers = self.group.order, range(self.group.num_workers)
        if order == tuple(workers):
            return joined
        places = tuple(map(order.index, workers))
        inputs = [(joined, dtype)]
        sort = fragments.in_order
        return self._inline(f"{name}/sorted", sort, inputs, device, places=places)

    def _transfer(
        self,
        name: str,
        ref: Tensor,
        dtype: tf.DType,
        wire: differentiable.Wire,
        shape: tf.TensorShape,
        device: str,
        transfer: Callable[..., Ref],
    ) -> Tensor:
        """Transfers a tensor as a type that can be sent, also one of unknown shape."""
        if _is_empty(shape):
            return ref
        how, sent = wire
        ref = self.emit.convert(f"{name}/in", ref, how, dtype, sent, device)
        device = _wire_device(sent, device)
        place: dict[str, Any] = {"dtype": sent, "device": device}
        if shape.is_fully_defined():
            result = transfer(ref, None, **place)
        else:
            padded = fragments.pad_any_size(self.emit, f"{name}/sent", ref, **place)
            result = transfer(padded.value, padded.key_offset, **place)
            both = [(result, sent), (ref, sent)]
            result = self._inline(f"{name}/result", fragments.unpadded, both, device)
        return self.emit.convert(f"{name}/out", result, how, sent, dtype, device)


def _is_empty(shape: tf.TensorShape) -> bool:
    return bool(shape.is_fully_defined()) and shape.num_elements() == 0


def _wire_device(dtype: tf.DType, device: str) -> str:
    """The device of a collective by type: GPU integers are sent through the host."""
    return cpu_of(device) if dtype.is_integer else device


class UnevenRows:
    """Joins the tensors of one call over workers; all have the same numbers of rows."""

    def __init__(self, workers: CrossWorker) -> None:
        self._workers = workers
        self._counts: Ref | None = None

    def gather(
        self,
        name: str,
        ref: Tensor,
        dtype: tf.DType,
        shape: tf.TensorShape,
        num_replicas: int,
        device: str,
    ) -> Tensor:
        """Emits the concatenation of all workers' rows, by worker id."""
        if shape.rank is None:
            raise CollectiveTypeError(
                f"{dtype.name} rows of unknown rank cannot be sent between worker "
                "processes; give the values of tf.IndexedSlices a static rank"
            )
        if shape[0] is not None:
            rows = tf.TensorShape([shape[0] * num_replicas])
            total = rows.concatenate(shape[1:])
            return self._workers.gather(name, ref, dtype, total, device)
        if self._counts is None:
            self._counts = self._workers.count_rows(f"{name}/count", ref, dtype, device)
        return self._workers.gather_rows(name, ref, dtype, shape, self._counts, device)


def send_share(
    shares: Sequence[UpdatedVariable],
    name: str,
    workers: CrossWorker,
    sent: Mapping[tuple[str, str], Ref],
    device: str,
) -> tuple[dict[tuple[str, str], Ref], list[Any]]:
    """Emits the transfer of one bucket, from its source to all other programs."""
    emit = Emitter()
    dtype = shares[0].dtype
    keys = [(share.node, share.handle) for share in shares]
    shapes = [share.shape.as_list() for share in shares]
    packed = None
    if keys[0] in sent:
        values = [sent[k] for k in keys]
        packed = emit.pack(f"{name}/packed", values, shapes, dtype, device)
    size = sum(int(share.shape.num_elements()) for share in shares)
    received = workers.move(
        name, packed, dtype, tf.TensorShape([size]), shares[0].source, device
    )
    parts = emit.unpack(f"{name}/unpacked", received, shapes, dtype, device)
    return dict(zip(keys, parts, strict=True)), emit.nodes
