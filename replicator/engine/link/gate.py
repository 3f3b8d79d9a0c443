"""Gate: a collective that communicates only if a condition (predicate) is true.

It uses TensorFlow's own control flow at the level of nodes: each operand passes a
``Switch`` on its own device. If the predicate is false, nothing leaves the device, and
the nodes that follow (sums, transfers, collectives between workers) do not run. A
``Merge`` on each device that uses the result ends this: it returns the result, or an
empty tensor. The predicate is identical on all replicas and workers, so all of them
skip the same collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from replicator.engine.graph.body import Ref
    from replicator.engine.graph.emitter import Emitter
    from replicator.placement.topology import Topology

    Tensor: TypeAlias = Ref | str


class Gate:
    """The condition of one transfer, on all replicas of a program."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        conditions: Sequence[Tensor],
        emit: Emitter,
    ) -> None:
        """Prepares a gate."""
        self._name = name
        self._topology = topology
        self._conditions = conditions
        self._emit = emit
        self._merged: dict[tuple[str, int], Ref] = {}

    def operand(self, replica: int, node: str, ref: Tensor, dtype: tf.DType) -> Tensor:
        """An operand after the gate: nothing if the condition is false."""
        return self._switch(
            f"{self._name}/operand_{replica}_{node}", ref, replica, dtype, "true"
        )

    def results(
        self, refs: Sequence[Tensor], dtype: tf.DType, shape: tf.TensorShape
    ) -> tuple[Ref, ...]:
        """A result by replica, as it is after the gate."""
        # Of the same rank, so that elementwise ops and reductions take it.
        nothing = np.zeros([0] * (shape.rank or 0), dtype.as_numpy_dtype)
        memories = self._topology.memories
        return tuple(
            self._result(ref, memory, dtype, nothing)
            for ref, memory in zip(refs, memories, strict=True)
        )

    def _result(
        self, ref: Tensor, memory: int, dtype: tf.DType, nothing: np.ndarray
    ) -> Ref:
        # Per memory: a result that is merged elsewhere would be sent once more.
        key = str(ref), memory
        if key not in self._merged:
            name = f"{self._name}/result_{len(self._merged)}"
            device = self._topology.replica_devices[memory]
            other = self._nothing(f"{name}/nothing", memory, nothing, device)
            attrs = {"N": 2, "T": dtype}
            self._merged[key] = self._emit.add(
                name, "Merge", [ref, other], device, "output:0", attrs
            )
        return self._merged[key]

    def _nothing(self, name: str, replica: int, value: Any, device: str) -> Ref:
        """A constant, where the condition is false."""
        condition = self._conditions[replica]
        off = self._switch(f"{name}/off", condition, replica, tf.bool, "false")
        # An edge has no side: what follows the identity follows this side only.
        pivot = self._emit.add(
            f"{name}/pivot", "Identity", [off], device, "output:0", {"T": tf.bool}
        )
        attrs = {"dtype": tf.as_dtype(value.dtype), "value": value}
        return self._emit.add(
            name, "Const", [], device, "output:0", attrs, controls=[pivot.node]
        )

    def _switch(
        self, name: str, ref: Tensor, replica: int, dtype: tf.DType, side: str
    ) -> Ref:
        device = self._topology.replica_devices[replica]
        inputs = [ref, self._conditions[replica]]
        port = f"output_{side}:0"
        return self._emit.add(name, "Switch", inputs, device, port, {"T": dtype})
