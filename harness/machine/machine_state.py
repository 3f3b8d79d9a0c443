"""Reads the settings of kernel and firmware, and the commit of the source code."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import math
import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from harness import SOURCE_ROOT
from harness.machine import environment, gpus
from replicator.core import cgroups
from results.records.machine_record import MachineState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


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
        container=environment.read_container(root),
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
        done = environment.run_git(folder, *arguments, timeout_sec=_GIT_TIMEOUT_SEC)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogicalCpu:
    """One logical CPU and its location."""

    cpu: int  # Its number, as in ``sched_setaffinity``.
    node: int = 0  # NUMA node; 0 when it cannot be read.
    package: int = 0  # Socket; 0 when it cannot be read.
    # Physical core, counted within its package; ``cpu`` when it cannot be read.
    core: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CpuTopology:
    """The CPUs that a sweep may use."""

    cpus: tuple[LogicalCpu, ...]  # The logical CPUs of the affinity mask.
    # CPU time per wall time that the cgroups grant, or None for no limit.
    quota_cores: float | None = None

    @property
    def num_available_cores(self) -> int:
        """Logical CPUs that can be busy at once: affinity, limited by the quota."""
        if self.quota_cores is None:
            return len(self.cpus)
        return max(1, min(len(self.cpus), math.floor(self.quota_cores)))

    @property
    def num_physical_cores(self) -> int:
        """Physical cores behind the logical CPUs."""
        return len({(cpu.package, cpu.core) for cpu in self.cpus})


def read_topology(
    root: Path = Path("/"), affinity: frozenset[int] | None = None
) -> CpuTopology:
    """Reads the topology of this machine, as this process may use it."""
    if affinity is None:
        affinity = frozenset(os.sched_getaffinity(0))
    return CpuTopology(
        cpus=tuple(_read_cpu(root, cpu) for cpu in sorted(affinity)),
        quota_cores=read_quota_cores(root),
    )


def _read_cpu(root: Path, cpu: int) -> LogicalCpu:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}"
    package = _read_int(folder / "topology/physical_package_id")
    core = _read_int(folder / "topology/core_id")
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        names = []
    nodes = [int(n[4:]) for n in names if n.startswith("node") and n[4:].isdigit()]
    return LogicalCpu(
        cpu=cpu,
        node=min(nodes, default=0),
        package=0 if package is None else package,
        core=cpu if core is None else core,
    )


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def read_quota_cores(root: Path = Path("/")) -> float | None:
    """Returns the smallest CPU quota over this process's cgroups, or None.

    Version 2 has ``cpu.max``; version 1 ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``.
    """
    read = {1: _read_v1, 2: _read_v2}
    quotas = [read[version](path) for path, version in cgroups.folders("cpu", root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _read_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _read_v1(folder: Path) -> float | None:
    quota = _read_int(folder / "cpu.cfs_quota_us")
    period = _read_int(folder / "cpu.cfs_period_us")
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return quota / period


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


# Two readings around a turn give its disturbance (``harness/machine/disturbance.py``).
#
# The time that a core was not idle is wall time minus its idle time. The kernel
# measures idle time and steal, and shows them in ticks; the columns of busy time are
# samples, one per tick, and over 0.3 s too inexact. Under version 1 of the control
# groups there is also the run time of each core in nanoseconds
# (``cpuacct.usage_percpu``).
#
# Interrupts: some kernels take them out of the time of the process that they
# interrupted (``CONFIG_IRQ_TIME_ACCOUNTING``). There, the trial's own network traffic
# would appear as time of others, so interrupts are not counted as such. These kernels
# are recognized by an ``irq`` column above 0: kernels that sample never find an
# interrupt in it.

TICK_SEC = 1.0 / os.sysconf("SC_CLK_TCK")
"""The unit of ``/proc/stat`` and ``/proc/<pid>/stat``: 10 ms on nearly all systems."""

ProcessSource = Literal["schedstat", "stat"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CoreTimes:
    """Running totals of some cores, in seconds, summed over them."""

    idle_sec: float  # With nothing to run, or waiting for a disk.
    stolen_sec: float  # Given to other guests of the hypervisor.
    # In interrupts, where the kernel counts them apart from processes.
    interrupt_sec: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ThreadTimes:
    """Running totals of one thread, in seconds: on a core, and ready but waiting."""

    run_sec: float
    delay_sec: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Throttling:
    """Running totals of throttling; None where the kernel does not count it."""

    # Periods in which the CPU quota of a control group stopped processes.
    num_quota: int | None
    quota_sec: float | None  # The time they were stopped.
    # Times that a core, or its package, lowered its clock because of heat.
    num_thermal: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CoreClock:
    """One reading."""

    wall_sec: float  # Monotonic clock.
    num_cores: int  # The cores of the trial.
    # Their totals; None where the kernel does not show all of them.
    cores: CoreTimes | None
    # Time for which they ran processes, exact; None where it is not counted.
    run_sec: float | None
    # Totals of the trial's threads, by process id and thread id.
    threads: Mapping[tuple[int, int], ThreadTimes]
    # CPU time of each of its processes, in ticks, with ended threads.
    process_sec: Mapping[int, float]
    process_source: ProcessSource  # What the CPU time of its processes is taken from.
    throttling: Throttling  # Totals of throttling.
    # CPU time that this reading itself took after ``cores`` was read.
    reading_sec: float


def read_core_clock(
    cores: Sequence[int], pids: Sequence[int], root: Path = Path("/")
) -> CoreClock:
    """Reads the totals now; takes 0.5 ms and 15 us for each thread.

    Processes and threads that end meanwhile are left out.
    """
    wall_sec = time.monotonic()
    core_times = _read_cores(cores, root)
    run_sec = _read_run_sec(cores, root)
    start_sec = time.thread_time()
    threads: dict[tuple[int, int], ThreadTimes] = {}
    process_sec: dict[int, float] = {}
    for pid in pids:
        threads.update(_read_threads(pid, root))
        total_sec = _read_process_sec(pid, root)
        if total_sec is not None:
            process_sec[pid] = total_sec
    return CoreClock(
        wall_sec=wall_sec,
        num_cores=len(cores),
        cores=core_times,
        run_sec=run_sec,
        threads=threads,
        process_sec=process_sec,
        process_source="schedstat" if threads or not process_sec else "stat",
        throttling=_read_throttling(cores, root),
        reading_sec=time.thread_time() - start_sec,
    )


def _read_cores(cores: Sequence[int], root: Path) -> CoreTimes | None:
    rows = {}
    for line in _read_text(root / "proc/stat").splitlines():
        name, *ticks = line.split()
        if not name.startswith("cpu"):
            break  # the counters of the cores are the first lines
        rows[name] = [int(tick) * TICK_SEC for tick in ticks]
    found = [rows[f"cpu{cpu}"] for cpu in cores if f"cpu{cpu}" in rows]
    if not found or len(found) < len(cores) or len(found[0]) <= _STEAL:
        return None
    return CoreTimes(
        idle_sec=sum(row[_IDLE] + row[_IOWAIT] for row in found),
        stolen_sec=sum(row[_STEAL] for row in found),
        interrupt_sec=sum(
            row[_IRQ] + row[_SOFTIRQ] if row[_IRQ] else 0.0 for row in found
        ),
    )


# Columns of /proc/stat after the name: user, nice, system, then these.
_IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = 3, 4, 5, 6, 7


def _read_run_sec(cores: Sequence[int], root: Path) -> float | None:
    """Reads what the topmost visible control group ran on the cores.

    In a container that is the container alone, which cannot be seen here:
    ``disturbance.between`` compares it with the idle time.
    """
    for folder in ("cpuacct", "cpu,cpuacct"):
        path = root / "sys/fs/cgroup" / folder / "cpuacct.usage_percpu"
        fields = _read_text(path).split()
        if fields and max(cores) < len(fields):
            return sum(int(fields[cpu]) for cpu in cores) / 1e9
    return None


def _read_threads(
    pid: int, root: Path
) -> Iterator[tuple[tuple[int, int], ThreadTimes]]:
    with contextlib.suppress(OSError), os.scandir(root / f"proc/{pid}/task") as tasks:
        for task in tasks:
            fields = _read_text(f"{task.path}/schedstat").split()
            if len(fields) >= 2:  # noqa: PLR2004 - run time and delay
                run_ns, delay_ns = int(fields[0]), int(fields[1])
                times = ThreadTimes(run_sec=run_ns / 1e9, delay_sec=delay_ns / 1e9)
                yield (pid, int(task.name)), times


def _read_process_sec(pid: int, root: Path) -> float | None:
    # The name, in parentheses, can contain anything.
    _, _, text = _read_text(root / f"proc/{pid}/stat").rpartition(")")
    fields = text.split()
    if len(fields) <= STIME:
        return None
    return (int(fields[UTIME]) + int(fields[STIME])) * TICK_SEC


# Fields of /proc/<pid>/stat after the name.
UTIME, STIME = 11, 12


def _read_throttling(cores: Iterable[int], root: Path) -> Throttling:
    quotas = {}
    for folder, version in cgroups.folders("cpu", root):
        words = _read_text(folder / "cpu.stat").split()
        fields = dict(zip(words[::2], words[1::2], strict=False))
        if "nr_throttled" in fields:
            # Version 1 counts in nanoseconds, version 2 in microseconds.
            name, unit = _THROTTLED[version]
            stopped_sec = int(fields.get(name, 0)) * unit
            quotas[folder.resolve()] = (int(fields["nr_throttled"]), stopped_sec)
    counts = [
        int(text)
        for cpu in cores
        for kind in ("core", "package")
        for text in _read_text(
            root / f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
            f"/{kind}_throttle_count"
        ).split()
    ]
    return Throttling(
        num_quota=sum(n for n, _ in quotas.values()) if quotas else None,
        quota_sec=sum(sec for _, sec in quotas.values()) if quotas else None,
        num_thermal=sum(counts) if counts else None,
    )


_THROTTLED = {1: ("throttled_time", 1e-9), 2: ("throttled_usec", 1e-6)}


def _read_text(path: Path | str) -> str:
    """Returns the text of a file of the kernel; empty where it does not exist.

    The processes of a trial have hundreds of threads: without buffers this takes a
    third of the time.
    """
    # ESRCH, a ProcessLookupError: the process ended between opening and reading.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(descriptor, _READ_SIZE):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
        finally:
            os.close(descriptor)
    return ""


_READ_SIZE = 1 << 16


def now_text() -> str:
    """Returns the time as RFC 3339 in UTC, to the second."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def age_sec(modified: float) -> float:
    """Returns how long ago a file was modified, from the time that its status has."""
    return time.time() - modified
