"""The first cause of a failure in what a program and its launchers print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from harness.command.terminal_line import TerminalLine
from results.records.masked import printed

if TYPE_CHECKING:
    from collections.abc import Iterator

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
