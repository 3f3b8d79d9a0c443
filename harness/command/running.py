"""Runs a program, reads and keeps what it prints, and leaves no process of it behind.

Orphans of the program become children of this process (the kernel's child subreaper),
so that it finds them whatever they did to their session and environment.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import errno
import math
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import psutil

from harness.client.scaling_client import LostHarnessError
from harness.trial import process_tree
from harness.trial.process_tree import request_death_signal
from results.records.texts import printed

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Generator,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path


class CommandError(RuntimeError):
    """The program did not do what was asked."""


MOST_COLUMNS: Final = 20_000
_TOKEN = re.compile(
    r"\x1b\[(?P<numbers>[0-9;:<=>?]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\)"  # a link, a title and alike
    r"|\x1b[ -/]*[0-~]"
    r"|(?P<text>[^\x00-\x08\x0a-\x1f\x7f]+)|(?P<control>[\x00-\x1f\x7f])",
    re.DOTALL,
)
_OPEN = re.compile(r"\x1b(?:\[[0-9;:<=>?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
_MOST_OPEN: Final = 4096
_SPECIAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class TerminalLine:
    """The line of the cursor; going back to its beginning ends what was written.

    Cells right of what was written since stay on a terminal, and are left out here: a
    number that is printed over a longer one is meant without the rest of that.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._cells: list[str] = []
        self._column = self._written = 0
        self._open = ""

    def feed(self, chunk: bytes) -> Iterator[str]:
        text = self._open + self._decoder.decode(chunk, final=not chunk)
        tail = _OPEN.search(text, max(0, len(text) - _MOST_OPEN)) if chunk else None
        self._open = tail[0] if tail else ""
        text = text[: len(text) - len(self._open)]
        if not (self._cells or self._column or _SPECIAL.search(text)):
            *lines, text = text.split("\n")
            yield from filter(None, (line[: MOST_COLUMNS + 1] for line in lines))
        for token in _TOKEN.finditer(text):
            if token["text"]:
                self._write(token["text"])
            elif token["control"] or token["final"]:
                number = (token["numbers"] or "").partition(";")[0][:5]
                yield from self._act(
                    token["control"] or token["final"],
                    int(number) if number.isdecimal() else 0,
                )
        if not chunk:
            yield from self._end()

    def _write(self, text: str) -> None:
        text = text[: max(0, MOST_COLUMNS + 1 - self._column)]
        self._cells += " " * (self._column - len(self._cells))
        self._cells[self._column : self._column + len(text)] = text
        self._column += len(text)
        self._written = max(self._written, self._column)

    def _act(self, what: str, number: int) -> Iterator[str]:
        column, count = self._column, max(1, number)
        moves = {"\r": 0, "\b": column - 1, "D": column - count, "C": column + count}
        moves |= {"G": count - 1, "`": count - 1}
        if what in moves:
            column = min(max(0, moves[what]), MOST_COLUMNS)
            if not column:
                yield from self._end()
        elif what == "P":
            del self._cells[column : column + count]
        elif what in "KJ" and not number:
            del self._cells[column:]
            self._written = min(self._written, column)
        elif what in "KX":
            first, last = (column, column + count) if what == "X" else (0, column + 1)
            if what == "K":
                yield from self._end()
                last = last if number == 1 else len(self._cells)
            self._cells[first:last] = " " * (min(last, len(self._cells)) - first)
        elif what in "\n\v\fABEFHJSTf":
            yield from self._end()
            self._cells.clear()
            column = column if what in "AB" else 0
        self._column = column

    def _end(self) -> Iterator[str]:
        """Yields what was written since the cursor was at the beginning."""
        if self._written:
            yield "".join(self._cells[: self._written])
        self._written = 0


