"""Writes files of a study: each atomically, and by one writer at a time.

A reader sees either the old bytes of a file or the new ones. The writer of a study has
a lock of the system, which the kernel holds for as long as the process lives, and a
file that names it.
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
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from results import errors
from results.store import untrusted

# A suspended owner of a study is succeeded like a dead one. When it goes on, it must
# not write over what its successor has measured, so each write asks once more who owns
# it.
_held: dict[pathlib.Path, Callable[[], bool]] = {}


def check_fence(path: os.PathLike[str]) -> None:
    """Raises if what is about to be written belongs to a study that was lost."""
    whole = pathlib.Path(path).absolute()
    for root, is_owner in tuple(_held.items()):  # other threads take studies, too
        if whole.is_relative_to(root) and not is_owner():
            raise errors.StudyLostError(root)


TEMPORARY_PREFIX = ".tmp-"
"""Files with this name were left by a killed writer; readers skip them."""


def check_reachable(path: pathlib.Path) -> None:
    """Raises if the file system refuses to look at ``path``; it may be missing."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.stat()


def sync(path: pathlib.Path) -> None:
    """Syncs a file, or the names in a directory: they survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with named(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def named(path: pathlib.Path) -> Iterator[None]:
    """Adds the path to errors of calls that know a descriptor only."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


FREE_SPACE: Final = "free space or choose a directory that this user can write to"


@contextlib.contextmanager
def reporting(
    path: pathlib.Path, advice: str = FREE_SPACE, *, what: str = ""
) -> Iterator[None]:
    """Raises WriteStoreError, which says what to do, where a file is not written."""
    try:
        yield
    except OSError as error:
        raise errors.WriteStoreError(
            f"cannot write {what}{str(path)!r}: {error.strerror or error}; {advice}"
        ) from error


def sync_files(folder: pathlib.Path) -> None:
    """Syncs the files of a folder, which others wrote, and their names."""
    for entry in folder.iterdir():
        if entry.is_file() and not entry.is_symlink():
            sync(entry)
    sync(folder)


def remove_leftovers(folder: pathlib.Path, below: Sequence[str] = ()) -> None:
    """Removes what writers left that were killed, or could not remove it."""
    for pattern in ("", *below):
        with contextlib.suppress(OSError):  # harmless where they are
            for path in folder.glob(f"{pattern}{TEMPORARY_PREFIX}*"):
                if path.is_file() and not path.is_symlink():
                    path.unlink(missing_ok=True)


def write_text(path: pathlib.Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Writes ``content``: temporary file, fsync, rename, fsync of the folder."""
    # Both names lead through the same mounts then, which the current folder need not.
    path = path.absolute()
    descriptor, name = tempfile.mkstemp(
        prefix=TEMPORARY_PREFIX, suffix=f"-{path.name}", dir=path.parent
    )
    temporary = pathlib.Path(name)
    try:
        with named(path), os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; records are as readable as any other file.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        check_fence(path)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


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
    _held[root.absolute()] = lambda: _read(path) == token
    try:
        yield
    finally:
        del _held[root.absolute()]
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
        sync(mine)
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
    with named(path):
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
    """Owns the study in folder ``root`` while the ``with`` block runs; never waits.

    Take it around what you write by ``Store``: no sweep writes there meanwhile. Raises
    StudyLockedError or StudyInUseElsewhereError where a process of this machine or of
    another one owns the study, WriteStoreError where the lock cannot be written. In the
    block, a write raises StudyLostError if another machine has taken the study over,
    since this process was suspended for a minute.
    """
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
        with reporting(root / HEARTBEAT_NAME, _REMOVE):
            stack.enter_context(hold_heartbeat(root))
        # Nobody else writes here now, on no machine.
        remove_leftovers(root, _FOLDERS)
        yield
