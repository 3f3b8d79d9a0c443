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

from replicator.collectives import wire_types
from replicator.engine.graph.emitter import Emitter
from replicator.engine.link import any_size, shape_check
from replicator.engine.link.chain import Chain, reduce_attrs
from replicator.engine.link.worker_parts import WorkerParts
from replicator.placement.devices import cpu_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from replicator.engine.graph.body import Ref
    from replicator.placement.topology import Group

    Tensor: TypeAlias = Ref | str

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
        self._parts = WorkerParts(group, self._emit, self.chain)

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
        how, wire = wire_types.added(dtype)
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
        how, wire = wire_types.moved(dtype, "broadcast")
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
        how, wire = wire_types.moved(dtype, "all_gather")
        if _is_empty(shape):
            dims = [shape[0] * self._group.num_workers, *shape.as_list()[1:]]
            return self._emit.const(name, np.zeros(dims, dtype.as_numpy_dtype), device)
        sent = self._emit.convert(f"{name}/in", ref, how, dtype, wire, device)
        device = _wire_device(wire, device)
        if shape.is_fully_defined():
            result = self._parts.gather(name, sent, wire, device)
        else:
            result = self._parts.gather_any_size(name, sent, wire, device)
        return self._emit.convert(f"{name}/out", result, how, wire, dtype, device)

    def check_shape(self, name: str, ref: Tensor, dtype: tf.DType, device: str) -> None:
        """Emits a comparison of a tensor's shape over workers, before it is sent."""
        row = shape_check.row(self._emit, name, ref, dtype, device)
        part = self._emit.row(f"{name}/part", row, tf.int64, device)
        rows = self._parts.gather(f"{name}/gathered", part, tf.int64, device)
        check = shape_check.compare(self._emit, name, rows, row, device)
        self.chain.continue_after(check)

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
        sent = any_size.pad(self._emit, f"{name}/sent", ref, dtype, device)
        received = transfer(sent.value, sent.key_offset)
        begin = self._emit.numbers(f"{name}/begin", [0], device)
        kept = self._emit.slice(
            f"{name}/kept", received, begin, sent.num_elements, dtype, device
        )
        dims = self._emit.dims(f"{name}/dims", ref, dtype, device)
        return self._emit.reshape(f"{name}/result", kept, dims, dtype, device)


def _is_empty(shape: tf.TensorShape) -> bool:
    return bool(shape.is_fully_defined()) and shape.num_elements() == 0


def _wire_device(dtype: tf.DType, device: str) -> str:
    """The device of a collective by type: GPU integers are sent through the host."""
    return cpu_of(device) if dtype.is_integer else device
