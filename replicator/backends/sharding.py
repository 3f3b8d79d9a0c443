"""Sharding: what each level of a sharded update keeps on a device, as a table.

With the activations of a pipeline, once its step was traced. Rajbhandari et al. 2020,
figure 1: of R owners, each has all of what is not sharded, and its own part of what is.
Parts are whole variables, so the fullest device counts and not the mean. Imports no
TensorFlow: planners use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from replicator import catalog
from replicator.core.validation import INT64_MAX, format_value, is_integer

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def check_memory(device_memory: Any) -> None:
    """Rejects what cannot be the memory of a device."""
    if device_memory is None or is_integer(device_memory, least=1, most=INT64_MAX):
        return
    raise ValueError(
        f"device_memory={format_value(device_memory)} must be a positive integer, the "
        "bytes of a device that weights, gradients and optimizer state may take"
    )


def why_not_parameters(repl: Any) -> str:
    """Why no owner can have a variable of a replicator alone, or nothing."""
    if repl.topology.num_logical_devices > 1:
        return OF_SPLIT_REPLICAS
    return catalog.entry_of(type(repl)).lacks.get("sharded_parameters", "")


def rows(held: Sequence[Held], activations: Sequence[int] = ()) -> list[Row]:
    """What the fullest device keeps, by level."""
    whole: dict[int, Held] = {}  # by place, of all owners
    for own in held:
        before = whole.get(own.place, Held(0, 0))
        whole[own.place] = Held(before.weights + own.weights, before.state + own.state)
    kept = dict(enumerate(activations))

    def bytes_of(own: Held, index: int) -> tuple[int, int, int, int]:
        every = whole[own.place]
        return (
            (own if index >= _PARAMETERS else every).weights,
            (own if index >= _GRADIENTS else every).weights,
            (own if index >= _STATE else every).state,
            kept.get(own.place, 0),
        )

    levels = []
    for index, level in enumerate(LEVELS):
        devices = [bytes_of(own, index) for own in held]
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
        return unmarked(device_memory)
    rows_of_levels = rows(held, activations)
    if refused:
        rows_of_levels = [
            row for row in rows_of_levels if row.level != catalog.PARAMETERS
        ]
    head = [name for name in Row._fields if activations or name != "activations"]
    numbers = [
        [f"{getattr(row, name):,}" for name in head[1:]] for row in rows_of_levels
    ]
    cells = [
        head,
        *(
            [row.level, *each]
            for row, each in zip(rows_of_levels, numbers, strict=True)
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    form = "  ".join(f"{{:>{width}}}" for width in widths).replace(">", "<", 1)
    lines = [form.format(*line) for line in cells]
    if device_memory is not None:
        for index, row in enumerate(rows_of_levels, start=1):
            does = "fits" if row.together <= device_memory else "does not fit"
            lines[index] += f"  {does} {device_memory:,}"
    title = (
        f"bytes on the fullest of {len(held)} devices by level of sharded_update, "
        f"without {'' if activations else 'activations and '}what is being sent:"
    )
    if refused:
        lines.append(f"{catalog.PARAMETERS}: not here, {refused}")
    return [title, *(f"  {line}" for line in lines)]


def unmarked(device_memory: int | None) -> list[str]:
    """The line that says why no level is marked, if that was asked."""
    if device_memory is None:
        return []
    line = (
        f"no level of sharded_update is marked for {device_memory:,} bytes: no variable"
        " has an owner; wrap_optimizer(..., sharded_update=...) gives them one where"
        " replicas have copies, once the optimizer is built"
    )
    return [line]
