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
from replicator.engine.graph.emitter import Emitter
from replicator.engine.link import fragments
from replicator.engine.link.chain import Chain, reduce_attrs
from replicator.errors import CollectiveTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from replicator.core.topology import Group
    from replicator.engine.analysis.plan import Share
    from replicator.engine.graph.body import Ref, Tensor


_MERGE_OPS = {"sum": "Add", "mean": "Add", "min": "Min", "max": "Max"}


class CrossWorker:
    """Emits the collectives of one program over all workers.

    Attributes:
      chain: Their order.
    """

    def __init__(
        self,
        group: Group,
        first_controls: Sequence[str] = (),
        *,
        has_virtual_gpus: bool = False,
    ) -> None:
        """Starts a chain of collectives."""
        # Nodes of their own: an op here waits for its peers in other processes, so what
        # it is called, its keys and its order follow from the plan alone and never from
        # what this worker happens to have. A worker that emits one more,
        # one less, or two in another order stops all of them without an error.
        self._group = group
        self._emit = Emitter()
        self.chain = Chain(
            group, self._emit, first_controls, has_virtual_gpus=has_virtual_gpus
        )

    @property
    def emit(self) -> Emitter:
        """The emitter of the nodes of cross-worker communication."""
        return self._emit

    @property
    def group(self) -> Group:
        """The workers."""
        return self._group

    @property
    def num_workers(self) -> int:
        """Workers whose programs run side by side."""
        return self._group.num_workers

    @property
    def nodes(self) -> list[Any]:
        """``NodeDef``s emitted so far."""
        return self._emit.nodes

    def continue_after(self, node: str) -> None:
        """Makes the next collective wait for a node instead of the last one."""
        self.chain.continue_after(node)

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
        if _is_empty(shape):
            return ref
        if op in ("min", "max") and dtype == tf.uint64:
            # Flipping the highest bit makes the order of unsigned that of signed.
            signed = self._emit.convert(
                f"{name}/in", ref, "Bitcast", dtype, tf.int64, device
            )
            flipped = self._emit.flip(f"{name}/flip", signed, device)
            reduced = self.reduce(name, flipped, op, tf.int64, shape, device)
            back = self._emit.flip(f"{name}/unflip", reduced, device)
            return self._emit.convert(
                f"{name}/out", back, "Bitcast", tf.int64, dtype, device
            )
        # A sum has to keep the bits of the type itself, so it goes as a wider type;
        # what is only moved goes as any type of the same width.
        how, wire = differentiable.wire_of_sum(dtype)
        sent = self._emit.convert(f"{name}/in", ref, how, dtype, wire, device)
        device = _wire_device(wire, device)
        attrs = reduce_attrs(_MERGE_OPS[op])

        def transfer(value: Tensor, key_offset: Ref | None) -> Ref:
            return self.chain.add(
                name,
                "CollectiveReduceV2",
                [value],
                wire,
                device,
                attrs,
                key_offset=key_offset,
            )

        result = self._transfer(name, sent, wire, shape, device, transfer)
        return self._emit.convert(f"{name}/out", result, how, wire, dtype, device)

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
        how, wire = differentiable.wire_of_move(dtype, "broadcast")
        if _is_empty(shape):
            return ref
        sent = self._emit.convert(f"{name}/in", ref, how, dtype, wire, device)
        device = _wire_device(wire, device)

        def transfer(value: Tensor, key_offset: Ref | None) -> Ref:
            if source == self._group.worker_id:
                return self.chain.add(
                    name,
                    "CollectiveBcastSendV2",
                    [value],
                    wire,
                    device,
                    {},
                    key_offset=key_offset,
                )
            dims = self._emit.dims(f"{name}/shape", value, wire, device)
            return self.chain.add(
                name,
                "CollectiveBcastRecvV2",
                [],
                wire,
                device,
                {"Tshape": tf.int32},
                last_inputs=[dims],
                key_offset=key_offset,
            )

        result = self._transfer(name, sent, wire, shape, device, transfer)
        return self._emit.convert(f"{name}/out", result, how, wire, dtype, device)

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
            one = self._emit.const(f"{name}/one", value, device)
            dims = self._emit.numbers(f"{name}/dims", shape.as_list(), device)
            attrs = {"T": dtype, "index_type": tf.int32}
            # Never computed for its value: a receiver needs the shape only.
            ref = self._emit.add(
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

        Args:
          name: Name of the node.
          ref: This worker's part, of shape ``[replicas of this worker] + dims``.
          dtype: Its type.
          shape: What is known of its shape.
          device: Where it is.

        Returns:
          Shape ``[replicas of the job] + dims``.
        """
        how, wire = differentiable.wire_of_move(dtype, "all_gather")
        if _is_empty(shape):
            dims = [shape[0] * self._group.num_workers, *shape.as_list()[1:]]
            return self._emit.const(name, np.zeros(dims, dtype.as_numpy_dtype), device)
        sent = self._emit.convert(f"{name}/in", ref, how, dtype, wire, device)
        device = _wire_device(wire, device)
        if shape.is_fully_defined():
            result = self._join(name, sent, wire, device)
        else:
            padded = fragments.pad_any_size(
                self._emit, f"{name}/sent", sent, wire, device
            )
            part = self._emit.row(f"{name}/part", padded.value, wire, device)
            rows = self._join(f"{name}/rows", part, wire, device, padded.key_offset)
            result = self._inline(
                f"{name}/result",
                fragments.unpadded_parts,
                [(rows, wire), (sent, wire)],
                device,
                count=self._group.num_workers,
            )
        return self._emit.convert(f"{name}/out", result, how, wire, dtype, device)

    def check_shape(self, name: str, ref: Tensor, dtype: tf.DType, device: str) -> None:
        """Emits a comparison of a tensor's shape over workers, before it is sent."""
        row = self._inline(f"{name}/row", fragments.shape_row, [(ref, dtype)], device)
        part = self._emit.row(f"{name}/part", row, tf.int64, device)
        rows = self._join(f"{name}/gathered", part, tf.int64, device)
        both = [(rows, tf.int64), (row, tf.int64)]
        _, (check,) = fragments.inline(
            self._emit, f"{name}/same", fragments.check_rows, both, device
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
        (result,), _ = fragments.inline(self._emit, *arguments, **options)
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
        order, workers = self._group.order, range(self._group.num_workers)
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
        shape: tf.TensorShape,
        device: str,
        transfer: Callable[[Tensor, Ref | None], Ref],
    ) -> Ref:
        """Transfers a tensor, also one whose shape is not known."""
        if shape.is_fully_defined():
            return transfer(ref, None)
        sent = fragments.pad_any_size(self._emit, f"{name}/sent", ref, dtype, device)
        both = [(transfer(sent.value, sent.key_offset), dtype), (ref, dtype)]
        return self._inline(f"{name}/result", fragments.unpadded, both, device)


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
    shares: Sequence[Share],
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
