"""What a program prints: its lines, its first error, and what of it is kept."""

from __future__ import annotations

import codecs
import os
import re
from typing import TYPE_CHECKING, Final

from results.records.texts import printed

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        """Yields the lines that a chunk completes; an empty one is the end."""
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
    raised = _exceptions(lines)
    root = _root(lines)
    for rank, line in raised:
        if rank == root or (rank == "" and (root is None or len(raised) == 1)):
            return _named(rank, line)
    if raised:
        return _named(*raised[0])
    said = [line for line in lines if not _LAUNCHER.search(line)]
    outer = [line for line in said if line[0] != " " and line != _TRACEBACK]
    said = [line.strip() for line in outer or said]
    last = said[-1] if said else (lines[-1].strip() if lines else "")
    return f"{last} (rank {root} failed first)" if root is not None else last


def described(stderr: bytes, stdout: bytes) -> str:
    """Says what a program printed last, or which error was its first; masks tokens."""
    texts = ["\n".join(_shown(data)) for data in (stderr, stdout)]
    cause = next(filter(None, map(first_cause, texts)), "none")
    is_last = any(text.rstrip().endswith(cause) for text in texts) or cause == "none"
    return f"its {'last line' if is_last else 'first error'}: {printed(cause)!r}"


def _shown(data: bytes) -> Iterator[str]:
    line = TerminalLine()
    yield from line.feed(data)
    yield from line.feed(b"")


def _named(rank: str, line: str) -> str:
    return f"rank {rank}: {line}" if rank else line


def _root(lines: list[str]) -> str | None:
    """Returns the rank that a launcher names as the first that failed."""
    is_root = not any(_ROOT in line for line in lines)
    for line in lines:
        is_root = is_root or _ROOT in line
        found = _FIRST.search(line)
        if found and (is_root or not found["torchrun"]):
            return next(filter(None, found.groups()))
    return None


def _exceptions(lines: list[str]) -> list[tuple[str, str]]:
    """Returns rank and exception of each traceback, the first one first."""
    found: list[tuple[str, str]] = []
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
            opened[rank] = chained.pop(rank, len(found))
        elif rank in opened and _EXCEPTION.match(text):
            index = opened.pop(rank)
            if not text.startswith(_SILENT) and not _LAUNCHER.search(text):
                last[rank] = min(index, len(found))
                found[index : index + 1] = [(rank, text)]
    return found


HEAD_BYTES: Final = 4 * 2**20
TAIL_BYTES: Final = 64 * 2**10


class KeptOutput:
    """One stream of a program, written to a file within limits.

    Attributes:
      num_bytes: How much came.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._tail = b""
        self.num_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Writes what is of the beginning, and holds what may be of the end."""
        left = max(0, HEAD_BYTES - self.num_bytes)
        self.num_bytes += len(chunk)
        _write(self._descriptor, chunk[:left])
        self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    def end(self) -> None:
        """Writes the end of a long output, and how much lies between."""
        left_out = self.num_bytes - HEAD_BYTES - TAIL_BYTES
        if left_out > 0:
            mark = f"\n[... {left_out} bytes left out ...]\n".encode()
            _write(self._descriptor, mark + self._tail)
        elif self.num_bytes > HEAD_BYTES:
            _write(self._descriptor, self._tail[HEAD_BYTES - self.num_bytes :])

    @property
    def last_bytes(self) -> bytes:
        """The end of what came."""
        return self._tail

    @property
    def tail(self) -> str:
        return "\n".join(
            self._tail.decode("utf-8", errors="replace").splitlines()[-30:]
        )


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
