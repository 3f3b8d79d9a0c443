"""Summary: workers, replicas and devices, and the bytes of variables on each device."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator import catalog
from replicator._tf import dispatch
from replicator.core.validation import INT64_MAX, format_value, is_integer
from replicator.variables.kinds import Kind
from replicator.variables.ownership import num_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from replicator.core.topology import JobFacts, Topology
    from replicator.variables.table import Entry


_KINDS = {
    Kind.MIRRORED: "mirrored",
    Kind.LOCAL: "replica-local",
    Kind.RANDOM: "random",
    Kind.PARTIAL: "partial",
}


# Names that one line lists; of batch norm, every layer has two.
_MAX_NAMES = 6


class VariableCopy(NamedTuple):
    """One copy of a variable."""

    device: str  # Full name of its device.
    kind: str  # ``mirrored``, ``replica-local`` or ``random``.
    num_bytes: int  # Its size.


def describe(
    repl: JobFacts,
    places: Sequence[str],
    copies: Sequence[VariableCopy] | None,
    local: str = "",
) -> str:
    """Writes the summary of a replicator."""
    workers = f"{repl.num_workers} worker" + "s" * (repl.num_workers != 1)
    chief = " (chief)" if repl.is_chief else ""
    last = repl.first_replica_id + repl.num_local_replicas - 1
    whole = (
        f"{type(repl).__name__}: {repl.num_replicas} replicas on {workers}, "
        f"{repl.num_replicas_in_sync} in sync, "
        f"{repl.logical_devices_per_replica} logical devices each"
    )
    here = (
        f"this process: worker {repl.worker_id}{chief}, replicas "
        f"{repl.first_replica_id} to {last}"
    )
    lines = [whole, here, *(f"  {place}" for place in places)]
    if copies is None:
        return "\n".join([*lines, "variables: on the devices where they were created"])
    if not copies:
        return "\n".join([*lines, "variables: none yet; the first run() places them"])
    found = [*lines, "variables:", *_by_device(copies), *filter(None, [local])]
    return "\n".join(found)


def places_of(topology: Topology) -> list[str]:
    """One line per replica: its devices and its copy of the mirrored variables."""
    lines = []
    for replica, devices in enumerate(topology.devices):
        names = ", ".join(
            short if index == 0 else f"{short} (logical device {index})"
            for index, short in enumerate(map(_short_name, devices))
        )
        primary = topology.primaries[replica]
        copy = (
            "its own copy"
            if primary == replica
            else f"the copy of replica {topology.replica_id(primary)}"
        )
        lines.append(
            f"replica {topology.replica_id(replica)}: {names}; mirrored variables: "
            f"{copy}"
        )
    return lines


def variable_copies(entries: Iterable[Entry]) -> list[VariableCopy]:
    """All copies of the variables in an engine's table, each once."""
    found = {}
    for entry in entries:
        for copy in {id(c): c for c in (entry.variable, *entry.copies)}.values():
            found[id(copy)] = variable_copy(copy, _KINDS[entry.kind])
    return list(found.values())


def local_variables(entries: Iterable[Entry]) -> str:
    """One line that names the replica-local variables; empty without any."""
    local = [e.variable.name for e in entries if e.kind is Kind.LOCAL]
    names = [name.partition(":")[0] for name in local]
    more = len(names) - _MAX_NAMES
    shown = ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"replica-local, each replica has its own: {shown}" if names else ""


def variable_copy(variable: Any, kind: str) -> VariableCopy:
    """One variable on one device."""
    return VariableCopy(variable.device, kind, num_bytes(variable))


def _by_device(copies: Sequence[VariableCopy]) -> list[str]:
    sizes: dict[str, collections.Counter[str]] = {}
    for item in copies:
        of_device = sizes.setdefault(item.device, collections.Counter())
        of_device[item.kind] += item.num_bytes
    return [
        f"  {_short_name(device)}: {of_kind.total():,} bytes ("
        + ", ".join(f"{kind} {size:,}" for kind, size in sorted(of_kind.items()))
        + ")"
        for device, of_kind in sorted(sizes.items())
    ]


