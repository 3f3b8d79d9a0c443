"""How the value of an option is read: from a shell, from a study file, for a reader.

A kind follows from the type of a field: ``bool``, ``int`` and ``float`` with their
bounds, ``str``, ``Path``, an ``Enum`` or ``Literal``. What has a notation of its own,
as lists, percentages and durations have, names its kind.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import pydantic

from harness.errors import ParseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_MOST_CHARACTERS = 20
"""Of a shown value; any 64-bit integer has fewer."""
_WHOLE = re.compile(r"[+-]?[0-9]+")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """How the value of an option is read and written."""

    # Returns the value that a string names; ``what`` is the option, for messages.
    # Raises ``ParseError``.
    read: Callable[[Any, str], Any]
    annotation: Any  # The type of the key in a study file.
    must_be: str  # That type in words.
    metavar: str  # What stands for the value in the help; empty for a flag.
    write: Callable[[Any], str] = str  # Returns the text of a value.
    choices: tuple[str, ...] = ()  # All values, where there are few.
    is_flag: bool = False  # Whether the option has no value.
    # Whether it can be repeated; ``read`` then takes all texts.
    is_multiple: bool = False


def shown(text: object) -> str:
    """Returns a value for a message; a long one is cut."""
    value = repr(text)
    return value if len(value) <= 100 else f"{value[:100]}..."  # noqa: PLR2004 - a line


FLAG = Kind(
    read=lambda value, _: bool(value),
    annotation=bool,
    must_be="true or false",
    metavar="",
    is_flag=True,
)
TEXT = Kind(
    read=lambda value, _: str(value), annotation=str, must_be="text", metavar="TEXT"
)
TEXTS = Kind(
    read=lambda values, _: tuple(map(str, values)),
    annotation=list[str],
    must_be="an array of texts",
    metavar="TEXT",
    write=",".join,
    is_multiple=True,
)
PATH = Kind(
    read=lambda value, _: Path(value), annotation=str, must_be="text", metavar="PATH"
)


_OF_TYPE = {bool: FLAG, str: TEXT, Path: PATH}


def integer(low: int | None, high: int | None) -> Kind:
    """Returns the kind of integers within bounds."""
    must_be = f"an integer{_range(low, high)}"

    def read(value: object, what: str) -> int:
        text = str(value)
        # More digits than 64 bits take would be slow to read, and are out of range.
        is_read = _WHOLE.fullmatch(text) and len(text) <= _MOST_CHARACTERS
        number = int(text) if is_read else None
        if (
            number is None
            or not (low is None or low <= number)
            or not (high is None or number <= high)
        ):
            raise ParseError(f"{what}: {shown(text)} is not {must_be}")
        return number

    annotation = Annotated[int, pydantic.Field(ge=low, le=high)]
    return Kind(read=read, annotation=annotation, must_be=must_be, metavar="N")


def number(low: float, high: float, *, is_low_open: bool) -> Kind:
    """Returns the kind of finite numbers within bounds."""
    must_be = f"a number{_range(low, high, is_low_open=is_low_open)}"

    def read(value: object, what: str) -> float:
        try:
            found = float(str(value))
        except ValueError:
            found = math.nan
        is_above = low < found if is_low_open else low <= found
        if not (is_above and found <= high):  # NaN is neither
            raise ParseError(f"{what}: {shown(str(value))} is not {must_be}")
        return found

    bounds = pydantic.Field(
        gt=low if is_low_open else None, ge=None if is_low_open else low, le=high
    )
    return Kind(
        read=read,
        annotation=Annotated[float, bounds],
        must_be=must_be,
        metavar="X",
        write=lambda value: f"{value:g}",
    )


def choice(values: Sequence[str], make: Callable[[str], Any] = str) -> Kind:
    """Returns the kind of a few names."""
    must_be = f"one of {', '.join(map(repr, values))}"

    def read(value: object, what: str) -> Any:
        if value not in values:
            raise ParseError(f"{what}: {shown(value)} is not {must_be}")
        return make(str(value))

    return Kind(
        read=read,
        annotation=Literal.__getitem__(tuple(values)),
        must_be=must_be,
        metavar=f"[{'|'.join(values)}]",
        write=lambda value: str(getattr(value, "value", value)),
        choices=tuple(values),
    )


def parsed(
    parse: Callable[..., Any],
    *,
    must_be: str = "text",
    metavar: str = "TEXT",
    annotation: Any = str,
    write: Callable[[Any], str] = str,
) -> Kind:
    """Returns the kind of what a function reads: ``parse(text, what="--name")``."""

    def read(value: object, what: str) -> Any:
        return parse(str(value), what=what)

    return Kind(
        read=read, annotation=annotation, must_be=must_be, metavar=metavar, write=write
    )


def kind_of(annotation: Any, metadata: Iterable[Any] = ()) -> Kind:
    """Returns the kind of a type; an optional value is of the kind of the value."""
    found, bounds = _bare(annotation)
    bounds += metadata
    if found in _OF_TYPE:
        return _OF_TYPE[found]
    if found is int:
        return integer(_bound(bounds, "ge"), _bound(bounds, "le"))
    if found is float:
        low = _bound(bounds, "gt")
        is_low_open = low is not None
        low = _bound(bounds, "ge") if low is None else low
        return number(
            -math.inf if low is None else low,
            _bound(bounds, "le") or math.inf,
            is_low_open=is_low_open,
        )
    if get_origin(found) is Literal:
        return choice(get_args(found))
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return choice([member.value for member in found], found)
    raise TypeError(f"{annotation!r} is of no kind; name one in its Option")


def _bare(annotation: Any) -> tuple[Any, list[Any]]:
    """Returns a type without ``None`` and metadata, and the metadata."""
    bounds: list[Any] = []
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *metadata = get_args(annotation)
            for one in metadata:
                bounds += getattr(one, "metadata", [one])
        elif get_origin(annotation) in (Union, types.UnionType):
            present = [of for of in get_args(annotation) if of is not types.NoneType]
            if len(present) > 1:
                return annotation, bounds
            annotation = present[0]
        else:
            return annotation, bounds


def _bound(bounds: Iterable[Any], name: Literal["ge", "gt", "le"]) -> Any:
    kinds = {
        "ge": annotated_types.Ge,
        "gt": annotated_types.Gt,
        "le": annotated_types.Le,
    }
    for bound in bounds:
        if isinstance(bound, kinds[name]):
            return getattr(bound, name)
    return None


def _range(low: float | None, high: float | None, *, is_low_open: bool = False) -> str:
    """Returns bounds in words; empty without any."""
    words = ""
    if low is not None and low != -math.inf:
        words = f" above {low:g}" if is_low_open else f" from {low}"
    if high is None or high == math.inf:
        return f"{words} on" if words else ""
    return f"{words} to {high}" if words else f" up to {high}"
