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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from harness import SOURCE_ROOT
from harness.machine import environment, gpus
from replicator.core import cgroups
from results.records.measuring import MachineState

OWN_FILE = "harness/__init__.py"
"""What a repository must have for its commit to be that of our sources."""
_GIT_TIMEOUT_SEC = 10.0
_COMMIT = "# branch.oid "
_CPU_FOLDER = "sys/devices/system/cpu"
_NODE_FOLDER = "sys/devices/system/node"


def read_machine_state(
    cores: Sequence[int],
    *,
    root: Path = Path("/"),
    source_root: Path = SOURCE_ROOT,
    marker: str = OWN_FILE,
) -> MachineState:
    """Returns the state now; what cannot be read is None."""
    commit, is_modified = read_source_state(source_root, marker)
    libc, libc_version = platform.libc_ver()
    return MachineState(
        glibc_version=(libc_version or None) if libc == "glibc" else None,
        transparent_huge_pages=read_huge_pages(root),
        cpu_governor="+".join(read_governors(cores, root)) or None,
        is_boost_enabled=read_boost(root),
        is_smt_active=read_flag(root / _CPU_FOLDER / "smt/active"),
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
    paths = (root / _CPU_FOLDER / f"cpu{cpu}/cpufreq/scaling_governor" for cpu in cores)
    return sorted({text for path in paths if (text := read_line(path))})


def read_boost(root: Path = Path("/")) -> bool | None:
    is_off = read_flag(root / _CPU_FOLDER / "intel_pstate/no_turbo")
    if is_off is not None:
        return not is_off
    return read_flag(root / _CPU_FOLDER / "cpufreq/boost")


def read_flag(path: Path) -> bool | None:
    return {"0": False, "1": True}.get(read_line(path))


def read_line(path: Path) -> str:
    """Returns the text of a small file of the kernel; empty if it cannot be read."""
    return _read_text(path).strip()


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
    cpu: int  # Its number, as in ``sched_setaffinity``.
    node: int = 0  # NUMA node; 0 when it cannot be read.
    package: int = 0  # Socket; 0 when it cannot be read.
    core: int = 0  # Within its package; ``cpu`` when it cannot be read.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CpuTopology:
    """The CPUs that a sweep may use."""

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
    if affinity is None:
        affinity = frozenset(os.sched_getaffinity(0))
    return CpuTopology(
        cpus=tuple(_read_cpu(root, cpu) for cpu in sorted(affinity)),
        quota_cores=read_quota_cores(root),
    )


def _read_cpu(root: Path, cpu: int) -> LogicalCpu:
    folder = root / _CPU_FOLDER / f"cpu{cpu}"
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
        texts = (_read_text(folder / name) for name in names[version])
        yield [word for text in texts for word in text.split()]


def read_quota_cores(root: Path = Path("/")) -> float | None:
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


# Two readings around a block give its disturbance (``harness/machine/disturbance.py``).
#
# The time that a core was not idle is wall time minus its idle time, which the kernel
# measures; the columns of busy time are samples, one per tick, and over 0.3 s too
# inexact. Under version 1 of the control groups there is also the run time of each core
# in nanoseconds (``cpuacct.usage_percpu``).
#
# Some kernels take interrupts out of the time of the process that they interrupted
# (``CONFIG_IRQ_TIME_ACCOUNTING``). There, the trial's own network traffic would appear
# as time of others, so interrupts are not counted. These kernels are recognized by an
# ``irq`` column above 0: kernels that sample never find an interrupt in it.

TICK_SEC = 1.0 / os.sysconf("SC_CLK_TCK")
"""The unit of ``/proc/stat`` and ``/proc/<pid>/stat``: 10 ms on nearly all systems."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CoreClock:
    """One reading: running totals, in seconds."""

    wall_sec: float  # Monotonic clock.
    num_cores: int  # The cores of the trial.
    # Summed over them, also of those that wait for a disk; None where it is not shown.
    idle_sec: float | None
    stolen_sec: float = 0.0  # Given to other guests of the hypervisor.
    interrupt_sec: float = 0.0  # Where the kernel counts it apart from processes.
    run_sec: float | None  # Running processes, exact; None where it is not counted.
    # The trial's threads, by ids of process and thread: on a core, ready but waiting.
    threads: Mapping[tuple[int, int], tuple[float, float]]
    # CPU time of each of its processes, in ticks, with ended threads.
    process_sec: Mapping[int, float]
    # What the CPU time of its processes is taken from.
    process_source: Literal["schedstat", "stat"]
    # Periods in which the CPU quota stopped processes, and times that a core or its
    # package lowered its clock because of heat; None where it is not counted.
    num_quota: int | None
    num_thermal: int | None
    reading_sec: float  # CPU time of this reading after the cores were read.


def read_core_clock(
    cores: Sequence[int], pids: Sequence[int], root: Path = Path("/")
) -> CoreClock:
    """Reads the totals of what does not end now: 0.5 ms, and 15 us for each thread."""
    wall_sec = time.monotonic()
    of_cores = _read_cores(cores, root)
    run_sec = _read_run_sec(cores, root)
    start_sec = time.thread_time()
    threads: dict[tuple[int, int], tuple[float, float]] = {}
    totals_sec: dict[int, float] = {}
    for pid in pids:
        folder = root / f"proc/{pid}/task"
        with contextlib.suppress(OSError), os.scandir(folder) as tasks:
            for task in tasks:
                words = _read_text(f"{task.path}/schedstat").split()
                if len(words) >= 2:  # noqa: PLR2004 - run time and delay
                    times = int(words[0]) / 1e9, int(words[1]) / 1e9
                    threads[pid, int(task.name)] = times
        # The name, in parentheses, can contain anything.
        words = _read_text(root / f"proc/{pid}/stat").rpartition(")")[2].split()
        if len(words) > _STIME:
            totals_sec[pid] = (int(words[_UTIME]) + int(words[_STIME])) * TICK_SEC
    return CoreClock(
        wall_sec=wall_sec,
        num_cores=len(cores),
        **of_cores,
        run_sec=run_sec,
        threads=threads,
        process_sec=totals_sec,
        process_source="schedstat" if threads or not totals_sec else "stat",
        **_read_throttling(cores, root),
        reading_sec=time.thread_time() - start_sec,
    )


def _read_cores(cores: Sequence[int], root: Path) -> dict[str, Any]:
    rows = {}
    for line in _read_text(root / "proc/stat").splitlines():
        name, *ticks = line.split()
        if not name.startswith("cpu"):
            break  # the counters of the cores are the first lines
        rows[name] = [int(tick) * TICK_SEC for tick in ticks]
    of_cores = [rows[f"cpu{cpu}"] for cpu in cores if f"cpu{cpu}" in rows]
    if not of_cores or len(of_cores) < len(cores) or len(of_cores[0]) <= _STEAL:
        return {"idle_sec": None}
    return {
        "idle_sec": sum(row[_IDLE] + row[_IOWAIT] for row in of_cores),
        "stolen_sec": sum(row[_STEAL] for row in of_cores),
        "interrupt_sec": sum(
            row[_IRQ] + row[_SOFTIRQ] for row in of_cores if row[_IRQ]
        ),
    }


# Columns of /proc/stat after the name: user, nice, system, then these.
_IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = 3, 4, 5, 6, 7


def _read_run_sec(cores: Sequence[int], root: Path) -> float | None:
    """Reads what the topmost visible control group ran; in a container, that alone."""
    for folder in ("cpuacct", "cpu,cpuacct"):
        path = root / "sys/fs/cgroup" / folder / "cpuacct.usage_percpu"
        fields = _read_text(path).split()
        if fields and max(cores) < len(fields):
            return sum(int(fields[cpu]) for cpu in cores) / 1e9
    return None


# Fields of /proc/<pid>/stat after the name.
_UTIME, _STIME = 11, 12


def _read_throttling(cores: Iterable[int], root: Path) -> dict[str, Any]:
    quotas = {}
    for folder, _ in cgroups.folders("cpu", root):
        words = _read_text(folder / "cpu.stat").split()
        fields = dict(zip(words[::2], words[1::2], strict=False))
        if "nr_throttled" in fields:
            quotas[folder.resolve()] = int(fields["nr_throttled"])
    counts = [
        int(text)
        for cpu in cores
        for kind in ("core", "package")
        for text in _read_text(
            root / _CPU_FOLDER / f"cpu{cpu}/thermal_throttle/{kind}_throttle_count"
        ).split()
    ]
    return {
        "num_quota": sum(quotas.values()) if quotas else None,
        "num_thermal": sum(counts) if counts else None,
    }


def _read_text(path: Path | str) -> str:
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
