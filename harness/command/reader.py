"""Reads numbers from the output of a program, line by line, each with its time."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from harness.command.errors import ReadingError
from harness.command.numbers import PLAIN, Notation, Place, read
from harness.command.terminal_line import MOST_COLUMNS, TerminalLine
from harness.command.units import NumberError, Quantity
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SHOWN: Final = 120
"""Characters of a line or number that a message shows."""
_BEFORE: Final = 60
"""Characters before a number that a message shows."""
_EXACT_DIGITS: Final = 15
"""Decimal digits that a float always keeps."""
_WHOLE = re.compile(
    r"(?:(?P<word>[^\W\d_]+)[^\w\n]{0,4})?(?<![\w.,:+\-])(?P<number>[0-9]{1,15})"
    r"(?![\w:]|[.,][0-9])"
)
_MOST_COUNTERS: Final = 20
_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<|\(\?|\(|\)", re.DOTALL)
_NO_NUMBER: Final = (
    r"(?:(?i:[-+]?(?:nan|inf|infinity|none|null|n/a)\b|[-+]?\u221e|[-\u2013\u2014]+)"
    r"|[-+\u2212]?[.,]?\d\S*?{empty}){end}"
)
_PER = re.compile(
    r"(?P<gap>(?:\\s| )?[*+?]?)(?P<first>[a-z\u00b5]+)/(?P<second>[a-z\u00b5]+)"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One number of a program."""

    # When it was printed, in nanoseconds; 0 of a file that was not seen to grow.
    ns: int
    value: float  # In the unit of the metric.
    # The line or the file, for messages.
    where: str = dataclasses.field(default="", compare=False)
    # Whole numbers of the line, by the word before each and its place.
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict, compare=False)


def number(
    place: Place, where: str, option: str, quantity: Quantity, notation: Notation
) -> float:
    """Returns a number that is finite and not below zero."""
    try:
        value = read(place, quantity, notation)
        _check_range(place, value, quantity)
    except NumberError as error:
        shown = printable(place.text[error.start : error.end])[:SHOWN]
        first = max(0, error.start - _BEFORE)
        line = printable(place.text[first : first + SHOWN])
        caret = " " * (error.start - first) + "^" * max(1, min(len(shown), SHOWN))
        raise ReadingError(
            f"{where} has {shown!r}, {_why(str(error), shown, option)}",
            detail=f"{line}\n{caret}",
        ) from error
    return float(value)


def _why(reason: str, shown: str, option: str) -> str:
    if reason.startswith("of which"):
        return reason
    if re.fullmatch(r"[-+]?(?:nan|inf(?:inity)?)", shown, re.IGNORECASE):
        reason = "is not a rate or a time; they are positive and finite: look at what"
        return f"which {reason} the program did"
    if reason == "is not a number":
        return f"which {reason}; put the group of {option} around the number alone"
    return f"which {reason} (spellings: docs/command.md)"


def _check_range(place: Place, value: Decimal, quantity: Quantity) -> None:
    span = place.start, len(place.text)
    if not math.isfinite(float(value)):
        raise NumberError("is too large", *span)
    digits = "".join(map(str, value.as_tuple().digits)).strip("0")
    is_exact = len(digits) <= _EXACT_DIGITS or Decimal(float(value)) == value
    if quantity is Quantity.COUNT and not is_exact:
        raise NumberError(
            f"has {len(digits)} digits and cannot be compared exactly; print at most"
            f" {_EXACT_DIGITS}",
            *span,
        )


def counters(text: str) -> dict[str, int]:
    """Returns the whole numbers of a line, by the word before each and its place."""
    found: dict[str, int] = {}
    for match in itertools.islice(_WHOLE.finditer(text), _MOST_COUNTERS):
        word = match["word"] or ""
        place = sum(name.startswith(f"{word} ") for name in found)
        found[f"{word} {place}"] = int(match["number"])
    return found


def advances(lines: Sequence[Mapping[str, int]]) -> list[int]:
    """Returns how far those counters have gone that never went back."""
    if not lines:
        return []
    shared = set(lines[0]).intersection(*lines[1:])
    found = {
        lines[-1][name] - lines[0][name]
        for name in shared
        if all(a[name] <= b[name] for a, b in itertools.pairwise(lines))
    }
    return sorted(found - {0})


def check_positive(reading: Reading) -> None:
    """Checks that a number is a rate or a time."""
    if not reading.value:
        raise ReadingError(
            f"{reading.where} has 0, which is not a rate or a time; they are positive"
            " and finite: look at what the program did"
        )


