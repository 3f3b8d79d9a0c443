"""Damages files, and fails what reads, writes or waits for them.

Bits, bytes, lines, keys and values of a file; calls of the operating system; the power
of a disk; strangers at a port; what never comes back.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import errno
import fcntl
import io
import os
import pathlib
import posix
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar
from unittest import mock

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = (
    *(b"", b"\0", b" ", b"\n", b"\r\n", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[31m"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"Infinity", b"{}", b"[]", b'""'),
    *(b"0", b"-1", b"-0.0", b"1e999", b"1e-999", b"1e308", b"0.5", b"9" * 5000),
    *(b"9" * 400, b"18446744073709551616", b'"nan"', b'"1e400"', b'"\\ud800"'),
    *(b"[" * 60_000, b'{"a":' * 60_000, b'"' + b"a" * 70_000 + b'"', b"../../../x"),
    *(b'"/etc/passwd"', b'"\\u0000"', b'"<script>"', b"!!python/object:os.system"),
    *(b"[[]]", b"*a", b"&a [*a]", b"'''", b'"""', b"[a.b]\n", b"= 1", b"ok", b"failed"),
)
PLACES = (
    *("directory", "pipe", "loop", "dangling", "endless", "huge", "empty", "removed"),
)
_VALUE = re.compile(rb'"(?:[^"\\\n]|\\.)*"(?!\s*:)|(?<![\w."])-?\d[\d.eE+-]*|true|null')
_KEY = re.compile(rb'"(?:[^"\\\n]|\\.)*"(?=\s*:)|^[\w-]+(?=\s*[=:])', re.MULTILINE)
_WAYS = ("value",) * 4 + ("key", "line", "line", "flip", "cut", "drop", "put", "whole")
_ONE_OF_PLACES = 12


def damage(path, chance):
    """Damages a file in one to three ways; returns which."""
    if not chance.randrange(_ONE_OF_PLACES):
        what = chance.choice(PLACES)
        put(path, what)
        return what
    content, ways = path.read_bytes(), []
    for _ in range(chance.randint(1, 3)):
        way = chance.choice(_WAYS)
        content = _damaged(content, way, chance)
        ways.append(way)
    path.write_bytes(content)
    return "+".join(ways)


def _damaged(content, way, chance):
    token, at = chance.choice(TOKENS), chance.randint(0, len(content))
    if way == "line":
        return _with_other_lines(content, token, chance)
    if way == "flip":
        bits = bytearray(content)
        for _ in range(chance.randint(1, 20) if bits else 0):
            bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
        return bytes(bits)
    start = end = at
    if way in ("value", "key"):
        pattern = _KEY if way == "key" else _VALUE
        if found := list(pattern.finditer(content)):
            start, end = chance.choice(found).span()
            # Often one that is elsewhere in the file: of a right form, and wrong.
            if chance.randrange(2):
                token = chance.choice(found)[0]
    elif way == "drop":
        end, token = at + chance.randint(1, 50), b""
    elif way == "cut":
        end, token = len(content), b""
    elif way == "whole":
        start, end = 0, len(content)
    return content[:start] + token + content[end:]


def _with_other_lines(content, token, chance):
    lines = content.splitlines(keepends=True) or [b"\n"]
    one, other = (chance.randrange(len(lines)) for _ in range(2))
    how = chance.randrange(4)
    if how == 0:
        lines.insert(other, lines[one])
    elif how == 1:
        del lines[one]
    elif how == 2:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines[one] = token + b"\n"
    return b"".join(lines)


