"""How values are written: ``1..16x2``, ``in_graph,single``, ``3%``, ``12min``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import pydantic

from harness.errors import ParseError
from harness.options.kinds import Kind, shown
from results.records import limits
from results.records.limits import MAX_REPLICAS, MAX_SEC

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Sequence

    from results.records.models import OptionValue

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


Unit = Literal["s", "min", "h"]

SECONDS_OF: Final[dict[Unit, float]] = {"s": 1.0, "min": 60.0, "h": 3600.0}
_NAMES: Final[dict[Unit, str]] = {"s": "seconds", "min": "minutes", "h": "hours"}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)", re.ASCII)
_BARE = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)
_CLOCK = re.compile(r"(\d{1,5}):([0-5]\d):([0-5]\d)", re.ASCII)


def seconds_of(text: str, bare: Unit | None = None) -> float | None:
    """Returns the seconds that a string names, or None if it is no duration."""
    found = _FORM.fullmatch(text.strip())
    if found is not None:
        seconds = float(found[1]) * SECONDS_OF[found[2]]  # type: ignore[index]  # by the pattern
    elif bare is not None and _BARE.fullmatch(text.strip()):
        seconds = float(text) * SECONDS_OF[bare]
    else:
        return None
    return seconds if 0 < seconds <= MAX_SEC else None


def parse_duration(text: str, *, what: str, bare: Unit = "s") -> float:
    """Returns the seconds that a string names."""
    seconds = seconds_of(text, bare)
    if seconds is None:
        raise ParseError(
            f"{what}: {shown(text)} is not a duration; {_advice(text)}allowed are"
            " numbers above 0 with a unit (90s, 12min, 2h), at most"
            f" {MAX_SEC:g}s; without a unit they are {_NAMES[bare]}"
        )
    return seconds


def _advice(text: str) -> str:
    """Returns what to write for hours, minutes and seconds of a clock."""
    clock = _CLOCK.fullmatch(text.strip())
    if clock is None:
        return ""
    hours, minutes, seconds = map(int, clock.groups())
    total = 3600 * hours + 60 * minutes + seconds
    return f"write {write_duration(total)}; " if total else ""


def write_duration(seconds: float) -> str:
    """Returns the shortest text of a duration: in the largest unit that is whole."""
    for unit in ("h", "min"):
        count = seconds / SECONDS_OF[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{seconds:f}".rstrip("0").rstrip(".") + "s"


def duration(bare: Unit = "s", *, unit: Unit = "s") -> Kind:
    """Returns the kind of durations.

    Args:
      bare: The unit of a number without one.
      unit: The unit of the value.
    """
    scale = SECONDS_OF[unit]

    def read(value: object, what: str) -> float:
        return parse_duration(str(value), what=what, bare=bare) / scale

    number = Annotated[float, pydantic.Field(gt=0, le=MAX_SEC)]
    return Kind(
        read=read,
        annotation=number | str,
        must_be=f"a number of {_NAMES[bare]} above 0, or text such as 90s, 12min or 2h",
        metavar="TIME",
        write=lambda value: write_duration(value * scale),
    )


_MOST_CHARACTERS = 20


def parse_key_values(texts: Sequence[str], *, what: str) -> dict[str, OptionValue]:
    """Returns the values by key: true, false, a number, or else a string."""
    options: dict[str, OptionValue] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ParseError(f"{what}: {text!r} is not KEY=VALUE")
        if key in options:
            raise ParseError(f"{what}: {key!r} is given twice; give it once")
        options[key] = _parse_value(key, value, what)
    return options


def _parse_value(key: str, text: str, what: str) -> OptionValue:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        # Twenty characters suffice for any 64-bit integer; longer ones are floats.
        is_whole = re.fullmatch(r"[+-]?\d+", text) is not None
        value = int(text) if is_whole and len(text) <= _MOST_CHARACTERS else float(text)
    except ValueError:
        return text
    if not abs(value) <= (limits.MAX_SEED if is_whole else limits.MAX_REAL):
        raise ParseError(
            f"{what}: {key}={text!r} is out of bounds; allowed are integers up"
            f" to {limits.MAX_SEED} and floats up to {limits.MAX_REAL:g}, and their"
            " negatives"
        )
    return value


def as_texts(table: dict[str, Any]) -> tuple[str, ...]:
    """Returns a table of a study file as the command line has it."""
    return tuple(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in table.items()
    )


KEY_VALUES: Final = Kind(
    read=lambda texts, what: parse_key_values(texts, what=what),
    annotation=dict[str, bool | int | float | str],
    must_be=(
        "a table of texts, numbers, true and false: [option] and lines such as"
        ' jit = "compute" below it'
    ),
    metavar="KEY=VALUE",
    is_multiple=True,
)