class LineReader:
    """Splits one stream into lines, and finds the number in each.

    Attributes:
      missed: Lines that match but for the number.
      num_read: Lines that have one.
    """

    def __init__(
        self,
        pattern: re.Pattern[str],
        option: str = "--metric",
        quantity: Quantity = Quantity.RATE,
        notation: Notation = PLAIN,
    ) -> None:
        self._pattern, self.option = pattern, option
        self._quantity, self._notation = quantity, notation
        self._inverse, self._near = _inverse(pattern), _near(pattern)
        self._terminal = TerminalLine()
        self.missed: list[str] = []
        self.num_read = 0

    def feed(self, chunk: bytes, ns: int) -> Iterator[Reading]:
        """Yields the numbers of the lines that a chunk completes."""
        for line in self._terminal.feed(chunk):
            yield from self._read(line, ns)

    def _read(self, line: str, ns: int) -> Iterator[Reading]:
        is_cut, text = len(line) > MOST_COLUMNS, line[:MOST_COLUMNS]
        pattern = self._pattern
        found = [*pattern.finditer(text)]
        if not found and self._inverse is not None:
            pattern = self._inverse
            found = [*pattern.finditer(text)]
        shown = printable(text.strip())[:SHOWN]
        if len(found) > 1:
            raise ReadingError(
                f"the pattern of {self.option} matches {len(found)} times in the line"
                f" {shown!r}; add what stands before the number that you mean"
            )
        where = f"the line {shown!r}"
        for match in found:
            self.num_read += 1
            place = _place(pattern, match, is_cut=is_cut)
            value = number(place, where, self.option, self._quantity, self._notation)
            yield Reading(ns, value, where, counters(text))
        near = None if found else self._near
        if near is not None and any(map(near.search, (text, text + " "))):
            self.missed.append(shown)


def check_missed(readers: Iterable[LineReader]) -> None:
    """Checks that no line lacked its number, once the program has printed enough."""
    for reader in readers:
        if reader.missed:
            number_of = len(reader.missed)
            raise ReadingError(
                f"{number_of} of {number_of + reader.num_read} lines that"
                f" {reader.option} looks for have no number, such as"
                f" {reader.missed[0]!r}: what was computed there failed, or the pattern"
                " is too narrow; look at what the program did"
            )


def _place(pattern: re.Pattern[str], match: re.Match[str], *, is_cut: bool) -> Place:
    text, start = match.string, max(match.start(1), 0)

    def asks(first: int, last: int) -> bool:
        """Whether the pattern finds the number only where this stands here."""
        filler = "x" if text[first].isdecimal() else "q"
        other = text[:first] + filler * (last - first) + text[last:]
        return all(found.start(1) != start for found in pattern.finditer(other))

    return Place(
        text=text + "\u2026" * is_cut,
        start=start,
        is_led=match.start() < start,
        asks=asks,
    )


def _group(source: str) -> tuple[int, int] | None:
    """Returns where the capturing group of a pattern stands, brackets included."""
    opened: list[int | None] = []
    for token in _GROUP.finditer(source):
        if token[0][0] == "(":
            opened.append(token.start() if token[0] in ("(", "(?P<") else None)
        elif token[0] == ")" and opened:
            start = opened.pop()
            if start is not None:
                return start, token.end()
    return None


def _replaced(
    pattern: re.Pattern[str], prefix: str, rest: str
) -> re.Pattern[str] | None:
    try:
        return re.compile(prefix + rest, pattern.flags & ~re.UNICODE)
    except re.error:
        return None


def _near(pattern: re.Pattern[str]) -> re.Pattern[str] | None:
    """Returns what finds the lines that match but for the number; None if any would."""
    group = _group(pattern.pattern)
    if group is None:
        return None
    prefix, suffix = pattern.pattern[: group[0]], pattern.pattern[group[1] :]
    literals = [
        re.search(r"\w", re.sub(r"\\\w|\[[^\]]*\]|\(\?\w*", "", part))
        for part in (prefix, suffix)
    ]
    is_whole = prefix.startswith("^") and suffix.endswith("$")
    if not (any(literals) or is_whole):
        return None
    end = "" if suffix else r"(?=[\s,;|)\]}]|$)"
    empty = r"|(?=\s*$)" if literals[0] and not suffix.strip("$") else ""
    return _replaced(
        pattern,
        prefix,
        _NO_NUMBER.replace("{empty}", empty).replace("{end}", end) + suffix,
    )


def _inverse(pattern: re.Pattern[str]) -> re.Pattern[str] | None:
    """Returns the pattern for s/it where the text of one asks for it/s, or the reverse.

    Progress bars change between the two.
    """
    group = _group(pattern.pattern)
    per = _PER.match(pattern.pattern, group[1]) if group else None
    if per is None or group is None or "s" not in (per["first"], per["second"]):
        return None
    prefix = pattern.pattern[: group[1]] + per["gap"]
    rest = f"{per['second']}/{per['first']}" + pattern.pattern[per.end() :]
    return _replaced(pattern, prefix, rest)