def put(path, what):
    """Puts something that is no file in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if what == "directory":
        path.mkdir()
    elif what in ("loop", "dangling", "endless"):
        path.symlink_to(
            {"loop": path.name, "endless": "/dev/zero"}.get(what, "nothing")
        )
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "huge":
        with path.open("wb") as file:
            file.truncate(2**40)
    elif what == "empty":
        path.touch()


ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOMEM, errno.EACCES)
READS = (
    *((os, name) for name in ("open", "read", "listdir", "scandir", "stat", "lstat")),
    (io, "open"),
    (builtins, "open"),
)


@dataclasses.dataclass
class FailingCalls:
    """Lets the n-th call of this process on what is below a folder fail."""

    root: Path  # The folder.
    place: int = -1  # Which call fails, from 0 on; none if negative.
    number: int = errno.EIO  # The errno.
    count: int = 0  # How many calls there were.
    failed: str = ""  # What has failed.
    before: Callable[[], None] = lambda: None  # Called before it fails.
    left_out: ClassVar[tuple[str, ...]] = ()  # How names end that are not counted.

    def is_due(self):
        """Counts a call; returns whether it has to fail."""
        self.count += 1
        return self.count - 1 == self.place

    def fail(self, what, path=None):
        """Fails as the system does."""
        self.failed = f"{what} {path or ''} {os.strerror(self.number)}"
        self.before()
        # The system says no path of a file that is open.
        named = None if path is None or isinstance(path, int) else str(path)
        raise OSError(self.number, os.strerror(self.number), named)

    def wrapped(self, real, is_meant):
        """Returns a call in the place of a real one, of which some are meant."""

        def call(path, *args, **options):
            if is_meant(args, options) and self.is_ours(path) and self.is_due():
                self.fail(real.__name__, path)
            return real(path, *args, **options)

        return call

    def is_ours(self, path):
        if isinstance(path, int):
            link = pathlib.Path(f"/proc/self/fd/{path}")
            path = link.readlink() if link.is_symlink() else ""
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        return str(self.root) in text and not text.endswith(self.left_out)


def _is_writing(args, options):
    mode = options.get("mode", args[0] if args else "r")
    if isinstance(mode, str):
        return bool(set(mode) & set("wxa+"))
    return bool(mode & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


class FailingReads(FailingCalls):
    """Those that read."""

    def install(self, patch):
        """Puts itself in the place of the calls."""

        def is_reading(args, options):
            return not _is_writing(args, options)

        for module, name in READS:
            patch.setattr(module, name, self.wrapped(getattr(module, name), is_reading))


WRITES = ("open", "fsync", "replace", "rename", "link", "unlink", "mkdir")


class FaultyFile:
    """A file of which a write may fail, after half of it is written."""

    def __init__(self, file, faults):
        self._file, self._faults = file, faults

    def write(self, content):
        if self._faults.is_due():
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            self._faults.fail("write")
        return int(self._file.write(content))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __iter__(self):
        return iter(self._file)

    def __getattr__(self, name):
        return getattr(self._file, name)


class FailingWrites(FailingCalls):
    """Those that write."""

    # The lock of the operating system; what trials write themselves.
    left_out = (".lock", "stdout.log", "stderr.log")

    def install(self, patch, *, is_synced=False):
        """Puts itself in the place of the calls."""
        if is_synced:
            patch.setattr(os, "fsync", posix.fsync)
        for name in WRITES:

            def is_making(args, _options, name=name):
                return name != "open" or bool(args and args[0] & os.O_CREAT)

            patch.setattr(os, name, self.wrapped(getattr(os, name), is_making))
        opener = self._opener(io.open)
        patch.setattr(io, "open", opener)
        patch.setattr(builtins, "open", opener)

    def _opener(self, real):
        def wrapped(path, *args, **options):
            file = real(path, *args, **options)
            is_counted = _is_writing(args, options) and self.is_ours(path)
            return FaultyFile(file, self) if is_counted else file

        return wrapped


_SHUTDOWN = 0x8004587D
_WITHOUT_LOG = 2
_SIZE = "48M"
_PROGRAMS = ("mkfs.ext4", "mount", "umount", "losetup")


class Disk:
    """A disk with a file system."""

    def __init__(self, folder):
        self.folder = folder / "disk"
        self._empty, self._image = folder / "empty.img", folder / "disk.img"
        self._num_cut = 0
        self.folder.mkdir()

    def make(self):
        """Makes the file system of an empty disk."""
        if absent := [name for name in _PROGRAMS if shutil.which(name) is None]:
            raise FileNotFoundError(f"{', '.join(absent)} (apt-get install e2fsprogs)")
        self._empty.touch()
        os.truncate(self._empty, 48 * 2**20)
        # No inode table is written later, by a thread that a cut would hit.
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0", str(self._empty), _SIZE)

    def insert(self, options):
        """Mounts the empty disk, in place of another."""
        self.remove()
        shutil.copyfile(self._empty, self._image)
        self._mount(options)

    def cut(self):
        """Cuts the power: every later call on the file system fails."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_LOG))
        finally:
            os.close(descriptor)

    def restore(self, options):
        """Mounts what the disk holds after a cut."""
        self._num_cut += 1
        held = self._image.with_name(f"cut-{self._num_cut}.img")
        shutil.copyfile(self._image, held)
        self.remove()
        self._image.unlink()
        held.rename(self._image)
        self._mount(options)

    def remove(self):
        """Unmounts it, also where a process still has a file open."""
        if os.path.ismount(self.folder):
            _run("umount", "--lazy", str(self.folder))

    def _mount(self, options):
        _run("mount", "-t", "ext4", "-o", f"loop,{options}", str(self._image),
             str(self.folder))  # fmt: skip


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{words[0]}: {(done.stderr or done.stdout).strip()}")


