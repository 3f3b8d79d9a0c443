"""Lists and ranges of counts: ``1,2,4``, ``1..8``, ``1..16x2``."""

from __future__ import annotations

import re

from harness.errors import ParseError
from results.records.limits import MAX_REPLICAS

_RANGE = re.compile(r"(?P<first>\d+)\.\.(?P<last>\d+)(?:x(?P<factor>\d+))?")
_ALLOWED = (
    "allowed are positive integers (4), lists (1,2,4), ranges (1..8) and"
    " geometric ranges (1..16x2)"
)
MAX_COUNT = MAX_REPLICAS
"""Larger counts are typing errors, and a range to them would be very long."""
_LARGEST_PERCENTAGE = 100
_MOST_DIGITS = 18  # more than any count has, and few enough for Python to read


def parse_counts(text: str, *, what: str) -> tuple[int, ...]:
    """Returns the distinct counts that ``text`` names, ascending.

    Args:
      text: A list of numbers and ranges, separated by commas.
      what: The name of the counted thing, for the message, such as ``--replicas``.

    Raises:
      ParseError: ``text`` is empty, or has a part that is not a positive count.
    """
    counts: set[int] = set()
    for part in text.split(","):
        counts.update(_parse_part(part.strip(), text=text, what=what))
    return tuple(sorted(counts))


def _parse_part(part: str, *, text: str, what: str) -> list[int]:
    in_text = f" in {text!r}" if part != text else ""
    match = _RANGE.fullmatch(part)
    if match is None:
        return [_parse_count(part, in_text=in_text, what=what)]
    first = _parse_count(match["first"], in_text=f" in {text!r}", what=what)
    last = _parse_count(match["last"], in_text=f" in {text!r}", what=what)
    if last < first:
        raise ParseError(
            f"{what}: {part!r}{in_text} ends before it starts ({last} < {first});"
            f" write {last}..{first}"
        )
    if match["factor"] is None:
        return list(range(first, last + 1))
    factor = _read(match["factor"])
    if factor <= 1:
        raise ParseError(
            f"{what}: {part!r}{in_text} multiplies by {factor} and would never end;"
            " the factor must be 2 or more"
        )
    counts = []
    while first <= last:
        counts.append(first)
        first *= factor
    return counts


def _parse_count(part: str, *, in_text: str, what: str) -> int:
    if re.fullmatch(r"[+-]?\d+", part) is None:
        raise ParseError(f"{what}: {part!r}{in_text} is not an integer; {_ALLOWED}")
    count = _read(part)
    if count < 1:
        raise ParseError(f"{what}: {part!r}{in_text} is not positive; {_ALLOWED}")
    if count > MAX_COUNT:
        raise ParseError(
            f"{what}: {part!r}{in_text} is more than {MAX_COUNT}; {_ALLOWED}"
        )
    return count


def _read(digits: str) -> int:
    """Returns the number; one with too many digits is replaced by one too large."""
    number = int(digits.lstrip("+-0")[: _MOST_DIGITS + 1] or "0")
    return -number if digits.startswith("-") else number


def parse_percentage(text: str, *, what: str) -> float:
    """Returns the fraction that a percentage names: 0.03 for ``3%``.

    Raises:
      ParseError: ``text`` is not a percentage above 0 and up to 100.
    """
    match = re.fullmatch(r"(?P<number>\d{1,3}(?:\.\d{1,6})?)\s*%", text.strip())
    if match is None or not 0 < float(match["number"]) <= _LARGEST_PERCENTAGE:
        raise ParseError(
            f"{what}: {text!r} is not a percentage; allowed are numbers above 0 and up"
            " to 100 with a percent sign, such as 3%"
        )
    return float(match["number"]) / _LARGEST_PERCENTAGE


def parse_names(text: str, *, what: str) -> tuple[str, ...]:
    """Returns the distinct names of a comma-separated list, in order.

    Raises:
      ParseError: The list or one of its parts is empty.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in names:
        raise ParseError(
            f"{what}: {text!r} has an empty name; separate names by single commas"
        )
    return names
