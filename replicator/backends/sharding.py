"""Sharding: what each level of a sharded update keeps on a device, as a table.

With the activations of a pipeline, once its step was traced. Rajbhandari et al. 2020,
figure 1: of R owners, each has all of what is not sharded, and its own part of what is.
Parts are whole variables, so the fullest device counts and not the mean. Imports no
TensorFlow: planners use it.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

from replicator import catalog

LEVELS = ("none", *catalog.LEVELS)
_STATE, _GRADIENTS, _PARAMETERS = map(LEVELS.index, catalog.LEVELS)
OF_SPLIT_REPLICAS = "a replica has several devices, on which its variables are"


class Held(NamedTuple):
    """What an owner has on one of its logical devices, the ``place``.

    Bytes of variables, and of their optimizer state.
    """

    weights: int
    state: int
    place: int = 0


class Row(NamedTuple):
    """Bytes on the fullest device."""

    level: str
    weights: int
    gradients: int
    state: int
    activations: int
    together: int


def rows(held: Sequence[Held], activations: Sequence[int] = ()) -> list[Row]:
    """What the fullest device keeps, by level."""
    weights, state = collections.Counter[int](), collections.Counter[int]()
    for own in held:  # by place, of all owners
        weights[own.place] += own.weights
        state[own.place] += own.state
    kept = dict(enumerate(activations))
    levels = []
    for index, level in enumerate(LEVELS):
        devices = [
            (
                own.weights if index >= _PARAMETERS else weights[own.place],
                own.weights if index >= _GRADIENTS else weights[own.place],
                own.state if index >= _STATE else state[own.place],
                kept.get(own.place, 0),
            )
            for own in held
        ]
        fullest = max(devices, key=sum)
        levels.append(Row(level, *fullest, sum(fullest)))
    return levels


def table(
    held: Sequence[Held],
    device_memory: int | None,
    activations: Sequence[int] = (),
    refused: str = "",
) -> list[str]:
    """The rows as text; where nothing has an owner, only why no level is marked."""
    if not any(own.weights for own in held):
        said = (
            f"no level of sharded_update is marked for {device_memory or 0:,} bytes: no"
            " variable has an owner; wrap_optimizer(..., sharded_update=...) gives them"
            " one where replicas have copies, once the optimizer is built"
        )
        return [] if device_memory is None else [said]
    shown = [
        row
        for row in rows(held, activations)
        if not (refused and row.level == catalog.PARAMETERS)
    ]
    first, *names = [n for n in Row._fields if activations or n != "activations"]
    cells = [[first, *names]]
    cells += [[r.level, *(f"{getattr(r, n):,}" for n in names)] for r in shown]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in cells
    ]
    if device_memory is not None:
        for index, row in enumerate(shown, start=1):
            does = "fits" if row.together <= device_memory else "does not fit"
            lines[index] += f"  {does} {device_memory:,}"
    if refused:
        lines.append(f"{catalog.PARAMETERS}: not here, {refused}")
    title = (
        f"bytes on the fullest of {len(held)} devices by level of sharded_update, "
        f"without {'' if activations else 'activations and '}what is being sent:"
    )
    return [title, *(f"  {line}" for line in lines)]
