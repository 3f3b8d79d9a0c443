"""How the value of an option is read: from a shell, from a study file, for a reader.

A kind follows from the type of a field: ``bool``, ``int`` with its bounds, ``str``,
``Path``, an ``Enum`` or ``Literal``. What has a notation of its own, as lists,
percentages and durations have, names its kind: ``1..16x2``, ``3%``, ``12min``.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import pydantic

from harness.errors import ParseError
from results.records.record_base import MAX_REAL, MAX_REPLICAS, MAX_SEC, MAX_SEED
from results.records.texts import label_of

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from results.records.models import OptionValue


_MOST_CHARACTERS = 20  # Of a shown value; any 64-bit integer has fewer.
_WHOLE = re.compile(r"[+-]?[0-9]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    # Returns the value that a text names (of one that can be repeated, all texts);
    # the second argument is the option, for messages. Raises ``ParseError``.
    read: Callable[[Any, str], Any]
    annotation: Any = str  # The type of the key in a study file.
    must_be: str = "text"  # That type in words.
    metavar: str = "TEXT"  # What stands for the value in the help; empty for a flag.
    write: Callable[[Any], str] = str  # Returns the text of a value.
    choices: tuple[str, ...] = ()  # All values, where there are few.
    is_flag: bool = False  # Whether the option has no value.
    is_multiple: bool = False  # Whether it can be repeated.


def shown(text: object) -> str:
    """Returns a value for a message; a long one is cut."""
    value = repr(text)
    return value if len(value) <= 100 else f"{value[:100]}..."  # noqa: PLR2004 - a line


FLAG = Kind(lambda value, _: bool(value), bool, "true or false", "", is_flag=True)
TEXT = Kind(lambda value, _: str(value))
TEXTS = Kind(
    lambda values, _: tuple(map(str, values)),
    list[str],
    "an array of texts",
    write=",".join,
    is_multiple=True,
)
PATH = Kind(lambda value, _: Path(value), metavar="PATH")


def integer(low: int | None, high: int | None) -> Kind:
    words = "" if low is None else f" from {low}"
    if high is not None:
        words += f" to {high}" if words else f" up to {high}"
    must_be = f"an integer{words}" + " on" * (low is not None and high is None)

    def read(value: object, what: str) -> int:
        text = str(value)
        # More digits than 64 bits take would be slow to read, and are out of range.
        if _WHOLE.fullmatch(text) and len(text) <= _MOST_CHARACTERS:
            number = int(text)
            if (low is None or low <= number) and (high is None or number <= high):
                return number
        raise ParseError(f"{what}: {shown(text)} is not {must_be}")

    return Kind(read, Annotated[int, pydantic.Field(ge=low, le=high)], must_be, "N")


def choice(values: Sequence[str], members: Mapping[str, Any] | None = None) -> Kind:
    """Returns the kind of a few names, of themselves or of members."""
    must_be = f"one of {', '.join(map(repr, values))}"
    known = members or {value: value for value in values}

    def read(value: object, what: str) -> Any:
        if value not in known:
            raise ParseError(f"{what}: {shown(value)} is not {must_be}")
        return known[str(value)]

    return Kind(
        read,
        Literal.__getitem__(tuple(values)),
        must_be,
        f"[{'|'.join(values)}]",
        write=label_of,
        choices=tuple(values),
    )


def kind_of(annotation: Any, metadata: Iterable[Any] = ()) -> Kind:
    """Returns the kind of a type; an optional value is of the kind of the value."""
    adapter: pydantic.TypeAdapter[Any]
    adapter = pydantic.TypeAdapter(Annotated[(annotation, pydantic.Field(), *metadata)])
    whole = adapter.json_schema()
    schema = whole.get("anyOf", [whole])[0]
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        # Commands of older studies have the names that records store.
        stored = {value: adapter.validate_python(value) for value in values}
        shown_as = {label_of(member): member for member in stored.values()}
        return choice(list(shown_as), stored | shown_as)
    if schema["type"] == "integer":
        return integer(schema.get("minimum"), schema.get("maximum"))
    of_type = {"boolean": FLAG, "string": PATH if "format" in schema else TEXT}
    return of_type[schema["type"]]


_COUNT_RANGE = re.compile(r"(\d+)(?:\.\.|-)(\d+)(?:x(\d+))?")
_ALLOWED = (
    "allowed are positive integers (4), lists (1,2,4), ranges (1..8 or 1-8) and"
    " geometric ranges (1..16x2)"
)
MAX_COUNT = MAX_REPLICAS
"""Larger counts are typing errors, and a range to them would be very long."""
_LARGEST_PERCENTAGE = 100
_MOST_DIGITS = 18  # more than any count has, and few enough for Python to read


def parse_counts(text: str, what: str) -> tuple[int, ...]:
    """Returns the distinct counts that ``text`` names, ascending."""
    counts: set[int] = set()
    for part in map(str.strip, text.split(",")):
        match = _COUNT_RANGE.fullmatch(part)
        start, end, factor = match.groups() if match else (part, part, None)
        first, last = (_parse_count(digits, text, what) for digits in (start, end))
        shown_part = repr(part) + f" in {text!r}" * (part != text)
        if last < first:
            raise ParseError(
                f"{what}: {shown_part} ends before it starts ({last} < {first}); write"
                f" {last}..{first}"
            )
        if factor is None:
            counts.update(range(first, last + 1))
            continue
        if (times := _int(factor)) <= 1:
            raise ParseError(
                f"{what}: {shown_part} multiplies by {times} and would never end; the"
                " factor must be 2 or more"
            )
        while first <= last:
            counts.add(first)
            first *= times
    return tuple(sorted(counts))


def _parse_count(digits: str, text: str, what: str) -> int:
    why = "is not an integer"
    if re.fullmatch(r"[+-]?\d+", digits):
        count = _int(digits)
        if 1 <= count <= MAX_COUNT:
            return count
        why = f"is {'not positive' if count < 1 else f'more than {MAX_COUNT}'}"
    in_text = f" in {text!r}" * (digits != text)
    raise ParseError(f"{what}: {digits!r}{in_text} {why}; {_ALLOWED}")


def _int(digits: str) -> int:
    """Returns the number; one with too many digits is replaced by one too large."""
    number = int(digits.lstrip("+-0")[: _MOST_DIGITS + 1] or "0")
    return -number if digits.startswith("-") else number


def parse_percentage(text: str, what: str) -> float:
    match = re.fullmatch(r"(?P<number>\d{1,3}(?:\.\d{1,6})?)\s*%", text.strip())
    if match is None or not 0 < float(match["number"]) <= _LARGEST_PERCENTAGE:
        raise ParseError(
            f"{what}: {text!r} is not a percentage; allowed are numbers above 0 and up"
            " to 100 with a percent sign, such as 3%"
        )
    return float(match["number"]) / _LARGEST_PERCENTAGE


def parse_names(text: str, what: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in names:
        raise ParseError(
            f"{what}: {text!r} has an empty name; separate names by single commas"
        )
    return names


def _write_list(values: Sequence[Any]) -> str:
    return ",".join(map(label_of, values))


COUNTS: Final = Kind(
    parse_counts,
    int | str | list[int | str],
    'an integer, an array of integers, or text such as "1..8"',
    "COUNTS",
    write=_write_list,
)
NAMES: Final = Kind(
    parse_names,
    str | list[str],
    "text, or an array of texts",
    "NAMES",
    write=_write_list,
)
PERCENTAGE: Final = Kind(
    parse_percentage,
    metavar="PERCENT",
    write=lambda value: f"{value:.6%}".rstrip("%").rstrip("0").rstrip(".") + "%",
)


def some_of(
    members: Sequence[enum.Enum], *, noun: str, all_and_none: bool = False
) -> Kind:
    alone: dict[str, tuple[enum.Enum, ...]]
    alone = {"all": tuple(members), "none": ()} if all_and_none else {}
    by_name = {label_of(member): (member,) for member in members} | alone
    stored = {str(member.value): (member,) for member in members}  # in older commands

    def parse(text: str, what: str) -> tuple[enum.Enum, ...]:
        names = parse_names(text, what)
        for name in names:
            if name not in by_name and name not in stored:
                raise ParseError(
                    f"{what}: unknown {noun} {name!r}; allowed are"
                    f" {', '.join(by_name)}, several separated by commas"
                )
            if name in alone and len(names) > 1:
                raise ParseError(
                    f"{what}: {name!r} stands beside other names in {text!r}; give it"
                    " alone"
                )
        chosen = {one for name in names for one in {**stored, **by_name}[name]}
        return tuple(member for member in members if member in chosen)

    return dataclasses.replace(
        NAMES,
        read=parse,
        write=lambda values: _write_list(values) or "none",
        choices=tuple(by_name),
    )


Unit = Literal["s", "min", "h"]

SECONDS_OF: Final[dict[Unit, float]] = {"s": 1.0, "min": 60.0, "h": 3600.0}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)", re.ASCII)
_BARE = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_CLOCK = re.compile(r"(\d{1,5}):([0-5]\d):([0-5]\d)", re.ASCII)


def seconds_of(text: str) -> float | None:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        return None
    seconds = float(match[1]) * SECONDS_OF[match[2]]  # type: ignore[index]  # by the pattern
    return seconds if 0 < seconds <= MAX_SEC else None


def write_duration(seconds: float) -> str:
    for unit in ("h", "min"):
        count = seconds / SECONDS_OF[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{seconds:f}".rstrip("0").rstrip(".") + "s"


def duration(unit: Unit = "s", *, is_zero_allowed: bool = False) -> Kind:
    scale = SECONDS_OF[unit]

    def read(text: str, what: str) -> float:
        seconds = 0.0 if is_zero_allowed and text == "0" else seconds_of(text)
        if seconds is not None:
            return seconds / scale
        advice, bare = "", text.strip()
        if _BARE.fullmatch(bare) and float(bare) > 0 and len(bare) <= _MOST_DIGITS:
            advice = f"it has no unit: write {bare}s or {bare}min; "
        elif clock := _CLOCK.fullmatch(bare):
            hours, minutes, whole = map(int, clock.groups())
            total = 3600 * hours + 60 * minutes + whole
            advice = f"write {write_duration(total)}; " if total else ""
        zero = ", or 0" * is_zero_allowed
        raise ParseError(
            f"{what}: {shown(text)} is not a duration; {advice}allowed are numbers"
            f" above 0 with a unit (90s, 12min, 2h), at most {MAX_SEC:g}s{zero}"
        )

    return Kind(
        read,
        must_be='text with a unit, such as "90s", "12min" or "2h"',
        metavar="TIME",
        write=lambda value: write_duration(value * scale),
    )


def parse_key_values(texts: Sequence[str], what: str) -> dict[str, OptionValue]:
    """Returns the values by key: true, false, a number, or else a string."""
    options: dict[str, OptionValue] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ParseError(f"{what}: {text!r} is not KEY=VALUE")
        if key in options:
            raise ParseError(f"{what}: {key!r} is given twice; give it once")
        options[key] = value
        if value.lower() in ("true", "false"):
            options[key] = value.lower() == "true"
            continue
        # Twenty characters suffice for any 64-bit integer; longer ones are floats.
        is_whole = re.fullmatch(r"[+-]?\d+", value) is not None
        is_short = len(value) <= _MOST_CHARACTERS
        try:
            number = int(value) if is_whole and is_short else float(value)
        except ValueError:
            continue  # a text
        if not abs(number) <= (MAX_SEED if is_whole else MAX_REAL):
            raise ParseError(
                f"{what}: {key}={value!r} is out of bounds; allowed are integers up"
                f" to {MAX_SEED} and floats up to {MAX_REAL:g}, and their"
                " negatives"
            )
        options[key] = number
    return options


KEY_VALUES: Final = Kind(
    parse_key_values,
    dict[str, bool | int | float | str],
    "a table of texts, numbers, true and false: [option] and lines such as"
    ' jit = "compute" below it',
    "KEY=VALUE",
    is_multiple=True,
)
