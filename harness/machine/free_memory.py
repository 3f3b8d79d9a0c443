"""Memory that a process could still take: of the machine, within the control group."""

from __future__ import annotations

from pathlib import Path

import psutil

from replicator.placement import cgroups

# (limit, usage) by version of the control groups.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}


def read_free_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that are available before anything is killed or swapped."""
    free = int(psutil.virtual_memory().available)
    for folder, version in cgroups.folders("memory", root):
        limit_name, usage_name = _FILES[version]
        try:
            limit = (folder / limit_name).read_text(encoding="ascii").strip()
            usage = (folder / usage_name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if limit.isdigit() and usage.isdigit():
            free = min(free, max(int(limit) - int(usage), 0))
    return free
