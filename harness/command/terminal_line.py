"""What a terminal shows of a stream: its lines, as progress bars rewrite them."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Final

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
