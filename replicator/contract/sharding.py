"""Sharding: what each level of a sharded update keeps on a device, as a table.

Rajbhandari et al. 2020, figure 1: of R owners, each has all of what is not sharded, and
its own part of what is. Parts are those of the variables that are there, whole ones, so
the fullest device counts and not the mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from replicator.validation.arguments import shown
from replicator.validation.integers import INT64_MAX, is_integer

if TYPE_CHECKING:
    from collections.abc import Sequence

LEVELS = ("none", "state", "gradients", "parameters")


class Held(NamedTuple):
    """Bytes of the variables of one owner, and of their optimizer state."""

    weights: int
    state: int


class Row(NamedTuple):
    """Bytes on the fullest device."""

    level: str
    weights: int
    gradients: int
    state: int
    together: int


def check_memory(device_memory: Any) -> None:
    """Rejects what cannot be the memory of a device.

    Raises:
      ValueError: Not a positive integer.
    """
    if device_memory is None or is_integer(device_memory, least=1, most=INT64_MAX):
        return
    raise ValueError(
        f"device_memory={shown(device_memory)} must be a positive integer, the bytes "
        "of a device that weights, gradients and optimizer state may take"
    )


def rows(held: Sequence[Held]) -> list[Row]:
    """What the fullest device keeps, by level.

    Args:
      held: By owner, what it owns. An averaged gradient is as large as its variable.
    """
    weights = sum(own.weights for own in held)
    state = sum(own.state for own in held)
    found = []
    for place, level in enumerate(LEVELS):
        devices = [
            (
                own.weights if place >= LEVELS.index("parameters") else weights,
                own.weights if place >= LEVELS.index("gradients") else weights,
                own.state if place >= LEVELS.index("state") else state,
            )
            for own in held
        ]
        fullest = max(devices, key=sum)
        found.append(Row(level, *fullest, sum(fullest)))
    return found


def table(held: Sequence[Held], device_memory: int | None) -> list[str]:
    """The rows as text; empty where nothing has an owner.

    Args:
      held: By owner, what it owns.
      device_memory: Bytes of a device, or None.
    """
    if not any(own.weights for own in held):
        return []
    found = rows(held)
    head = ("level", "weights", "gradients", "state", "together")
    cells = [head, *((r.level, *(f"{n:,}" for n in r[1:])) for r in found)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
    if device_memory is not None:
        fits = ["", *(_fit(row, device_memory) for row in found)]
        lines = [line + fit for line, fit in zip(lines, fits, strict=True)]
    title = (
        f"bytes on the fullest of {len(held)} devices by level of sharded_update, "
        "without activations and what is being sent:"
    )
    return [
        title,
        *(f"  {line}" for line in lines),
    ]


def _fit(row: Row, device_memory: int) -> str:
    does = "fits" if row.together <= device_memory else "does not fit"
    return f"  {does} {device_memory:,}"
