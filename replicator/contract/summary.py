"""Summary: who runs what where, and how many bytes of variables each device holds."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.variables.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from replicator.contract.base import Replicator
    from replicator.placement.topology import Topology
    from replicator.variables.table import Entry

_KINDS = {
    Kind.MIRRORED: "mirrored",
    Kind.LOCAL: "replica-local",
    Kind.RANDOM: "random",
    Kind.PARTIAL: "partial",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """One copy of a variable.

    Attributes:
      device: Full name of the device that holds it.
      kind: ``mirrored``, ``replica-local`` or ``random``.
      num_bytes: Its size.
    """

    device: str
    kind: str
    num_bytes: int


def describe(
    repl: Replicator, places: Sequence[str], holdings: Sequence[Holding] | None
) -> str:
    """Writes the summary of a replicator.

    Args:
      repl: Whose.
      places: One line per replica of this process.
      holdings: All copies of variables that steps used; None where nobody knows.

    Returns:
      Some lines.
    """
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
    if holdings is None:
        return "\n".join([*lines, "variables: where they were made"])
    if not holdings:
        return "\n".join(
            [*lines, "variables: none yet; call run() first, which places them"]
        )
    return "\n".join([*lines, "variables:", *_by_device(holdings)])


def places_of(topology: Topology) -> list[str]:
    """One line per replica: its devices, and whose mirrored variables it uses."""
    lines = []
    for replica, devices in enumerate(topology.devices):
        names = ", ".join(
            short if index == 0 else f"{short} (logical device {index})"
            for index, short in enumerate(map(_short, devices))
        )
        holder = topology.holders[replica]
        copy = (
            "its own copy"
            if holder == replica
            else f"the copy of replica {topology.replica_id(holder)}"
        )
        lines.append(
            f"replica {topology.replica_id(replica)}: {names}; mirrored variables: "
            f"{copy}"
        )
    return lines


def holdings_of(entries: Iterable[Entry]) -> list[Holding]:
    """The copies behind the entries of an engine, each once."""
    found = {}
    for entry in entries:
        for copy in {id(c): c for c in (entry.variable, *entry.copies)}.values():
            found[id(copy)] = holding(copy, _KINDS[entry.kind])
    return list(found.values())


def holding(variable: Any, kind: str) -> Holding:
    """One variable on one device."""
    size = int(np.prod(variable.shape, dtype=np.int64))
    return Holding(
        device=variable.device,
        kind=kind,
        num_bytes=size * tf.as_dtype(variable.dtype).size,
    )


def _by_device(holdings: Sequence[Holding]) -> list[str]:
    sizes: dict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    for item in holdings:
        sizes[item.device][item.kind] += item.num_bytes
    return [
        f"  {_short(device)}: {of_kind.total():,} bytes ("
        + ", ".join(f"{kind} {size:,}" for kind, size in sorted(of_kind.items()))
        + ")"
        for device, of_kind in sorted(sizes.items())
    ]


def _short(device: str) -> str:
    spec = tf.DeviceSpec.from_string(device)
    name = f"{spec.device_type}:{spec.device_index}"
    is_here = spec.job in (None, "localhost")
    return name if is_here else f"{spec.job} {spec.task}, {name}"