_RULER = re.compile(r"[\s\W_]*")
_PREFIX = re.compile(
    r"^(?:\[(?:default)?(?:rank ?:? ?)?(?P<rank>\d+)\](?: ?:|<std\w+>:)? ?"
    r"|\[\d+,(?P<tag>\d+)\](?:<std\w+>)?: ?|(?P<task>\d+): )"
)
"""How launchers mark lines: torchrun and PyTorch, Open MPI's tags, srun --label."""
_TRACEBACK: Final = "Traceback (most recent call last):"
_CHAINED: Final = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::(?: |$)|$)")
_SILENT: Final = ("SystemExit", "KeyboardInterrupt")
_ROOT: Final = "Root Cause (first observed failure)"
_FIRST = re.compile(
    r"rank +: (?P<torchrun>\d+) |^\[rank: (?P<lightning>\d+)\] Child process"
    r"|Process name: \[\[.*\], ?(?P<mpi>\d+)\]"
)
_LAUNCHER = re.compile(
    r"torch\.distributed|torch/distributed/(?:run|launch|elastic)|ChildFailedError"
    r"|^\[rank: \d+\] Child process|^(?:srun|slurmstepd|mpirun|mpiexec|prterun): "
    r"|Primary job +terminated|user-direction, the job has been aborted"
    r"|non-zero (?:status|exit)|the job to be terminated|Process name: \[\["
    r"|Exit code: +\d|MPI_ABORT was invoked|BAD TERMINATION|^= +(?:PID|EXIT|CLEANING)"
    r"|^\s*(?:time|host|rank|exitcode|error_file|traceback) *: |NO_OTHER_FAILURES"
    r"|FAILED$|^(?:Failures|Root Cause.*):$|^\[\d+\]:$|YOUR APPLICATION TERMINATED"
)
"""Lines in which a launcher says that a process has failed, and not why."""


def first_cause(text: str) -> str:
    """Returns the line that says why a program failed; empty if it printed nothing.

    The last exception of the process that failed first, which a launcher may name; else
    the first that Python printed; else the last line that no launcher printed.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    lines = [line for line in lines if not _RULER.fullmatch(line)]
    raised, root = _exceptions(lines), _root(lines)
    is_only = root is None or len(raised) == 1
    first = (one for one in raised if one[0] == root or (is_only and not one[0]))
    if raised:
        rank, line = next(first, raised[0])
        return f"rank {rank}: {line}" if rank else line
    said = [line for line in lines if not _LAUNCHER.search(line)]
    outer = [line for line in said if line[0] != " " and line != _TRACEBACK]
    last = next((each[-1].strip() for each in (outer, said, lines) if each), "")
    return f"{last} (rank {root} failed first)" if root is not None else last


def _root(lines: list[str]) -> str | None:
    """Returns the rank that a launcher names as the first that failed."""
    is_root = not any(_ROOT in line for line in lines)
    for line in lines:
        is_root = is_root or _ROOT in line
        match = _FIRST.search(line)
        if match and (is_root or not match["torchrun"]):
            return next(filter(None, match.groups()))
    return None


def _exceptions(lines: list[str]) -> list[tuple[str, str]]:
    """Returns rank and exception of each traceback, the first one first."""
    exceptions: list[tuple[str, str]] = []
    opened: dict[str, int] = {}  # by rank, the number of the one that it replaces
    chained: dict[str, int] = {}
    last: dict[str, int] = {}
    for line in lines:
        mark = _PREFIX.match(line)
        rank = next(filter(None, mark.groups()), "") if mark else ""
        text = line[mark.end() :] if mark else line
        if text.strip() in _CHAINED and rank in last:
            chained[rank] = last[rank]
        elif text == _TRACEBACK:
            opened[rank] = chained.pop(rank, len(exceptions))
        elif rank in opened and _EXCEPTION.match(text):
            index = opened.pop(rank)
            if not text.startswith(_SILENT) and not _LAUNCHER.search(text):
                last[rank] = min(index, len(exceptions))
                exceptions[index : index + 1] = [(rank, text)]
    return exceptions


HEAD_BYTES: Final = 4 * 2**20
TAIL_BYTES: Final = 64 * 2**10


class KeptOutput:
    """The beginning and the end of a stream, as they are passed on."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.last_bytes = b""
        self.num_bytes = 0  # how much came

    def add(self, chunk: bytes) -> None:
        left = max(0, HEAD_BYTES - self.num_bytes)
        self.num_bytes += len(chunk)
        self._write(chunk[:left])
        self.last_bytes = (self.last_bytes + chunk)[-TAIL_BYTES:]

    def end(self) -> None:
        rest = self.num_bytes - HEAD_BYTES
        if rest > TAIL_BYTES:
            mark = f"\n[... {rest - TAIL_BYTES} bytes left out ...]\n"
            self._write(mark.encode())
        if rest > 0:
            self._write(self.last_bytes[-rest:])

    def _write(self, content: bytes) -> None:
        while content:
            content = content[os.write(self._descriptor, content) :]

    @property
    def tail(self) -> str:
        lines = self.last_bytes.decode("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-30:])

    @property
    def shown(self) -> str:
        line = TerminalLine()
        return "\n".join((*line.feed(self.last_bytes), *line.feed(b"")))


_PR_SET_CHILD_SUBREAPER: Final = 36
_CHUNK_BYTES: Final = 2**16
_SAMPLE_SEC: Final = 1.0
POLL_SEC: Final = 0.25
_DRAIN_SEC: Final = 1.0
"""For processes that end with the program, and for output that is on its way."""


_MORE: Final = 1.1
"""Times the cores of a trial: what counting CPU time can be wrong by, and no more."""
_FLOOD: Final = 2**19
"""Bytes per second from which reading the output takes a share of the cores."""


def count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural * (number != 1)}"


