r"""The grammar of the numbers that programs print: a whole token, or an error.

A regular expression says where a number begins, never where it ends: a number goes on
to a known delimiter, in one of the spellings below, and everything else is refused.

``1234.5``, ``.5``, ``1.2e+05``: a decimal point, an exponent. ``1,234.5``,
``1,234,567``, ``12,34,567.8``, ``1'234``, ``1_234``, and ``1 234`` with any space but
the one of the keyboard: groups of digits. ``12ms``, ``12 ms``, ``1m30s``, ``1:02:03``:
a time in its unit. ``1.2k``, ``3 Mit/s``, ``9 img/min``: a rate in its unit;
``0.5s/it`` is a rate of 2.

What may mean two things (``1,234``, ``1,9``, ``1 234``, ``1:30``) is refused, unless a
word behind the name of the metric says which: ``throughput[thousands]=PATTERN``.
"""

from __future__ import annotations

import dataclasses
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NoReturn

from harness.command.units import WIDE, NumberError, Quantity, composed, in_unit

if TYPE_CHECKING:
    from collections.abc import Callable

COMMA, THOUSANDS, COLUMNS, SPACES = "comma", "thousands", "columns", "spaces"
CONVENTIONS: Final = {
    COMMA: "1,9 is 1.9",
    THOUSANDS: "1,234 is 1234",
    COLUMNS: "commas and spaces separate columns",
    SPACES: "1 234 is 1234",
}
_BY_COMMA, _BY_POINT = (
    rf"[1-9][0-9]{{0,2}}(?:(?P<sep>[{one}'\u2019_{WIDE}])[0-9]{{3}})(?:(?P=sep)[0-9]{{3}})*"
    for one in ",."
)
_INDIAN: Final = r"[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}"
_POINT = re.compile(rf"(?:[0-9]+|{_BY_COMMA}|{_INDIAN})?(?:\.[0-9]+)?")
_DECIMAL_COMMA = re.compile(rf"(?:[0-9]+|{_BY_POINT})(?:,[0-9]+)?")
_THOUSAND = re.compile(r"[1-9][0-9]{0,2},[0-9]{3}")
_BEFORE_COLUMN = re.compile(r"[0-9]+\.[0-9]+(?=,)")
_RUN, _RUN_OF_SPACES = (
    re.compile(rf"[0-9]+(?:[.,'\u2019_{WIDE}{one}][0-9]+)*|\.[0-9]+")
    for one in ("", " ")
)
_EXPONENT = re.compile(r"[eE][+\-\u2212]?[0-9]{1,4}(?![0-9])")
_SIGNS: Final = "+-\u2212\u2013"
_END = re.compile(
    r"$|[\s;|)\]}>\"'\u2019”»`!±\\<]|[.](?![\w.])|,(?![.\d])|:(?!\d)|/(?!\d+/\d)|\+/?-"
    r"|[\u2013\u2014](?!\d)|\*(?!\d)"
)
_MEANS_MORE = re.compile(r" ?(?:[x\u00d7*·] ?|\^)[0-9]| ?[%‰]")
_JOINED = re.compile(
    r"([0-9.]+)(?:[^\W\d_]{1,3}| ?[*^\u00d7] ?"
    r"| ?(?:d|days?|h|hrs?|hours?|m|mins?|minutes?)(?:,| and)? )$"
)
"""A number before one of which it may be a part: 1m, 0x, 2 min , 1 day, , 1.5x10^."""
_UNCLEAR: Final = "may mean two things: print it without"
_ZEROS = re.compile(rf"(?<![0-9][.,:'\u2019_/+\-\u2212\u2013{WIDE}])(?<![\w.,])0+$")
_WORD = re.compile(r"[A-Za-z]+(?!\w)")
_NOT_UNITS: Final = ("d", "m", "day", "days")
_GROUPS_BEFORE = re.compile(r"(?<![\w.,:/\-])[1-9][0-9]{0,2}(?: [0-9]{3})* $")
_GROUP_FOLLOWS = re.compile(r" [0-9]{3}(?![0-9:])")


@dataclasses.dataclass(frozen=True, slots=True)
class Notation:
    """What is declared: how commas and spaces are meant, and the unit."""

    convention: str = ""
    unit: str = ""


