"""The control groups that this process is in; imports no TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# Limit, usage, and what says how much of the usage is files that can be dropped.
_MEMORY: Final = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def folders(controller: str, root: Path = Path("/")) -> list[tuple[Path, int]]:
    """Lists folders, if they exist, whose files limit this process, with versions."""
    # With all ancestors, as the tightest limit applies, and the mount point, where the
    # process's group often is inside a container.
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return []
    limits = []
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) != 3:  # noqa: PLR2004 - id:controllers:path
            continue
        _, controllers, path = fields
        if controllers == "":
            bases, version = [mount, mount / "unified"], 2
        elif controller in controllers.split(","):
            bases, version = [mount / controllers, mount / controller], 1
        else:
            continue
        relative = Path(path.lstrip("/"))
        limits += [
            (base / folder, version)
            for base in dict.fromkeys(bases)
            for folder in (relative, *relative.parents)
        ]
    return limits


def free_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that this process can still use; files can be dropped."""
    import psutil  # the planner needs no memory

    left = [int(psutil.virtual_memory().available)]
    for folder, version in folders("memory", root):
        limit, usage, droppable = _MEMORY[version]
        try:
            most, used = ((folder / name).read_text() for name in (limit, usage))
            lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        if most.strip() != "max":
            dropped = dict(line.split() for line in lines).get(droppable, "0")
            left.append(max(int(most) - int(used) + int(dropped), 0))
    return min(left)
