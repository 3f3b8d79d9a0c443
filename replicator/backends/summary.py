"""Summary: workers, replicas and devices, bytes of variables by device; timelines."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import dispatch
from replicator.core.validation import format_value
from replicator.variables.kinds import Kind
from replicator.variables.table import Entry, num_bytes

if TYPE_CHECKING:
    from replicator.checkpoint.position import Job
    from replicator.core.devices import Topology


# Names that one line lists; of batch norm, every layer has two.
_MAX_NAMES = 6
_NOT_YET = "variables: none yet; the first run() places them"


Sizes = collections.Counter[tuple[str, str]]
"""Bytes of variables, by the full name of their device and their kind."""


def head(repl: Job) -> list[str]:
    """The lines about the whole job, and about this process."""
    workers = f"{repl.num_workers} worker" + "s" * (repl.num_workers != 1)
    last = repl.first_replica_id + repl.num_local_replicas - 1
    whole = (
        f"{type(repl).__name__}: {repl.num_replicas} replicas on {workers}, "
        f"{repl.num_replicas_in_sync} in sync, "
        f"{repl.logical_devices_per_replica} logical devices each"
    )
    here = (
        f"this process: worker {repl.worker_id}{' (chief)' * repl.is_chief}, replicas "
        f"{repl.first_replica_id} to {last}"
    )
    return [whole, here]


def by_device(sizes: Sizes) -> list[str]:
    """The lines about variables."""
    lines = ["variables:" if sizes else _NOT_YET]
    for device in sorted({device for device, _ in sizes}):
        own = {kind: n for (index, kind), n in sizes.items() if index == device}
        kinds = ", ".join(f"{kind} {size:,}" for kind, size in sorted(own.items()))
        total = sum(own.values())
        lines.append(f"  {_short_name(device)}: {total:,} bytes ({kinds})")
    return lines


def replicas_of(topology: Topology) -> list[str]:
    """One line per replica: its devices and its copy of the mirrored variables."""
    lines = []
    for replica, (first, *others) in enumerate(topology.devices):
        more = enumerate(map(_short_name, others), start=1)
        parts = [f", {name} (logical device {index})" for index, name in more]
        primary = topology.primaries[replica]
        copy = f"the copy of replica {topology.replica_id(primary)}"
        lines.append(
            f"  replica {topology.replica_id(replica)}: {_short_name(first)}"
            f"{''.join(parts)}; mirrored variables: "
            f"{'its own copy' if primary == replica else copy}"
        )
    return lines


def _short_name(device: str) -> str:
    spec = tf.DeviceSpec.from_string(device)
    name = f"{spec.device_type}:{spec.device_index}"
    is_here = spec.job in (None, "localhost")
    return name if is_here else f"{spec.job} {spec.task}, {name}"


def sizes_of(copies: Iterable[tuple[Any, Kind]]) -> Sizes:
    sizes: Sizes = collections.Counter()
    for variable, kind in copies:
        name = "replica-local" if kind is Kind.LOCAL else kind.value
        sizes[variable.device, name] += num_bytes(variable)
    return sizes


def sizes_of_entries(entries: Iterable[Entry]) -> Sizes:
    """Those of the variables of an engine's table and all their copies, each once."""
    by_id = {id(c): (c, e.kind) for e in entries for c in (e.variable, *e.copies)}
    return sizes_of(by_id.values())


def local_variables(entries: Iterable[Entry]) -> str:
    """One line that names the replica-local variables; empty without any."""
    local = [e.variable.name for e in entries if e.kind is Kind.LOCAL]
    names = ", ".join(name.partition(":")[0] for name in local[:_MAX_NAMES])
    more = len(local) - _MAX_NAMES
    line = f"replica-local, each replica has its own: {names}"
    return f"{line} and {more} more" if more > 0 else line * bool(local)


# What names of operations say of where an event of a timeline belongs.
_PARTS = {
    "replica": re.compile(r"(?:^|/)(?:\w*_)?replica_(\d+)/"),
    "bucket": re.compile(r"/(collective_\d+_\d+)(?:/|_|:|$)"),
    "stage": re.compile(r"/stage_(\d+)_[FB]\d+/"),
    "task": re.compile(r"/stage_\d+_([FB]\d+)/"),
}
_NANO, _PICO = 1e3, 1e6  # in a microsecond, the unit of Chrome


def timeline(path: Any) -> contextlib.AbstractContextManager[None]:
    """Records what this process computes meanwhile; see ``Replicator.timeline``."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise TypeError(
            f"timeline({format_value(path)}) must be the path of a file to write"
        )
    trace_path = pathlib.Path(os.fsdecode(path)).absolute()
    reason = ""
    try:
        if trace_path.is_dir():
            reason = "it is a folder"
        else:
            trace_path.lstat()
    except FileNotFoundError:
        if not trace_path.parent.is_dir():
            reason = f"there is no folder {str(trace_path.parent)!r}"
        elif not os.access(trace_path.parent, os.W_OK):
            reason = "its folder cannot be written"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise ValueError(
            f"timeline() cannot write {format_value(str(path))}: {reason}; use a file "
            "in a folder that exists, such as 'trace.json'"
        )
    return _recorded(trace_path)


@contextlib.contextmanager
def _recorded(trace_path: pathlib.Path) -> Iterator[None]:
    planes: list[Any] = []
    try:
        with dispatch.profiled() as planes:
            yield
    finally:
        events = [e for pid, plane in enumerate(planes) for e in _events(pid, plane)]
        if events:
            trace_path.write_text(json.dumps({"traceEvents": events}))


def _events(pid: int, plane: Any) -> Iterator[dict[str, Any]]:
    """What Chrome is told of a plane: names of threads, and what ran on each."""
    named = {"ph": "M", "pid": pid}
    process = {"name": plane.name}
    yield {**named, "tid": 0, "name": "process_name", "args": process}
    for line in plane.lines:
        thread = {"name": line.display_name or line.name}
        yield {**named, "tid": line.id, "name": "thread_name", "args": thread}
        for event in line.events:
            name = plane.event_metadata[event.metadata_id].name
            yield {
                "ph": "X",
                "pid": pid,
                "tid": line.id,
                "name": name,
                "ts": line.timestamp_ns / _NANO + event.offset_ps / _PICO,
                "dur": event.duration_ps / _PICO,
                "args": _arguments(name),
            }


def _arguments(name: str) -> dict[str, Any]:
    op, _, kind = name.rpartition(":")
    arguments: dict[str, Any] = {"op": kind} if op else {}
    for key, pattern in _PARTS.items():
        if match := pattern.search(name):
            arguments[key] = int(match[1]) if match[1].isdigit() else match[1]
    return arguments
