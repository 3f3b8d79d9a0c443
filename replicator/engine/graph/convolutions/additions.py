"""Nodes that are added to a graph while some of its nodes are computed otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.graph.body import make_const, make_node

if TYPE_CHECKING:
    from collections.abc import Sequence


class Additions:
    """Adds nodes, and each of them once: what computes the same is one node."""

    def __init__(self, graph_def: Any, prefix: str) -> None:
        """Takes what is added to."""
        self._graph_def = graph_def
        self._prefix = prefix
        self._names: dict[tuple[Any, ...], str] = {}

    def const(self, value: Any, device: str) -> str:
        """Returns the name of a constant from a NumPy value."""
        key = (device, str(value.dtype), value.shape, value.tobytes())
        if key not in self._names:
            name = f"{self._prefix}/const_{len(self._names)}"
            self._graph_def.node.append(make_const(name, value, device))
            self._names[key] = name
        return self._names[key]

    def node(self, op: str, inputs: Sequence[str], device: str, **attrs: Any) -> str:
        """Returns the name of a node; ``attrs`` as those of ``make_node``."""
        key = (device, op, *inputs, *map(str, attrs.items()))
        if key not in self._names:
            name = f"{self._prefix}/{op}_{len(self._names)}"
            self._graph_def.node.append(make_node(name, op, inputs, device, attrs))
            self._names[key] = name
        return self._names[key]

    def reshaped(
        self, tensor: str, shape: Sequence[int], dtype: Any, device: str
    ) -> str:
        """Returns the name of a tensor in another shape."""
        inputs = [tensor, self.const(np.array(shape, np.int32), device)]
        return self.node("Reshape", inputs, device, T=dtype, Tshape=tf.int32)
