"""Lists, ranges and percentages: ``in_graph,single``, ``1..16x2``, ``3%``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ParseError
from harness.options.kinds import Kind
from results.records.limits import MAX_REPLICAS

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Sequence

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
    """Returns the distinct counts that ``text`` names, ascending."""
    counts: set[int] = set()
    for part in text.split(","):
        counts.update(_parse_part(part.strip(), text=text, what=what))
    return tuple(sorted(counts))


def _parse_part(part: str, *, text: str, what: str) -> list[int]:
    in_text = f" in {text!r}" if part != text else ""
    found = _RANGE.fullmatch(part)
    if found is None:
        return [_parse_count(part, in_text=in_text, what=what)]
    first = _parse_count(found["first"], in_text=f" in {text!r}", what=what)
    last = _parse_count(found["last"], in_text=f" in {text!r}", what=what)
    if last < first:
        raise ParseError(
            f"{what}: {part!r}{in_text} ends before it starts ({last} < {first});"
            f" write {last}..{first}"
        )
    if found["factor"] is None:
        return list(range(first, last + 1))
    factor = _read(found["factor"])
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
    """Returns the fraction that a percentage names: 0.03 for ``3%``."""
    found = re.fullmatch(r"(?P<number>\d{1,3}(?:\.\d{1,6})?)\s*%", text.strip())
    if found is None or not 0 < float(found["number"]) <= _LARGEST_PERCENTAGE:
        raise ParseError(
            f"{what}: {text!r} is not a percentage; allowed are numbers above 0 and up"
            " to 100 with a percent sign, such as 3%"
        )
    return float(found["number"]) / _LARGEST_PERCENTAGE


def parse_names(text: str, *, what: str) -> tuple[str, ...]:
    """Returns the distinct names of a comma-separated list, in order."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in names:
        raise ParseError(
            f"{what}: {text!r} has an empty name; separate names by single commas"
        )
    return names


def _listed(parse: Callable[..., Any]) -> Callable[[Any, str], Any]:
    """Returns a reader of lists: with commas, or as an array or integer of TOML."""

    def read(value: object, what: str) -> Any:
        of = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        return parse(of, what=what)

    return read


def _write_list(values: Sequence[Any]) -> str:
    return ",".join(str(getattr(value, "value", value)) for value in values)


COUNTS: Final = Kind(
    read=_listed(parse_counts),
    annotation=int | str | list[int | str],
    must_be='an integer, an array of integers, or text such as "1..8"',
    metavar="COUNTS",
    write=_write_list,
)
NAMES: Final = Kind(
    read=_listed(parse_names),
    annotation=str | list[str],
    must_be="text, or an array of texts",
    metavar="NAMES",
    write=_write_list,
)
PERCENTAGE: Final = Kind(
    read=lambda value, what: parse_percentage(str(value), what=what),
    annotation=str,
    must_be="text",
    metavar="PERCENT",
    write=lambda value: f"{value:.6%}".rstrip("%").rstrip("0").rstrip(".") + "%",
)


def some_of(of: Sequence[enum.Enum], *, noun: str, all_and_none: bool = False) -> Kind:
    """Returns the kind of several of a few values, in their order."""
    by_name: dict[str, tuple[enum.Enum, ...]]
    by_name = {str(member.value): (member,) for member in of}
    alone = {"all": tuple(of), "none": ()} if all_and_none else {}
    by_name |= alone

    def parse(text: str, *, what: str) -> tuple[enum.Enum, ...]:
        names = parse_names(text, what=what)
        for name in names:
            if name not in by_name:
                raise ParseError(
                    f"{what}: unknown {noun} {name!r}; allowed are"
                    f" {', '.join(by_name)}, several separated by commas"
                )
            if name in alone and len(names) > 1:
                raise ParseError(
                    f"{what}: {name!r} stands beside other names in {text!r}; give it"
                    " alone"
                )
        return tuple(
            member for member in of if any(member in by_name[name] for name in names)
        )

    return Kind(
        read=_listed(parse),
        annotation=str | list[str],
        must_be="text, or an array of texts",
        metavar="NAMES",
        write=lambda values: _write_list(values) or "none",
        choices=tuple(by_name),
    )
