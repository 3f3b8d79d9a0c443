"""The control groups that this process is in; imports no TensorFlow."""

from __future__ import annotations

from pathlib import Path


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
