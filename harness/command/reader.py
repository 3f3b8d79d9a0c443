"""Reads numbers from the output of a program, line by line, each with its time."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Final

from harness.command.errors import ReadingError
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_OF_LINE: Final = 20_000
"""Characters of a line that are looked at: a pattern could take for ever on more."""
SHOWN: Final = 120
"""Characters of a line or number that a message shows."""
_END = re.compile(rb"[\r\n]")  # progress bars end lines by a carriage return
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BEGINNING = re.compile(r"[0-9]+\.?$|[0-9.]*[0-9][eE][+-]?$")
_BEGINNING_UNSAID = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})*,$|(?<!\w)-$")
"""The same where the pattern does not say what stands before its group."""
_OF_A_THOUSAND = re.compile(r"[0-9]{3}(?![0-9])")
_END_OF_NUMBER = re.compile(
    r"[.0-9]*[0-9]|\.?[0-9]*[eE][+-]?[0-9]+|(?:[,'][0-9]{3})+(?![0-9,])[0-9.]*"
    r"|(?::[0-9]{2})+\b[0-9.]*|[kKMG]\b"
)
"""What stands behind the part of a number that a pattern takes."""
_OF_THOUSANDS: Final = 3
"""The most digits before the first comma of 1,234,567."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One number of a program.

    Attributes:
      ns: When it was printed, in nanoseconds; 0 of a file that was not seen to grow.
      value: As it was printed.
    """

    ns: int
    value: float


def number(text: str, where: str) -> float:
    """Returns a positive number.

    Raises:
      ReadingError: It is none.
    """
    try:
        value = float(text)
    except ValueError:
        raise ReadingError(
            f"{where} has {text[:SHOWN]!r}, which is not a number; put the group of"
            " --metric around the number alone"
        ) from None
    if not math.isfinite(value) or value <= 0:
        raise ReadingError(
            f"{where} has {text[:SHOWN]!r}, which is not a rate or a time; they are"
            " positive and finite: look at what the program did"
        )
    return value


class LineReader:
    """Splits one stream into lines, and finds the number in each.

    Args:
      pattern: Of a line, with one group.
      option: What it was given by, for messages.
      read: Returns a number from its text, and where it is; raises ReadingError.
    """

    def __init__(
        self,
        pattern: re.Pattern[str],
        option: str = "--metric",
        read: Callable[[str, str], float] = number,
    ) -> None:
        self._pattern, self._option, self._number = pattern, option, read
        self._rest = b""

    def feed(self, chunk: bytes, ns: int) -> Iterator[Reading]:
        """Yields the numbers of the lines that a chunk completes.

        Args:
          chunk: What was read; empty at the end of the stream.
          ns: When.

        Raises:
          ReadingError: A line has two numbers, or none where one was matched.
        """
        *lines, rest = _END.split(self._rest + chunk)
        if not chunk:
            lines, rest = [*lines, rest], b""
        self._rest = rest[:MOST_OF_LINE]
        for line in lines:
            if line:
                yield from self._read(line[:MOST_OF_LINE], ns)

    def _read(self, line: bytes, ns: int) -> Iterator[Reading]:
        text = _COLOURS.sub("", line.decode("utf-8", errors="replace"))
        found = [*self._pattern.finditer(text)]
        shown = printable(text.strip())[:SHOWN]
        if len(found) > 1:
            raise ReadingError(
                f"the pattern of {self._option} matches {len(found)} times in the line"
                f" {shown!r}; add what stands before the number that you mean"
            )
        for match in found:
            where = f"the line {shown!r}"
            self._check_whole(match, where)
            yield Reading(ns, self._number(match[1] or "", where))

    def _check_whole(self, match: re.Match[str], where: str) -> None:
        """Raises if the group takes a part of a number: 1.2 of 1.2e+04, 4 of 123.4.

        A pattern that goes on behind its group says itself what follows.
        """
        text, (start, end) = match.string, match.span(1)
        if not match[1] or not match[1].replace(".", "").isdecimal():
            return
        before = _BEGINNING.search(text[:start])
        if before is None and start == match.start():
            before = _BEGINNING_UNSAID.search(text[:start])
            if before and "," in before[0] and not _OF_A_THOUSAND.match(match[1]):
                before = None  # the column before
        after = _END_OF_NUMBER.match(text, end) if end == match.end() else None
        first = "" if before is None else before[0]
        last = "" if after is None else after[0]
        if last.startswith(",") and ("." in match[1] or len(match[1]) > _OF_THOUSANDS):
            last = ""  # the next column
        if first.strip("0") or last:
            raise ReadingError(
                f"{where} has {first + match[1] + last!r}, of which the group of"
                f" {self._option} takes {match[1]!r} alone; let it take the whole"
                " number, such as '[^0-9]([0-9.e+-]+)', printed without separators or k"
            )
