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
from replicator.engine.graph.body import Ref, make_node
from replicator.engine.graph.emitter import Emitter
from replicator.engine.link import uneven_rows
from replicator.engine.link.chain import Chain, WorkerParts, reduce_attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.core.topology import Group
    from replicator.engine.graph.body import Tensor


# Only where the trace does not know the shape, which is otherwise that of every
# replica.

# Says in the error of TensorFlow that it is about shapes; the rest is made from it.
SHAPES_DIFFER = "replicator: shapes differ between workers"


def shape_row(
    emit: Emitter, name: str, ref: Tensor, dtype: tf.DType, device: str
) -> Ref:
    """Emits what workers compare: the dimensions of a tensor, and one number more."""
    dims = emit.dims(f"{name}/dims", ref, dtype, device, tf.int64)
    # So that a scalar has something to compare as well.
    rank = emit.const(f"{name}/one", np.array([1], np.int64), device)
    return emit.concat(f"{name}/row", [dims, rank], tf.int64, device)


def compare_shapes(emit: Emitter, name: str, rows: Ref, own: Ref, device: str) -> str:
    """Emits the comparison; returns the node that raises where shapes differ."""
    equal = emit.add(
        f"{name}/equal",
        "Equal",
        [rows, own],
        device,
        "z:0",
        {"T": tf.int64, "incompatible_shape_error": True},
    )
    axes = emit.numbers(f"{name}/axes", [0, 1], device)
    all_equal = emit.add(
        f"{name}/all",
        "All",
        [equal, axes],
        device,
        "output:0",
        {"Tidx": tf.int32, "keep_dims": False},
    )
    text = emit.const(f"{name}/text", np.array(SHAPES_DIFFER, object), device)
    return _require(emit, name, all_equal, text, rows, tf.int64, device)


def between_replicas(
    emit: Emitter,
    name: str,
    what: str,
    refs: Sequence[Tensor],
    dtype: tf.DType,
    devices: Sequence[str],
) -> Ref:
    """Emits a check that the tensors of a program's replicas have one shape.

    For ops that broadcast, where others raise an error of their own.
    """
    cpu = cpu_of(devices[0])
    texts = []
    for replica, (ref, device) in enumerate(zip(refs, devices, strict=True)):
        dims = emit.dims(f"{name}/dims_{replica}", ref, dtype, device)
        attrs = {"template": "{}", "placeholder": "{}", "summarize": -1}
        node = make_node(f"{name}/shape_{replica}", "StringFormat", [dims], cpu, attrs)
        node.attr["T"].list.type.append(tf.int32.as_datatype_enum)
        emit.nodes.append(node)
        texts.append(Ref(node=node.name, port="output:0"))
    attrs = {"N": len(texts), "T": tf.string, "axis": 0}
    shapes = emit.add(f"{name}/shapes", "Pack", texts, cpu, "output:0", attrs)
    attrs = {"T": tf.string, "incompatible_shape_error": True}
    equal = emit.add(f"{name}/equal", "Equal", [shapes, texts[0]], cpu, "z:0", attrs)
    axis = emit.numbers(f"{name}/axis", [0], cpu)
    attrs = {"Tidx": tf.int32, "keep_dims": False}
    all_equal = emit.add(f"{name}/all", "All", [equal, axis], cpu, "output:0", attrs)
    said = (
        f"replicator: {what} got tensors of different shapes on different replicas; "
        "pad them to one shape, or reduce them first; by replica"
    )
    text = emit.const(f"{name}/text", np.array(said, object), cpu)
    check = _require(emit, name, all_equal, text, shapes, tf.string, cpu)
    checked, attrs = f"{name}/checked", {"T": dtype}
    return emit.add(
        checked, "Identity", [refs[0]], devices[0], "output:0", attrs, [check]
    )


def _require(
    emit: Emitter,
    name: str,
    condition: Ref,
    text: Ref,
    found: Ref,
    dtype: tf.DType,
    device: str,
) -> str:
    """Emits an assertion that says a text and what was found."""
    check = f"{name}/assert"
    node = make_node(
        check, "Assert", [condition, text, found], device, {"summarize": 256}
    )
    node.attr["T"].list.type.extend(
        [tf.string.as_datatype_enum, dtype.as_datatype_enum]
    )
    emit.nodes.append(node)
    return check


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
            result = self._parts.gather(name, sent, wire, device)
        else:
            result = self._parts.gather_any_size(name, sent, wire, device)
        return self._emit.convert(f"{name}/out", result, how, wire, dtype, device)

    def check_shape(self, name: str, ref: Tensor, dtype: tf.DType, device: str) -> None:
        """Emits a comparison of a tensor's shape over workers, before it is sent."""
        row = shape_row(self._emit, name, ref, dtype, device)
        part = self._emit.row(f"{name}/part", row, tf.int64, device)
        rows = self._parts.gather(f"{name}/gathered", part, tf.int64, device)
        check = compare_shapes(self._emit, name, rows, row, device)
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
        sent = uneven_rows.pad_any_size(self._emit, f"{name}/sent", ref, dtype, device)
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
