"""Temporary folders that end with the process that made them, however that ends.

A process that is killed removes nothing. So it holds a file in its folder locked, which
the kernel releases with it; whoever comes next removes the folders that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from harness.machine import machine_state

GATE: Final = "replicator-gate-"
TRIAL: Final = "replicator-trial-"
DOCTOR: Final = "replicator-doctor-"
MEMBER: Final = "replicator-member-"
_PREFIXES = (GATE, TRIAL, DOCTOR, MEMBER)
_OWNER = ".owner"
_MAKING_SEC = 60.0
"""A folder without its file, and without content, is being made; not for longer."""


class Owned:
    """A folder that this process holds, and any that inherits the descriptor."""

    def __init__(self, path: Path) -> None:
        """Holds a folder that exists, for this process."""
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(path / _OWNER, flags, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_SH)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.descriptor)


@contextlib.contextmanager
def made(prefix: str) -> Iterator[Owned]:
    owned = Owned(Path(tempfile.mkdtemp(prefix=prefix)).resolve())
    try:
        yield owned
    finally:
        owned.remove()


def is_abandoned(folder: Path) -> bool:
    """Whether a folder is of this user, and no process holds it."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        return False
    try:
        descriptor = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        is_old = machine_state.age_sec(facts.st_mtime) > _MAKING_SEC
        return is_old and not any(folder.iterdir())
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_abandoned() -> None:
    """Removes what processes that were killed left among the temporary files."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIXES) and is_abandoned(Path(entry.path)):
                shutil.rmtree(entry.path, ignore_errors=True)
