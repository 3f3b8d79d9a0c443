"""One writer per study: a lock of the operating system, and a heartbeat for others.

The kernel holds the lock for as long as the process lives; the pid is in another file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pathlib
import signal
import sys
import threading
import uuid
from typing import TYPE_CHECKING

from results import errors
from results.store import atomic, untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator


# Kernels that share a file system need not see each other's locks. So the owner also
# has a file there with the identity of its kernel, made by ``link``, which one of
# several wins on NFS too, and touches it. Another kernel refuses the study while the
# file is fresh by the clock of the file system, and takes it over when it is not.
HEARTBEAT_NAME = ".lock-heartbeat"
PERIOD_SEC = 10.0
DEAD_SEC = 60.0
"""Without a touch for so long, the owner is dead, or may no longer write."""
_NUM_TRIES = 100
_MOST_HEARTBEAT_BYTES = 1_000
_WITHOUT_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")


def kernel_id() -> str:
    """Returns the id of this boot, which containers on one machine share."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"{uuid.getnode():x}"


@contextlib.contextmanager
def hold_heartbeat(root: pathlib.Path) -> Iterator[None]:
    """Owns the study against other kernels while the block runs."""
    token = f"{kernel_id()} {uuid.uuid4().hex}\n"
    _claim(root, token)
    is_over = threading.Event()
    beats = threading.Thread(
        target=_beat, args=(root, token, is_over), name="study heartbeat", daemon=True
    )
    beats.start()
    try:
        with atomic.fenced(root, lambda: _read(root / HEARTBEAT_NAME) == token):
            yield
    finally:
        is_over.set()
        beats.join()
        # What was done is done; others wait until the file that is left is old.
        with contextlib.suppress(OSError):
            if _read(root / HEARTBEAT_NAME) == token:
                (root / HEARTBEAT_NAME).unlink()


def _claim(root: pathlib.Path, token: str) -> None:
    """Makes the file of the owner, in place of a dead one's if there is one."""
    path = root / HEARTBEAT_NAME
    mine = root / f"{HEARTBEAT_NAME}-{_digest(token)}"
    try:
        mine.write_text(token, encoding="ascii")
        # A power failure would leave an empty file, whose owner is waited for.
        atomic.sync(mine)
        for _ in range(_NUM_TRIES):  # others come and go
            if _links(mine, path):
                return
            owner = _read(path)
            if owner is not None:
                _succeed(root, owner, mine)
                return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    finally:
        mine.unlink(missing_ok=True)


def _succeed(root: pathlib.Path, owner: str, mine: pathlib.Path) -> None:
    """Takes over from a dead owner: of several, whoever makes the successor's file."""
    path = root / HEARTBEAT_NAME
    won: list[pathlib.Path] = []
    dead: str | None = owner
    where = path
    try:
        while not won:
            if dead is None:  # another has just succeeded
                raise errors.StudyInUseElsewhereError(root, 0.0, DEAD_SEC)
            _check_dead(root, where, dead, mine)
            successor = root / f"{HEARTBEAT_NAME}-after-{_digest(dead)}"
            if _links(mine, successor):
                won.append(successor)
            else:
                dead, where = _read(successor), successor
        # One that succeeded before has removed its file; then this owner is another.
        if _read(path) != owner:
            raise errors.StudyInUseElsewhereError(root, 0.0, DEAD_SEC)
        mine.replace(path)
        won += root.glob(f"{HEARTBEAT_NAME}-after-*")
    finally:
        for successor in won:
            successor.unlink(missing_ok=True)


def _check_dead(
    root: pathlib.Path, where: pathlib.Path, owner: str, mine: pathlib.Path
) -> None:
    """Raises unless an owner gave no sign of life; the lock tells those of here."""
    if owner.partition(" ")[0] == kernel_id():
        return
    os.utime(mine)  # now, by the clock of the file system
    try:
        age_sec = mine.stat().st_mtime - where.stat().st_mtime
    except FileNotFoundError:  # it has just ended, or was succeeded
        age_sec = 0.0
    if age_sec < DEAD_SEC:
        raise errors.StudyInUseElsewhereError(root, max(age_sec, 0.0), DEAD_SEC)


def _links(source: pathlib.Path, path: pathlib.Path) -> bool:
    """Gives a file a second name, if nothing has it: one of several callers does."""
    with contextlib.suppress(FileExistsError):
        try:
            os.link(source, path)
        except OSError as error:
            if error.errno not in _WITHOUT_LINKS:
                raise
            with path.open("x", encoding="ascii") as file:
                file.write(source.read_text(encoding="ascii"))
        return True
    return False


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _read(path: pathlib.Path) -> str | None:
    # The error of a read has no path, and would be taken for one of stdout.
    with atomic.named(path):
        try:
            content = untrusted.read_bytes(path, max_bytes=_MOST_HEARTBEAT_BYTES)
        except untrusted.DamagedFileError as error:
            raise OSError(errno.EINVAL, str(error)) from error
        except errors.UnavailableRecordError as error:
            cause = error.__cause__
            raise cause if isinstance(cause, OSError) else OSError(str(error)) from None
    return None if content is None else content.decode("ascii", errors="replace")


def _beat(root: pathlib.Path, token: str, is_over: threading.Event) -> None:
    """Touches the file until the end; ends this process if the study was lost."""
    while not is_over.wait(PERIOD_SEC):
        # A file system that does not answer now may do so the next time.
        with contextlib.suppress(OSError):
            if _read(root / HEARTBEAT_NAME) != token:
                sys.stderr.write(
                    f"error: study {str(root)!r} was taken over by a process of"
                    " another machine, since this one gave no sign of life for"
                    f" {DEAD_SEC:.0f} s; it ends here\n"
                )
                os.kill(os.getpid(), signal.SIGTERM)
                return
            os.utime(root / HEARTBEAT_NAME)


LOCK_NAME = ".lock"
HOLDER_NAME = ".lock-holder"
_MOST_BYTES = 100
_REMOVE = "remove what is in its place, or free space"
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
        with atomic.writing(root / HOLDER_NAME, _REMOVE):
            atomic.write_text(root / HOLDER_NAME, f"{os.getpid()}\n")
        with contextlib.ExitStack() as stack:
            with atomic.writing(root / HEARTBEAT_NAME, _REMOVE):
                stack.enter_context(hold_heartbeat(root))
            # Nobody else writes here now, on no machine.
            atomic.remove_leftovers(root, _FOLDERS)
            yield
    finally:
        with contextlib.suppress(OSError, errors.ResultsError):
            if read_holder(root) == os.getpid():  # and not a successor
                (root / HOLDER_NAME).unlink(missing_ok=True)
        os.close(lock)