class Run:
    def __init__(self, look: Callable[[list[int]], None] | None = None) -> None:
        # Gets the ids of all its processes every second; else they are not looked for.
        self._look = look
        self.kept = (KeptOutput(1), KeptOutput(2))  # what it prints
        self.exit_code: int | None = None  # as in ``subprocess``; None while it runs
        self.num_processes = 0  # the most at once, as sampled
        self.num_left = 0  # that outlived it and were ended
        self.peak_bytes = 0  # the largest resident memory of all, as sampled
        self.duration_sec = 0.0  # from start to end
        self.cpu_sec = 0.0  # of all its processes

    @property
    def busy_cores(self) -> float:
        return self.cpu_sec / max(self.duration_sec, 1e-9)

    @property
    def bytes_per_sec(self) -> float:
        return sum(kept.num_bytes for kept in self.kept) / max(self.duration_sec, 1.0)

    def described(self, first: int = 2) -> str:
        """Says what it printed last, by default of stream 2 first; masks tokens."""
        order = self.kept[::-1] if first > 1 else self.kept
        texts = [kept.shown for kept in order]
        cause = next(filter(None, map(first_cause, texts)), "none")
        is_last = cause == "none" or any(x.rstrip().endswith(cause) for x in texts)
        return f"its {'last line' if is_last else 'first error'}: {printed(cause)!r}"

    def remarks(self, num_cores: int, other_gpus: Collection[int]) -> list[str]:
        """Returns what its user should know of it, where it had some cores."""
        remarks = []
        if self.num_left:
            remarks.append(
                f"{count(self.num_left, 'process', 'es')} outlived the command and were"
                " ended; let it wait for what it starts"
            )
        if self.bytes_per_sec > _FLOOD:
            remarks.append(
                f"it printed {self.bytes_per_sec / 2**20:.1f} MiB/s, and reading that"
                " takes time from its cores; print less"
            )
        if self.busy_cores > _MORE * num_cores:
            remarks.append(
                f"it kept {self.busy_cores:.1f} cores busy and has"
                f" {count(num_cores, 'core')}; leave the affinity as it is, and start"
                " as many threads as {cores}"
            )
        if other_gpus:
            indices = ", ".join(map(str, sorted(other_gpus)))
            remarks.append(
                f"it used {count(len(other_gpus), 'GPU')} that its trial does not have"
                f" ({indices}); leave CUDA_VISIBLE_DEVICES as it is, and use {{gpus}}"
            )
        return remarks

    def output(
        self,
        words: Sequence[str],
        folder: Path,
        variables: Mapping[str, str],
        period_sec: float = POLL_SEC,
    ) -> Generator[tuple[int | None, bytes, int], None, None]:
        """Runs the program, and ends it when this is closed.

        Yields number, bytes and time of what a stream has; none of the bytes at its
        end. Once a period the number is None.
        """
        if sys.platform.startswith("linux"):  # orphans become children of this process
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        start = time.monotonic()
        try:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=request_death_signal,  # noqa: PLW1509 - before any thread
            )
        except OSError as error:
            advice = (
                "begin a script with '#!/bin/sh', or name its interpreter"
                if error.errno == errno.ENOEXEC
                else "give a program that is in PATH, or its path from the folder of"
                " the sweep"
            )
            raise CommandError(
                f"--command cannot be started: {words[0]!r}: {error.strerror}; {advice}"
            ) from error
        with process:
            try:
                yield from self._read(process, period_sec)
                # It may have closed its output, and work on.
                while process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(POLL_SEC)
                    yield None, b"", time.monotonic_ns()
            finally:
                self.num_left = self._end_all(process)
                self.exit_code = process.wait()
                self.duration_sec = time.monotonic() - start
                used = resource.getrusage(resource.RUSAGE_CHILDREN)
                self.cpu_sec = used.ru_utime + used.ru_stime
                for kept in self.kept:
                    kept.end()

    def _read(
        self, process: subprocess.Popen[bytes], period_sec: float
    ) -> Iterator[tuple[int | None, bytes, int]]:
        """Reads until the output ends, or the program has exited a moment ago."""
        with selectors.DefaultSelector() as selector:
            for index, stream in enumerate((process.stdout, process.stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, index)
            with contextlib.suppress(PermissionError):  # a regular file has no end
                selector.register(0, selectors.EVENT_READ)
            num_open, sample_at, exited_at = 2, 0.0, math.inf
            while num_open and time.monotonic() < exited_at + _DRAIN_SEC:
                for key, _ in selector.select(period_sec):
                    chunk = os.read(key.fd, _CHUNK_BYTES)
                    if key.data is None:
                        if not chunk:
                            raise LostHarnessError("the harness has exited")
                        continue
                    if not chunk:
                        selector.unregister(key.fileobj)
                        num_open -= 1
                    if chunk and not any(kept.num_bytes for kept in self.kept):
                        sample_at = 0.0  # who begins to print may not live for long
                    self.kept[key.data].add(chunk)
                    yield key.data, chunk, time.monotonic_ns()
                yield None, b"", time.monotonic_ns()
                now = time.monotonic()
                if self._look is not None and now >= sample_at:
                    self._sample(self._look)
                    sample_at = now + _SAMPLE_SEC
                if process.poll() is not None:
                    exited_at = min(exited_at, now)

    def _sample(self, look: Callable[[list[int]], None]) -> None:
        processes = psutil.Process().children(recursive=True)
        self.num_processes = max(self.num_processes, len(processes))
        total = 0
        for process in processes:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        self.peak_bytes = max(self.peak_bytes, total)
        look([process.pid for process in processes])

    def _end_all(self, process: subprocess.Popen[bytes]) -> int:
        """Ends all processes; returns how many outlived the program by themselves."""
        has_exited = process.poll() is not None
        deadline = time.monotonic() + _DRAIN_SEC * has_exited
        while left := [one for one in _living() if one.pid != process.pid]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        deadline = time.monotonic() + process_tree.TERMINATE_GRACE_SEC
        while alive := _living():
            is_late = time.monotonic() > deadline
            for one in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGKILL if is_late else signal.SIGTERM)
            pause = time.monotonic() + 0.5
            while _living() and time.monotonic() < pause:
                process.poll()
                time.sleep(0.02)
        return len(left) if has_exited else 0


def _living() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [process for process in children if process_tree.is_alive(process)]