@contextlib.contextmanager
def mounted(folder):
    """Makes a disk, and removes it at the end of the block."""
    disk = Disk(folder)
    try:
        disk.make()
        disk.insert("defaults")
        disk.cut()  # which a kernel may not know
        yield disk
    finally:
        disk.remove()


ANSWERS = {
    "silent": b"",
    "garbage": bytes(range(200, 256)) * 4,
    "web server": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
}


@contextlib.contextmanager
def listening(port, how):
    """Accepts connections at a port; gives one of ``ANSWERS``, or other bytes."""
    kept, answer = [], ANSWERS.get(how, how)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                kept.append(listener.accept()[0])
                with contextlib.suppress(OSError):
                    kept[-1].sendall(answer)

    with contextlib.closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        deadline = time.monotonic() + 10
        while True:
            try:
                listener.bind(("", port))
                break
            except OSError:
                assert time.monotonic() < deadline, f"port {port} stays in use"
        listener.listen(16)
        threading.Thread(target=accept, daemon=True).start()
        yield f"localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()


BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def elsewhere(name):
    """Makes this process one of another machine, whose kernel sees no locks of ours.

    Without a name its kernel has no id.
    """
    read = pathlib.Path.read_text

    def read_text(path, *args, **options):
        if path == BOOT_ID and not name:
            raise FileNotFoundError(path)
        return name if path == BOOT_ID else read(path, *args, **options)

    with (
        # Blind to locks, it would remove temporary folders that other processes hold.
        tempfile.TemporaryDirectory() as temporary,
        mock.patch.object(tempfile, "tempdir", temporary),
        mock.patch.object(pathlib.Path, "read_text", read_text),
        mock.patch.object(fcntl, "flock"),
    ):
        yield


class Hung(BaseException):
    """It has not come back in time."""


# What strangers say at a port for lines of JSON.
HOSTILE = {
    "deep": b"[" * 60_000 + b"\n",
    "long": b"x" * 200_000,
    "garbage": b"\xff\x00\xfe\n",
    "http": b"GET / HTTP/1.0\r\n\r\n",
    "other types": b'[]\n"x"\n1e999\nnull\n{}\n',
    "surrogate": b'{"secret": "\\ud800", "rank": "\\ud800", "state": 1}\n',
    "huge number": b'{"rank": ' + b"9" * 5000 + b', "state": "imported"}\n',
    "a drop": b"{",
}
FLOOD = 1100  # more connections than a process may have open files here


@contextlib.contextmanager
def strangers(address, read=lambda: None):
    """Says hostile lines at a port of this process, then floods it with connections.

    ``read`` has its owner read. Yields a function that returns how many descriptors the
    owner keeps for those of the flood, which stay open.
    """
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))

    def num_descriptors():
        return len(list(pathlib.Path("/proc/self/fd").iterdir()))

    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

        def connect():
            made = opened.enter_context(socket.socket(family))
            made.connect(address)
            made.settimeout(5)
            return made

        for text in HOSTILE.values():
            with contextlib.suppress(OSError):  # closed while it sends
                connect().sendall(text)
            read()
        before = num_descriptors()
        for _ in range(FLOOD):
            connect()
            read()
        yield lambda: num_descriptors() - before - FLOOD


def until(condition, what="", timeout_sec=120.0):
    """Waits for a condition; returns what it returned. ``what`` may be a function."""
    deadline = time.monotonic() + timeout_sec
    while not (found := condition()):
        is_late = time.monotonic() > deadline
        assert not is_late, f"never: {what() if callable(what) else what}"
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def at_most(seconds):
    """Ends the block where it takes longer."""

    def stop(*_):
        raise Hung(f"no end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
