"""Exclusive use of GPUs: a lock against other sweeps, the driver's list against others.

The driver lists the processes that use a GPU. That alone does not keep two sweeps
apart: a sweep has no process on its GPUs between two trials or while one imports
TensorFlow, and some drivers and containers list nobody. A sweep therefore also holds
one lock per GPU of this machine for as long as it runs. The kernel releases the locks
with the process, so a killed sweep leaves none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UnfitMachineError
from harness.machine import gpu_watch, gpus
from results.records.machines.gpu_record import others_text, unread_text
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.machine.gpus import Gpu

WAIT_SEC = 10.0
"""The driver can list the processes of the trial before for a few seconds."""
_PERIOD_SEC = 0.5
_MOST_READ = 200


def lock_folder() -> Path:
    """Returns the folder of the locks, which all users of this machine share."""
    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def hold(chosen: Sequence[Gpu], *, study: str) -> Iterator[None]:
    """Locks GPUs against other sweeps while the ``with`` block runs; never waits."""
    with contextlib.ExitStack() as stack:
        for gpu in chosen:
            stack.callback(os.close, _lock(gpu, study))
        yield


def _lock(gpu: Gpu, study: str) -> int:
    """Returns a descriptor that holds the lock of a GPU until it is closed."""
    name = re.sub(r"[^A-Za-z0-9-]", "_", gpu.uuid)
    path = lock_folder() / f"replicator-harness-{name}.lock"
    try:
        descriptor = _open(path)
    except OSError as error:
        raise UnfitMachineError(
            f"cannot lock GPU {gpu.cuda_id} against other sweeps with {str(path)!r}:"
            f" {error.strerror or error}; remove that file, or set TMPDIR"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        user = _read_user(descriptor)
        os.close(descriptor)
        raise UnfitMachineError(
            f"GPU {gpu.cuda_id} ({gpu.name}) is used by another sweep{user}, but a"
            " trial needs its GPUs for itself; wait for its end, or choose other GPUs"
            " with CUDA_VISIBLE_DEVICES"
        ) from error
    with contextlib.suppress(OSError):  # the file of another user: only the lock counts
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"study {study!r}, process {os.getpid()}".encode(), 0)
    return descriptor


def _open(path: Path) -> int:
    """Opens a lock; it can belong to another user, and be readable only."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        return os.open(path, flags | os.O_RDONLY)
    with contextlib.suppress(OSError):  # against the umask, for other users
        os.fchmod(descriptor, 0o666)
    return descriptor


def _read_user(descriptor: int) -> str:
    text = os.pread(descriptor, _MOST_READ, 0).decode("utf-8", errors="replace")
    return f" ({printable(text)})" if text else ""


def wait_until_free(chosen: Sequence[Gpu]) -> str:
    """Waits until no process uses some GPUs; returns who still does, or "".

    A GPU that the driver cannot read is not free: nobody knows.

    Call while no trial of this sweep runs on them: then every process is of others.
    """
    end_sec = time.monotonic() + WAIT_SEC
    while True:
        found = _users(chosen)
        if not found or time.monotonic() >= end_sec:
            return found
        time.sleep(_PERIOD_SEC)


def _users(chosen: Sequence[Gpu]) -> str:
    if not chosen:
        return ""
    own = gpu_watch.OwnProcesses(most_on_gpu=0)
    with gpus.driver() as nvml:
        for index in dict.fromkeys(gpu.index for gpu in chosen):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                users = gpus.ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
            except nvml.NVMLError as error:
                return unread_text(index, gpus.fault_text(error))
            count = own.count_foreign([user.pid for user in users or ()])
            if count:
                return others_text(count, index)
    return ""
