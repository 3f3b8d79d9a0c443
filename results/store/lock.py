"""One writer per study: a lock of the system, and a file that names the owner.

The kernel holds the lock for as long as the process lives.
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
_MOST_BYTES = 1_000
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
    token = f"{kernel_id()} {os.getpid()} {uuid.uuid4().hex}\n"
    path, is_over = root / HEARTBEAT_NAME, threading.Event()
    _claim(root, token)

    def beat() -> None:
        """Touches the file until the end; ends this process if the study was lost."""
        while not is_over.wait(PERIOD_SEC):
            # A file system that does not answer now may do so the next time.
            with contextlib.suppress(OSError):
                if _read(path) != token:
                    sys.stderr.write(
                        f"error: study {str(root)!r} was taken over by a process of"
                        " another machine, since this one gave no sign of life for"
                        f" {DEAD_SEC:.0f} s; it ends here\n"
                    )
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                os.utime(path)

    beats = threading.Thread(target=beat, name="study heartbeat", daemon=True)
    beats.start()
    try:
        with atomic.fenced(root, lambda: _read(path) == token):
            yield
    finally:
        is_over.set()
        beats.join()
        # What was done is done; others wait until the file that is left is old.
        with contextlib.suppress(OSError):
            if _read(path) == token:
                path.unlink()


def _claim(root: pathlib.Path, token: str) -> None:
    """Makes the file of the owner, in place of a dead one's if there is one.

    Of several that take over from a dead owner, whoever makes its successor's file
    wins; one that died on the way has a successor itself.
    """
    path = name = root / HEARTBEAT_NAME
    mine = root / f"{HEARTBEAT_NAME}-{_digest(token)}"
    owner, won = "", [mine]
    try:
        mine.write_text(token, encoding="ascii")
        # A power failure would leave an empty file, whose owner is waited for.
        atomic.sync(mine)
        for _ in range(_NUM_TRIES):  # others come and go
            if _links(mine, name):
                break
            found = _read(name)
            if found is not None:
                _check_dead(root, name, found, mine)
                owner = found if name == path else owner
                name = root / f"{HEARTBEAT_NAME}-after-{_digest(found)}"
            elif name != path:  # another has just succeeded
                raise errors.StudyInUseElsewhereError(root, 0.0, DEAD_SEC)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if name == path:
            return
        won.append(name)
        # One that succeeded before has removed its file; then this owner is another.
        if _read(path) != owner:
            raise errors.StudyInUseElsewhereError(root, 0.0, DEAD_SEC)
        mine.replace(path)
        won += root.glob(f"{HEARTBEAT_NAME}-after-*")
    finally:
        for left in won:
            left.unlink(missing_ok=True)


def _check_dead(
    root: pathlib.Path, where: pathlib.Path, owner: str, mine: pathlib.Path
) -> None:
    """Raises unless an owner gave no sign of life; the lock tells those of here."""
    if owner.partition(" ")[0] == kernel_id():
        return
    os.utime(mine)  # now, by the clock of the file system
    age_sec = 0.0
    with contextlib.suppress(FileNotFoundError):  # it has just ended, or was succeeded
        age_sec = mine.stat().st_mtime - where.stat().st_mtime
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
            content = untrusted.read_bytes(path, max_bytes=_MOST_BYTES)
        except (untrusted.DamagedFileError, errors.UnavailableRecordError) as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise OSError(errno.EINVAL, str(error)) from error
    return None if content is None else content.decode("ascii", errors="replace")


LOCK_NAME = ".lock"
_REMOVE = "remove what is in its place, or free space"
_FOLDERS = ("trials/*/", "match/trials/*/", "report/")
"""Of a study, in which records are written."""


def read_holder(root: pathlib.Path) -> int | None:
    """Returns the process of this machine that owned a study last, dead or alive."""
    try:
        content = untrusted.read_bytes(root / HEARTBEAT_NAME, max_bytes=_MOST_BYTES)
        kernel, pid, _ = (content or b"").decode("ascii").split()
        return int(pid) if kernel == kernel_id() else None
    except ValueError:  # it has the lock, and is about to write the file
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
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, lock)
        with atomic.writing(root / HEARTBEAT_NAME, _REMOVE):
            stack.enter_context(hold_heartbeat(root))
        # Nobody else writes here now, on no machine.
        atomic.remove_leftovers(root, _FOLDERS)
        yield