def _short_name(device: str) -> str:
    spec = tf.DeviceSpec.from_string(device)
    name = f"{spec.device_type}:{spec.device_index}"
    is_here = spec.job in (None, "localhost")
    return name if is_here else f"{spec.job} {spec.task}, {name}"


# What each level of a sharded update keeps on a device, as a table; with the
# activations of a pipeline, once its step was traced. Rajbhandari et al. 2020, figure
# 1: of R owners, each has all of what is not sharded, and its own part of what is.
# Parts are whole variables, so the fullest device counts and not the mean.

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
    found = []
    for index, level in enumerate(LEVELS):
        devices = [
            (
                (own if index >= _PARAMETERS else whole[own.place]).weights,
                (own if index >= _GRADIENTS else whole[own.place]).weights,
                (own if index >= _STATE else whole[own.place]).state,
                kept.get(own.place, 0),
            )
            for own in held
        ]
        fullest = max(devices, key=sum)
        found.append(Row(level, *fullest, sum(fullest)))
    return found


def table(
    held: Sequence[Held],
    device_memory: int | None,
    activations: Sequence[int] = (),
    refused: str = "",
) -> list[str]:
    """The rows as text; where nothing has an owner, only why no level is marked."""
    if not any(own.weights for own in held):
        return unmarked(device_memory)
    found = rows(held, activations)
    if refused:
        found = [row for row in found if row.level != catalog.PARAMETERS]
    head = [name for name in Row._fields if activations or name != "activations"]
    cells = [head]
    for row in found:
        numbers = [f"{getattr(row, name):,}" for name in head[1:]]
        cells.append([row.level, *numbers])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    form = "  ".join(f"{{:>{width}}}" for width in widths).replace(">", "<", 1)
    lines = [form.format(*line) for line in cells]
    if device_memory is not None:
        for index, row in enumerate(found, start=1):
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


_PLACES = {
    "replica": re.compile(r"(?:^|/)(?:\w*_)?replica_(\d+)/"),
    "bucket": re.compile(r"/(collective_\d+_\d+)(?:/|_|:|$)"),
    "stage": re.compile(r"/stage_(\d+)_[FB]\d+/"),
    "task": re.compile(r"/stage_\d+_([FB]\d+)/"),
}


def check_timeline_path(path: Any) -> pathlib.Path:
    """Returns where a timeline is written to."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise TypeError(
            f"timeline({format_value(path)}) must be the path of a file to write"
        )
    place = pathlib.Path(os.fsdecode(path)).absolute()
    reason = ""
    try:
        if place.is_dir():
            reason = "it is a folder"
        else:
            place.lstat()
    except FileNotFoundError:
        if not place.parent.is_dir():
            reason = f"there is no folder {str(place.parent)!r}"
        elif not os.access(place.parent, os.W_OK):
            reason = "its folder cannot be written"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise ValueError(
            f"timeline() cannot write {format_value(str(path))}: {reason}; use a file "
            "in a folder that exists, such as 'trace.json'"
        )
    return place


@contextlib.contextmanager
def recorded(place: pathlib.Path) -> Iterator[None]:
    """Records what this process computes meanwhile; see ``Replicator.timeline``."""
    events: list[dict[str, Any]] = []
    try:
        with dispatch.recorded_events() as events:
            yield
    finally:
        for event in events:
            if event["ph"] == "X":
                event["args"] = _arguments(event["name"])
        if events:
            place.write_text(json.dumps({"traceEvents": events}))


def _arguments(name: str) -> dict[str, Any]:
    op, _, kind = name.rpartition(":")
    found: dict[str, Any] = {"op": kind} if op else {}
    for key, pattern in _PLACES.items():
        match = pattern.search(name)
        if match:
            found[key] = int(match[1]) if match[1].isdigit() else match[1]
    return found
