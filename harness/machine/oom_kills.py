"""The kernel's count of processes that it ended for want of memory."""

from __future__ import annotations

from pathlib import Path


def read_oom_kills(root: Path = Path("/")) -> int | None:
    """Returns how often the out-of-memory killer struck since boot, or None."""
    try:
        lines = (root / "proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None
