"""The control groups that this process is in; imports no TensorFlow."""

from __future__ import annotations

from pathlib import Path


def folders(controller: str, root: Path = Path("/")) -> list[tuple[Path, int]]:
    """Lists the folders whose files limit this process, and the version of each.

    Every ancestor is listed, as the tightest limit applies. Inside a container the
    process's group is often mounted at the top, so the mount point is listed too. Not
    every folder has to exist.
    """
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return []
    found = []
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
        found += [
            (base / folder, version)
            for base in dict.fromkeys(bases)
            for folder in (relative, *relative.parents)
        ]
    return found
