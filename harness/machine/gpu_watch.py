"""Watches the GPUs of a trial from the harness, while the trial runs.

A thread reads each GPU about five times per second. Readings have the monotonic time
that the trial's own steps are timed with, so that those of its window can be chosen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from harness.errors import UnfitMachineError
from harness.machine import gpus
from results.records.measuring import GpuUse, memory_text, others_text, unread_text
from results.records.texts import printable

PERIOD_SEC = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """One GPU at one moment. None: the driver does not say."""

    ns: int  # Monotonic clock.
    clock_mhz: int | None  # Clock of the multiprocessors.
    power_watts: float | None  # Drawn by the board.
    temperature_celsius: int | None  # Of the chip.
    reasons: int  # Bits that say why its clock is lowered.
    energy_joules: float | None  # Since the driver was loaded.
    num_foreign: int | None  # Processes with a context that are none of the harness.
    num_memory_errors: int | None = None  # Uncorrected ECC errors since the last reset.
    memory_clock_mhz: int | None = None  # Clock of its memory.


class OwnProcesses:
    """The processes of the harness, looked up again when an unknown one appears."""

    def __init__(self, *, most_on_gpu: int = 1) -> None:
        self._pids: set[int] = {os.getpid()}
        self._most_on_gpu = most_on_gpu

    def count_foreign(self, users: Collection[int]) -> int:
        """Returns how many of some processes are not ours."""
        if set(users) - self._pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process().children(recursive=True)
                # A child that has ended can still be in the driver's list.
                self._pids |= {child.pid for child in children}
        others = set(users) - self._pids
        if len(others) < len(set(users)):  # ids mean the same to the driver and to us
            return len(others)
        # In a container, the driver can name our own processes by ids that mean nothing
        # here. Then as many of the unknown ones as could be ours count as ours.
        unknown = {pid for pid in others if not psutil.pid_exists(pid)}
        return len(others - unknown) + max(len(unknown) - self._most_on_gpu, 0)


def read(nvml: Any, index: int, own: OwnProcesses) -> GpuReading:
    """Reads one GPU now; what the driver does not say is None."""
    ask = gpus.asker(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    users = ask("ComputeRunningProcesses")
    if users is not None:
        users = own.count_foreign([user.pid for user in users])
    errors = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return GpuReading(
        ns=time.monotonic_ns(),
        clock_mhz=ask("ClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("ClockInfo", nvml.NVML_CLOCK_MEM),
        power_watts=gpus.from_milli(ask("PowerUsage")),
        temperature_celsius=ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        reasons=ask("CurrentClocksThrottleReasons") or 0,
        energy_joules=gpus.from_milli(ask("TotalEnergyConsumption")),
        num_foreign=users,
        num_memory_errors=ask("TotalEccErrors", *errors),
    )


class GpuWatch:
    """Reads some GPUs again and again while its ``with`` block runs; none is fine."""

    def __init__(
        self, chosen: Sequence[gpus.Gpu], *, period_sec: float = PERIOD_SEC
    ) -> None:
        # Instances of one GPU share its clock and its power.
        self._indices = tuple(dict.fromkeys(gpu.index for gpu in chosen))
        self._period_sec = period_sec
        self._own = OwnProcesses()
        self._readings: dict[int, list[GpuReading]] = {i: [] for i in self._indices}
        self._faults: dict[int, tuple[int, str]] = {}
        self._stack = contextlib.ExitStack()
        self._stop = threading.Event()

    def __enter__(self) -> GpuWatch:  # noqa: PYI034 (Self needs Python 3.11)
        if self._indices:
            nvml = self._stack.enter_context(gpus.driver())
            self._read_all(nvml)
            thread = threading.Thread(
                target=self._loop, args=(nvml,), name="watch-gpus", daemon=True
            )
            thread.start()
            self._stack.callback(self._read_all, nvml)
            self._stack.callback(thread.join)
            self._stack.callback(self._stop.set)
        return self

    def __exit__(self, *_details: object) -> None:
        self._stack.close()

    def _loop(self, nvml: Any) -> None:
        while not self._stop.wait(self._period_sec):
            self._read_all(nvml)

    def _read_all(self, nvml: Any) -> None:
        for index in self._indices:
            try:
                self._readings[index].append(read(nvml, index, self._own))
            # The first time counts, and what was said then.
            except nvml.NVMLError as error:  # noqa: PERF203 (each GPU of its own)
                fault = (time.monotonic_ns(), gpus.fault_text(error))
                self._faults.setdefault(index, fault)

    def uses(
        self, start_ns: int | None = None, end_ns: int | None = None
    ) -> tuple[GpuUse, ...]:
        """Returns what each GPU did, within a window or all the time."""
        return tuple(
            self._use(index, start_ns, end_ns)
            for index in self._indices
            if self._readings[index] or index in self._faults
        )

    def _use(self, index: int, start_ns: int | None, end_ns: int | None) -> GpuUse:
        readings = self._readings[index]
        at_ns, said = self._faults.get(index, (0, ""))
        faults = []
        # What is lost stays lost: it says nothing of what was measured before.
        if said and (end_ns is None or at_ns <= end_ns):
            faults.append(unread_text(index, said))
        until = [each for each in readings if end_ns is None or each.ns <= end_ns]
        errors = _known(until, "num_memory_errors")
        if errors and (appeared := errors[-1] - errors[0]) > 0:
            faults.append(memory_text(appeared, index))
        use = summarize(index, within(readings, start_ns, end_ns))
        return use.model_copy(update={"faults": tuple(faults)})


def within(
    readings: Sequence[GpuReading], start_ns: int | None, end_ns: int | None
) -> Sequence[GpuReading]:
    """Returns the readings within a window, or the one that is nearest to it."""
    if start_ns is None or end_ns is None:
        return readings
    inside = [reading for reading in readings if start_ns <= reading.ns <= end_ns]
    middle_ns = (start_ns + end_ns) // 2
    return inside or sorted(readings, key=lambda each: abs(each.ns - middle_ns))[:1]


def summarize(index: int, readings: Sequence[GpuReading]) -> GpuUse:
    """Returns the record of one GPU over some readings, or none."""
    clocks, bits = _known(readings, "clock_mhz"), 0
    for reading in readings:
        bits |= reading.reasons
    ends = [*readings[:1], *readings[-1:]]
    energies, span_ns = _known(ends, "energy_joules"), 0
    if ends:
        span_ns = ends[1].ns - ends[0].ns
    is_span = len(energies) > 1 and span_ns > 0
    return GpuUse(
        index=index,
        num_samples=len(readings),
        clock_mhz=_mean(clocks),
        lowest_clock_mhz=min(clocks, default=None),
        memory_clock_mhz=_mean(_known(readings, "memory_clock_mhz")),
        power_watts=_mean(_known(readings, "power_watts")),
        temperature_celsius=max(_known(readings, "temperature_celsius"), default=None),
        slowed_by=gpus.throttle_reasons(bits),
        energy_joules=max(energies[1] - energies[0], 0.0) if is_span else None,
        watched_sec=span_ns / 1e9,
        num_foreign_processes=max(_known(readings, "num_foreign"), default=None),
    )


def _known(readings: Sequence[GpuReading], name: str) -> list[Any]:
    values = [getattr(reading, name) for reading in readings]
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


class OtherGpus:
    """Looks at the GPUs of this machine that are not those of a trial.

    A program that chooses devices by itself takes them from other trials, and its rate
    is of more devices than its record says. Where the driver names processes by other
    ids, as in some containers, nothing is found.
    """

    def __init__(self, visible: str | None) -> None:
        self.used: set[int] = set()  # on which the program had a context
        self._others: set[int] = set()
        if visible is not None:
            all_gpus, own = gpus.read_gpus(), {*visible.split(",")}
            ours = {gpu.index for gpu in all_gpus if {gpu.cuda_id, gpu.uuid} & own}
            self._others = {gpu.index for gpu in all_gpus} - ours

    def look(self, pids: Collection[int]) -> None:
        """Notes on which of them some processes have a context now."""
        if not self._others:
            return
        with gpus.driver() as nvml:
            for index in self._others - self.used:
                try:
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    users = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                except nvml.NVMLError:
                    continue  # lost, or it does not say who uses it
                if {user.pid for user in users} & {*pids}:
                    self.used.add(index)


# The driver lists the processes that use a GPU. That alone does not keep two sweeps
# apart: between two trials a sweep has no process there, and some drivers list nobody.
# So a sweep holds a lock per GPU, which the kernel releases with it.

WAIT_SEC = 10.0
"""The driver can list the processes of the trial before for a few seconds."""
_PERIOD_SEC = 0.5
_MOST_READ = 200


def lock_folder() -> Path:
    """Returns the folder of the locks, which all users of this machine share."""
    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def hold_gpus(chosen: Sequence[gpus.Gpu], *, study: str) -> Iterator[None]:
    """Locks GPUs against other sweeps while the ``with`` block runs; never waits."""
    with contextlib.ExitStack() as stack:
        for gpu in chosen:
            stack.callback(os.close, _lock(gpu, study))
        yield


def _lock(gpu: gpus.Gpu, study: str) -> int:
    """Returns a descriptor that holds the lock of a GPU until it is closed."""
    name = re.sub(r"[^A-Za-z0-9-]", "_", gpu.uuid)
    path = lock_folder() / f"replicator-harness-{name}.lock"
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o666)
        except PermissionError:  # of another user, and readable only
            descriptor = os.open(path, flags | os.O_RDONLY)
    except OSError as error:
        raise UnfitMachineError(
            f"cannot lock GPU {gpu.cuda_id} against other sweeps with {str(path)!r}:"
            f" {error.strerror or error}; remove that file, or set TMPDIR"
        ) from error
    with contextlib.suppress(OSError):  # against the umask, for other users
        os.fchmod(descriptor, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        text = os.pread(descriptor, _MOST_READ, 0).decode("utf-8", errors="replace")
        os.close(descriptor)
        user = f" ({printable(text)})" * bool(text)
        raise UnfitMachineError(
            f"GPU {gpu.cuda_id} ({gpu.name}) is used by another sweep{user}, but a"
            " trial needs its GPUs for itself; wait for its end, or choose other GPUs"
            " with CUDA_VISIBLE_DEVICES"
        ) from error
    with contextlib.suppress(OSError):  # the file of another user: only the lock counts
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"study {study!r}, process {os.getpid()}".encode(), 0)
    return descriptor


def wait_until_free(chosen: Sequence[gpus.Gpu]) -> str:
    """Waits until no process uses some GPUs; returns who still does, or ""."""
    if not chosen:
        return ""
    end_sec = time.monotonic() + WAIT_SEC
    own = OwnProcesses(most_on_gpu=0)
    indices = dict.fromkeys(gpu.index for gpu in chosen)
    with gpus.driver() as nvml:
        while True:
            users = (_users(nvml, index, own) for index in indices)
            first = next(filter(None, users), "")
            if not first or time.monotonic() >= end_sec:
                return first
            time.sleep(_PERIOD_SEC)


def _users(nvml: Any, index: int, own: OwnProcesses) -> str:
    try:
        count = read(nvml, index, own).num_foreign
    except nvml.NVMLError as error:
        return unread_text(index, gpus.fault_text(error))
    return others_text(count, index) if count else ""
