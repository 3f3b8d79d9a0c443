"""One writer per study: a lock of the operating system, and a heartbeat for others.

The kernel holds the lock for as long as the process lives, so a killed harness leaves
no stale lock. The pid is in a separate file, which is read only while the lock is
held. ``heartbeat`` keeps machines apart that share the folder and maybe not their
locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from results import errors
from results.store import atomic, heartbeat, untrusted

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

LOCK_NAME = ".lock"
HOLDER_NAME = ".lock-holder"
_MOST_BYTES = 100
_FOLDERS = ("trials/*/", "match/trials/*/", "report/")
"""Of a study, in which records are written."""


def read_holder(root: pathlib.Path) -> int | None:
    """Returns the process that locked a study last, which a killed one still is."""
    try:
        return int(
            untrusted.read_bytes(root / HOLDER_NAME, max_bytes=_MOST_BYTES) or ""
        )
    except ValueError:
        # The other process has the lock and is about to write its pid.
        return None


@contextlib.contextmanager
def lock_study(root: pathlib.Path) -> Iterator[None]:
    """Locks the study exclusively while the ``with`` block runs; never waits."""
    lock = -1
    try:
        if (root / LOCK_NAME).is_symlink():  # whose target is not ours
            raise FileExistsError(17, f"{LOCK_NAME} is a symbolic link")
        # Opened anew: two locks of one process exclude each other, too.
        lock = os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if lock >= 0:
            os.close(lock)
        if isinstance(error, BlockingIOError):
            raise errors.StudyLockedError(root, read_holder(root)) from None
        raise errors.WriteStoreError(
            f"cannot lock study {str(root)!r}: {error.strerror or error}; create it "
            "first, in a folder that this user can write to"
        ) from error
    try:
        try:
            atomic.write_text(root / HOLDER_NAME, f"{os.getpid()}\n")
        except OSError as error:
            raise errors.WriteStoreError(
                f"cannot write {str(root / HOLDER_NAME)!r}: {error.strerror or error}; "
                "remove what is in its place, or free space"
            ) from error
        with _heartbeat(root):
            # Nobody else writes here now, on no machine.
            atomic.remove_leftovers(root, _FOLDERS)
            yield
    finally:
        with contextlib.suppress(OSError, errors.ResultsError):
            if read_holder(root) == os.getpid():  # and not a successor
                (root / HOLDER_NAME).unlink(missing_ok=True)
        os.close(lock)


@contextlib.contextmanager
def _heartbeat(root: pathlib.Path) -> Iterator[None]:
    """Owns the study against other machines; its own errors are one line."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(heartbeat.hold(root))
        except OSError as error:
            raise errors.WriteStoreError(
                f"cannot write {str(root / heartbeat.NAME)!r}: "
                f"{error.strerror or error}; remove what is in its place, or free space"
            ) from error
        yield
