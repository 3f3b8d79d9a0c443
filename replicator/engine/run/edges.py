"""Edges: what a linked step sends from device to device."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from replicator.engine.graph.body import producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Edges:
    """Counts of transfers in a step, besides those of collective operations.

    What its caller adds, to start it and to get what it returns, is not among them.

    Attributes:
      num_values: Tensors that another device gets, once for each such device.
      num_signals: Nodes that something on another device waits for, likewise. Each is
        a copy of nothing, with a wait and a callback on a GPU.
    """

    num_values: int
    num_signals: int

    def __str__(self) -> str:
        return (
            f"between devices, besides collective operations: {self.num_values} "
            f"tensor(s) and {self.num_signals} signal(s) without a value"
        )


def count(nodes: Sequence[Any], ends: Iterable[str], device: str) -> Edges:
    """Counts the edges of a function that lead to another device.

    Args:
      nodes: The ``NodeDef``s of the function.
      ends: Names of the nodes that its caller waits for.
      device: Of the caller.
    """
    devices = {node.name: node.device for node in nodes}
    values: set[tuple[str, str]] = set()
    signals: set[tuple[str, str]] = set()
    for node in nodes:
        for text in node.input:
            source = devices.get(producer(text), "")
            if source and node.device and source != node.device:
                found = signals if text.startswith("^") else values
                found.add((text, node.device))
    waited = {name for name in ends if devices.get(name, device) not in ("", device)}
    return Edges(num_values=len(values), num_signals=len(signals) + len(waited))