PLAIN: Final = Notation()


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A line, where a pattern says that a number begins, and what else it says."""

    text: str  # The line.
    start: int  # Where the number begins; blanks and a sign may be before it.
    is_led: bool = True  # Whether the pattern says what stands before it.
    # Whether the pattern asks for the digits, or the word, in a part of the line.
    asks: Callable[[int, int], bool] = lambda _start, _end: False


def read(place: Place, quantity: Quantity, notation: Notation) -> Decimal:
    """Returns the number at a place of a line, which is not below zero."""
    text, start = place.text, place.start
    start += len(text[start:]) - len(text[start:].lstrip())
    first = start + (text[start : start + 1] in tuple(_SIGNS))
    run = (_RUN_OF_SPACES if notation.convention == SPACES else _RUN).match(text, first)
    if run is None:
        end = start + len(text[start:].partition(" ")[0])
        raise NumberError("is not a number", start, end)
    begin = _begin(place, start, first, run[0], notation)
    clock = composed(text, first, quantity, notation.unit)
    if clock is not None:
        value, last = clock
    else:
        spelled, end = _spelled(run, begin, notation)
        exponent = _EXPONENT.match(text, end)
        if exponent is not None:
            spelled += exponent[0].replace("\u2212", "-")
            end = exponent.end()
        value, last = in_unit(
            Decimal(spelled), text, (begin, end), quantity, notation.unit
        )
        word = _WORD.match(text, end)
        is_named = word and word[0] not in _NOT_UNITS and place.asks(*word.span())
        if last == end and word and is_named:
            last = word.end()  # the pattern says it
    _check_end(place, run, last, quantity, notation)
    if text[begin] in "-\u2212\u2013" and value:
        raise NumberError("is below zero", begin, run.end())
    return value


def _begin(place: Place, start: int, first: int, run: str, notation: Notation) -> int:
    """Returns where the token begins, its sign included."""
    before = place.text[:start]
    if re.search(r"[0-9.][eE][+\-\u2212]?$", before):
        _raise_cut(place, start, run)
    if first == start and before.endswith(tuple(_SIGNS)):
        if before[-2:-1].isnumeric():
            _raise_cut(place, start, run)
        return start if before[-2:-1].isalpha() else start - 1
    if _ZEROS.search(before) and run[0] != ".":
        return start  # zeros that lead
    last = before[-1:]
    if last.isnumeric() or (last == "." and (run[0] == "." or before[-2:-1] != ".")):
        _raise_cut(place, start, run)
    if (last.isalpha() or last == "_") and not place.is_led:
        raise NumberError(
            "is a part of a word; add what stands before the number that you mean",
            start - len(before) + len(before.rstrip("_" + last)),
            start + len(run),
        )
    if _continues(place, before, run, notation):
        _raise_cut(place, start, run)
    return start


def _continues(place: Place, before: str, run: str, notation: Notation) -> bool:
    """Whether a run of digits may go on from the one before it."""
    joined = _JOINED.search(before)
    if joined is not None and not place.asks(*joined.span(1)):
        return True
    left = re.search(rf"([0-9][0-9.,]*)([,:'\u2019_/ {WIDE}])$", before)
    if left is None:
        return False
    separator = left[2]
    is_group = re.match(r"[0-9]{3}(?![0-9])", run) is not None
    if separator in ", ":
        is_free = notation.convention == COLUMNS or place.asks(*left.span(1))
        is_small = _GROUPS_BEFORE.search(before) is not None
        is_joined = is_group or run.isdecimal() if separator == "," else is_small
        return not is_free and is_joined and (is_group or separator == ",")
    if separator == ":":
        return re.match(r"[0-5][0-9](?![0-9])", run) is not None
    if separator == "/":
        return not place.asks(*left.span(1))
    return separator in "'\u2019_" or is_group


def _raise_cut(place: Place, start: int, run: str) -> NoReturn:
    left = re.search(
        rf"[0-9.,:'\u2019_/eE+\-\u2212\u2013{WIDE} ]*$", place.text[:start]
    )
    length = len(left[0].lstrip(" :,/")) if left else 0
    raise NumberError(
        f"of which the pattern takes {run!r} alone; let its group begin where the"
        f" number begins{_advice(COLUMNS)}",
        start - length,
        start + len(run),
    )


def _advice(*words: str) -> str:
    return "".join(
        f", or write [{word}] behind the name if {CONVENTIONS[word]}" for word in words
    )


def _spelled(run: re.Match[str], begin: int, notation: Notation) -> tuple[str, int]:
    """Returns a run of digits and separators as Python spells it, and its end."""
    token, convention = run[0], notation.convention
    if convention == COLUMNS:
        token = token.partition(",")[0]
    found = (_DECIMAL_COMMA if convention == COMMA else _POINT).fullmatch(
        token.replace(" ", "\u202f")
    )
    column = _BEFORE_COLUMN.match(token)
    if (
        convention != COMMA
        and found is None
        and column
        and not re.match(_BY_POINT + ",", token)
    ):
        token = column[0]
    elif found is None or (
        _THOUSAND.fullmatch(token) and convention not in (COMMA, THOUSANDS)
    ):
        why = "is not a number; print it without separators"
        if "," in token:
            why = f"{_UNCLEAR} commas{_advice(COMMA, THOUSANDS, COLUMNS)}"
        raise NumberError(why, begin, run.end())
    whole, point, fraction = token.partition("," if convention == COMMA else ".")
    spelled = re.sub(r"[^0-9]", "", whole) + "." * bool(point) + fraction
    return spelled, run.start() + len(token)


def _check_end(
    place: Place,
    run: re.Match[str],
    last: int,
    quantity: Quantity,
    notation: Notation,
) -> None:
    """Raises unless a known delimiter follows."""
    text = place.text
    if last < run.end() and text[last] == ",":
        return  # the next column
    is_part = quantity is not Quantity.COUNT and re.match(r"/[0-9]", text[last:])
    if not _END.match(text, last) or _MEANS_MORE.match(text, last) or is_part:
        raise NumberError(
            f"is not a number that ends where {text[last : last + 1]!r} stands",
            run.start(),
            last + len(re.split(r"[\s,;]", text[last:] or " ")[0]),
        )
    if (
        last == run.end()
        and re.fullmatch(r"[1-9][0-9]{0,2}", run[0])
        and (group := _GROUP_FOLLOWS.match(text, last))
        and notation.convention not in (COLUMNS, SPACES)
        and not place.asks(last + 1, group.end())
    ):
        raise NumberError(
            f"{_UNCLEAR} spaces{_advice(COLUMNS, SPACES)}",
            run.start(),
            group.end(),
        )
