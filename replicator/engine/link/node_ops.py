"""Operations of a kind as nodes on one device; see ``collectives/linking.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replicator.engine.graph.body import Ref

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import tensorflow as tf

    from replicator.engine.graph.emitter import Emitter

    Tensor: TypeAlias = Ref | str

PAIRWISE = {"min": "Minimum", "max": "Maximum"}


class NodeOps:
    """``collectives.linking.Ops`` of values of one type on one device."""

    def __init__(self, emit: Emitter, name: str, dtype: tf.DType, device: str) -> None:
        """Prepares emitting."""
        self._emit = emit
        self._name = name
        self._dtype = dtype
        self._device = device
        self._count = 0

    def stack(self, values: Sequence[Tensor]) -> Tensor:
        """Joins along a new first dimension."""
        return self._add("Pack", values, "output:0", N=len(values), axis=0)

    def unstack(self, value: Tensor, count: int) -> list[Tensor]:
        """Undoes ``stack``."""
        first = self._add("Unpack", [value], "output:0", num=count, axis=0)
        return [Ref(node=first.node, port=f"output:{i}") for i in range(count)]

    def concat(self, values: Sequence[Tensor]) -> Tensor:
        """Joins the rows."""
        if len(values) == 1:
            return values[0]
        return self._emit.concat(self._new(), values, self._dtype, self._device)

    def part(self, value: Tensor, index: int, count: int, *, axis: int = 0) -> Tensor:
        """One of ``count`` equal parts along an axis."""
        dim = self._emit.const(f"{self._new()}/axis", np.int32(axis), self._device)
        first = self._add("Split", [dim, value], "output:0", num_split=count)
        return Ref(node=first.node, port=f"output:{index}")

    def scale(self, value: Tensor, factor: float) -> Tensor:
        """The product with a number."""
        return self._emit.scale(self._new(), value, factor, self._dtype, self._device)

    def zeros_like(self, value: Tensor) -> Tensor:
        """Zeros of the same shape and type."""
        return self._add("ZerosLike", [value], "y:0")

    def reduce(self, op: str, values: Sequence[Tensor]) -> Tensor:
        """The sum (of a mean too), minimum or maximum of some values."""
        if len(values) == 1:
            return values[0]
        if op not in PAIRWISE:
            return self._add("AddN", values, "sum:0", N=len(values))
        result = values[0]
        for other in values[1:]:
            result = self._add(PAIRWISE[op], [result, other], "z:0")
        return result

    def _add(self, op: str, inputs: Sequence[Tensor], port: str, **attrs: int) -> Ref:
        both = {**attrs, "T": self._dtype}
        return self._emit.add(self._new(), op, inputs, self._device, port, both)

    def _new(self) -> str:
        self._count += 1
        return f"{self._name}/{self._count}"
