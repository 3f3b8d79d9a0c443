"""Reads the settings of kernel and firmware, and the commit of the source code."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from harness.machine import containers, git, gpus
from results.records.machines.machine_record import MachineState

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE_ROOT = Path(__file__).resolve().parents[2]
OWN_FILE = "harness/__init__.py"
"""What a repository must have for its commit to be that of our sources."""
_GIT_TIMEOUT_SEC = 10.0
_COMMIT = "# branch.oid "
_CPU_FOLDER = "sys/devices/system/cpu"


def read_machine_state(
    cores: Sequence[int],
    *,
    root: Path = Path("/"),
    source_root: Path = SOURCE_ROOT,
    marker: str = OWN_FILE,
) -> MachineState:
    """Returns the state now; what cannot be read is None."""
    commit, is_modified = read_source_state(source_root, marker)
    return MachineState(
        glibc_version=read_glibc_version(),
        transparent_huge_pages=read_huge_pages(root),
        cpu_governor="+".join(read_governors(cores, root)) or None,
        is_boost_enabled=read_boost(root),
        is_smt_active=read_flag(root / _CPU_FOLDER / "smt/active"),
        num_numa_nodes=_count_numa_nodes(root),
        gpu_driver=gpus.driver_version(),
        container=containers.read(root),
        git_commit=commit,
        is_source_modified=is_modified,
    )


def read_glibc_version() -> str | None:
    """Returns the version of the C library, or None if it is another one."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return None
    return version if name == "glibc" and version else None


def read_huge_pages(root: Path = Path("/")) -> str | None:
    """Returns the chosen setting of transparent huge pages."""
    text = read_line(root / "sys/kernel/mm/transparent_hugepage/enabled")
    found = re.search(r"\[(\w+)\]", text or "")
    return found[1] if found else None


def read_governors(cores: Sequence[int], root: Path = Path("/")) -> list[str]:
    """Returns the distinct governors of the cores; none where there is no scaling."""
    paths = (root / _CPU_FOLDER / f"cpu{cpu}/cpufreq/scaling_governor" for cpu in cores)
    return sorted({text for path in paths if (text := read_line(path))})


def read_boost(root: Path = Path("/")) -> bool | None:
    """Returns whether cores may exceed their base clock."""
    is_off = read_flag(root / _CPU_FOLDER / "intel_pstate/no_turbo")
    if is_off is not None:
        return not is_off
    return read_flag(root / _CPU_FOLDER / "cpufreq/boost")


def read_flag(path: Path) -> bool | None:
    """Returns a setting that is 0 or 1."""
    return {"0": False, "1": True}.get(read_line(path) or "")


def read_line(path: Path) -> str | None:
    """Returns the text of a file of one line, or None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _count_numa_nodes(root: Path) -> int | None:
    nodes = [*(root / "sys/devices/system/node").glob("node[0-9]*")]
    return len(nodes) or None


def read_source_state(
    source_root: Path, marker: str = OWN_FILE
) -> tuple[str | None, bool | None]:
    """Returns commit and dirtiness of the Python files; None outside of git."""
    if _git(source_root, "ls-files", "--error-unmatch", marker) is None:
        return None, None
    # One command for both, since processes of git take most of the time here.
    options = ("--porcelain=v2", "--branch", "--untracked-files=normal")
    paths = "*.py" if marker == OWN_FILE else ":/"
    lines = (_git(source_root, "status", *options, "--", paths) or "").splitlines()
    if not lines:
        return None, None
    head = next((line for line in lines if line.startswith(_COMMIT)), "")
    commit = head.removeprefix(_COMMIT)
    is_modified = any(not line.startswith("#") for line in lines)
    return (commit if commit.isalnum() else None), is_modified


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns the output of git; None if it fails or does not exist."""
    try:
        done = git.run(folder, *arguments, timeout_sec=_GIT_TIMEOUT_SEC)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout
