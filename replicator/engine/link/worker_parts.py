"""Parts: one tensor per worker becomes one tensor of all, by worker id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from replicator.engine.graph.body import Ref
from replicator.engine.link import any_size

if TYPE_CHECKING:
    from typing import TypeAlias

    from replicator.engine.graph.emitter import Emitter
    from replicator.engine.link.chain import Chain
    from replicator.placement.topology import Group

    Tensor: TypeAlias = Ref | str


class WorkerParts:
    """Emits ``CollectiveGatherV2``, which gathers in an order of its own."""

    def __init__(self, group: Group, emit: Emitter, chain: Chain) -> None:
        """Prepares emitting."""
        self._group = group
        self._emit = emit
        self._chain = chain

    def gather(
        self,
        name: str,
        ref: Tensor,
        dtype: tf.DType,
        device: str,
        key_offset: Ref | None = None,
    ) -> Ref:
        """Emits a concatenation of tensors of one shape, in a type that is sent."""
        raw = self._chain.add(
            name,
            "CollectiveGatherV2",
            [ref],
            dtype,
            device,
            {"is_stateless": False, "Nordering_token": 0},
            key_offset=key_offset,
        )
        if self._group.order == tuple(range(self._group.num_workers)):
            return raw
        return self._sort(f"{name}/sorted", raw, dtype, device)

    def gather_any_size(
        self, name: str, ref: Tensor, dtype: tf.DType, device: str
    ) -> Ref:
        """Gathers tensors that have one shape on all workers, checked before."""
        count = self._group.num_workers
        sent = any_size.pad(self._emit, f"{name}/sent", ref, dtype, device)
        part = self._emit.row(f"{name}/part", sent.value, dtype, device)
        rows = self.gather(f"{name}/rows", part, dtype, device, sent.key_offset)
        begin = self._emit.numbers(f"{name}/begin", [0, 0], device)
        num_rows = self._emit.const(
            f"{name}/num_rows", np.array([count], np.int32), device
        )
        extent = self._emit.concat(
            f"{name}/extent", [num_rows, sent.num_elements], tf.int32, device
        )
        kept = self._emit.slice(f"{name}/kept", rows, begin, extent, dtype, device)
        # The first dimension times workers, then the others: what is left of the size
        # cannot be asked for, since it may be zero.
        dims = self._emit.dims(f"{name}/dims", ref, dtype, device)
        first = self._emit.numbers(f"{name}/first", [1], device)
        zero = self._emit.numbers(f"{name}/zero", [0], device)
        head = self._emit.slice(f"{name}/head", dims, zero, first, tf.int32, device)
        rest_size = self._emit.const(
            f"{name}/rest_size", np.array([-1], np.int32), device
        )
        rest = self._emit.slice(
            f"{name}/rest", dims, first, rest_size, tf.int32, device
        )
        total = self._emit.add(
            f"{name}/total", "Mul", [head, num_rows], device, "z:0", {"T": tf.int32}
        )
        target = self._emit.concat(f"{name}/target", [total, rest], tf.int32, device)
        return self._emit.reshape(f"{name}/result", kept, target, dtype, device)

    def _sort(self, name: str, ref: Ref, dtype: tf.DType, device: str) -> Ref:
        """Puts the parts of workers into the order of their ids."""
        count = self._group.num_workers
        axis = self._emit.const(f"{name}/axis", np.int32(0), device)
        parts = self._emit.add(
            f"{name}/parts",
            "Split",
            [axis, ref],
            device,
            "output:0",
            {"num_split": count, "T": dtype},
        )
        places = [self._group.order.index(worker) for worker in range(count)]
        by_worker = [Ref(node=parts.node, port=f"output:{p}") for p in places]
        return self._emit.concat(name, by_worker, dtype, device)
