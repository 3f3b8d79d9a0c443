"""The kernel's count of processes that it ended for want of memory."""

from __future__ import annotations

from pathlib import Path

from replicator.placement import cgroups

_FILES = {1: "memory.oom_control", 2: "memory.events"}


def read_oom_kills(root: Path = Path("/")) -> int | None:
    """Returns how many processes of this control group the killer ended, or None.

    That of the whole machine counts the processes of others, too, so without control
    groups nothing is claimed.
    """
    for folder, version in cgroups.folders("memory", root):
        try:
            text = (folder / _FILES[version]).read_text(encoding="ascii")
        except OSError:
            continue
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                return int(value)
    return None
