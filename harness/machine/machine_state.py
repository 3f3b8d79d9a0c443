"""Reads the settings of kernel and firmware, and the commit of the source code."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import math
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness import SOURCE_ROOT
from harness.machine import environment, gpus
from replicator.core import cgroups
from results.records.measuring import MachineState

OWN_FILE = "harness/__init__.py"
"""What a repository must have for its commit to be that of our sources."""
_GIT_TIMEOUT_SEC = 10.0
_COMMIT = "# branch.oid "
CPU_FOLDER = "sys/devices/system/cpu"
_NODE_FOLDER = "sys/devices/system/node"


def read_machine_state(
    cores: Sequence[int],
    *,
    root: Path = Path("/"),
    source_root: Path = SOURCE_ROOT,
    marker: str = OWN_FILE,
) -> MachineState:
    """Reads the settings that timings on this machine depend on, and the commit.

    Args:
        cores: The logical CPUs whose settings count.
        root: The folder with ``proc`` and ``sys``.
        source_root: The folder whose commit is recorded; by default the harness's own.
        marker: A file that its repository must have, or ``.``.

    Returns:
        The state now, as records have it; what cannot be read is None.
    """
    commit, is_modified = read_source_state(source_root, marker)
    libc, libc_version = platform.libc_ver()
    return MachineState(
        glibc_version=(libc_version or None) if libc == "glibc" else None,
        transparent_huge_pages=read_huge_pages(root),
        cpu_governor="+".join(read_governors(cores, root)) or None,
        is_boost_enabled=read_boost(root),
        is_smt_active=read_flag(root / CPU_FOLDER / "smt/active"),
        num_numa_nodes=len([*(root / _NODE_FOLDER).glob("node[0-9]*")]) or None,
        gpu_driver=gpus.driver_version(),
        container=environment.read_container(root),
        git_commit=commit,
        is_source_modified=is_modified,
    )


def read_huge_pages(root: Path = Path("/")) -> str | None:
    text = read_line(root / "sys/kernel/mm/transparent_hugepage/enabled")
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else None


def read_governors(cores: Sequence[int], root: Path = Path("/")) -> list[str]:
    paths = (root / CPU_FOLDER / f"cpu{cpu}/cpufreq/scaling_governor" for cpu in cores)
    return sorted({text for path in paths if (text := read_line(path))})


def read_boost(root: Path = Path("/")) -> bool | None:
    is_off = read_flag(root / CPU_FOLDER / "intel_pstate/no_turbo")
    if is_off is not None:
        return not is_off
    return read_flag(root / CPU_FOLDER / "cpufreq/boost")


def read_flag(path: Path) -> bool | None:
    return {"0": False, "1": True}.get(read_line(path))


def read_line(path: Path) -> str:
    """Returns the text of a small file of the kernel; empty if it cannot be read."""
    return read_text(path).strip()


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
        done = environment.run_git(folder, *arguments, timeout_sec=_GIT_TIMEOUT_SEC)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogicalCpu:
    """A CPU that the kernel numbers: a core, or one of its threads."""

    cpu: int  # Its number, as in ``sched_setaffinity``.
    node: int = 0  # NUMA node; 0 when it cannot be read.
    package: int = 0  # Socket; 0 when it cannot be read.
    core: int = 0  # Within its package; ``cpu`` when it cannot be read.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CpuTopology:
    """The CPUs that a sweep may use.

    ``harness.main(..., run_overrides={"topology": ...})`` plans and measures on fewer
    than the affinity mask has, or on CPUs that are grouped as you say.
    """

    cpus: tuple[LogicalCpu, ...]  # Of the affinity mask.
    quota_cores: float | None = None  # That the cgroups grant; None for no limit.

    @property
    def num_available_cores(self) -> int:
        """Logical CPUs that can be busy at once: affinity, limited by the quota."""
        if self.quota_cores is None:
            return len(self.cpus)
        return max(1, min(len(self.cpus), math.floor(self.quota_cores)))

    @property
    def num_physical_cores(self) -> int:
        return len({(cpu.package, cpu.core) for cpu in self.cpus})


def read_topology(
    root: Path = Path("/"), affinity: frozenset[int] | None = None
) -> CpuTopology:
    """Reads which CPUs this process may use, and how they are grouped.

    Args:
        root: The folder with ``proc`` and ``sys``.
        affinity: The numbers of the CPUs; by default the mask of this process.
    """
    if affinity is None:
        affinity = frozenset(os.sched_getaffinity(0))
    return CpuTopology(
        cpus=tuple(_read_cpu(root, cpu) for cpu in sorted(affinity)),
        quota_cores=_read_quota_cores(root),
    )


def _read_cpu(root: Path, cpu: int) -> LogicalCpu:
    folder = root / CPU_FOLDER / f"cpu{cpu}"
    names = [path.name.removeprefix("node") for path in folder.glob("node*")]
    return LogicalCpu(
        cpu=cpu,
        node=min((int(name) for name in names if name.isdigit()), default=0),
        package=_read_number(folder / "topology/physical_package_id", 0),
        core=_read_number(folder / "topology/core_id", cpu),
    )


def _read_number(path: Path, default: int) -> int:
    text = read_line(path)
    return int(text) if text.removeprefix("-").isdigit() else default


def _read_groups(
    controller: str, names: Mapping[int, Sequence[str]], root: Path
) -> Iterator[list[str]]:
    """Yields the words of files of the own control group, then of those above it."""
    for folder, version in cgroups.folders(controller, root):
        texts = (read_text(folder / name) for name in names[version])
        yield [word for text in texts for word in text.split()]


def _read_quota_cores(root: Path) -> float | None:
    """Returns the smallest CPU quota over this process's cgroups, or None."""
    names = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}
    said = _read_groups("cpu", names, root)  # none is "max", or -1
    quotas = [[int(w) for w in words] for words in said if all(map(str.isdigit, words))]
    granted = [pair[0] / pair[1] for pair in quotas if len(pair) > 1 and all(pair)]
    return min(granted, default=None)


read_free_memory = cgroups.free_memory


def read_oom_kills(root: Path = Path("/")) -> int | None:
    """Returns how many processes of this control group the killer ended, or None."""
    names = {1: ("memory.oom_control",), 2: ("memory.events",)}
    for words in _read_groups("memory", names, root):
        counts = dict(zip(words[::2], words[1::2], strict=False))
        if counts.get("oom_kill", "").isdigit():
            return int(counts["oom_kill"])
    return None


def read_text(path: Path | str) -> str:
    """Returns the text of a file of the kernel; empty where it does not exist."""
    # Trials have hundreds of threads: without buffers it takes a third of the time.
    # ESRCH, a ProcessLookupError: the process ended between opening and reading.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(descriptor, 1 << 16):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
        finally:
            os.close(descriptor)
    return ""


def now_text() -> str:
    """Returns the time as RFC 3339 in UTC, to the second."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def age_sec(modified: float) -> float:
    """Returns how long ago a file was modified, from the time that its status has."""
    return time.time() - modified
