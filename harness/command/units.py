"""The units of the numbers that programs print: times, rates, multiples."""

from __future__ import annotations

import enum
import re
from decimal import Decimal
from typing import Final, NoReturn

MINUTES: Final = "m:ss"
_TIMES: Final = {
    name: Decimal(factor)
    for factor, names in {
        "1e-9": "ns",
        "1e-6": "us \u00b5s \u03bcs usec",
        "1e-3": "ms msec msecs millisecond milliseconds",
        "1": "s sec secs second seconds",
        "60": "min mins minute minutes",
        "3600": "h hr hrs hour hours",
    }.items()
    for name in names.split()
}
_MULTIPLES: Final = {name: Decimal(10**n) for name, n in zip("kKMG", (3, 3, 6, 9))}  # noqa: B905
UNITS: Final = {**_TIMES, **_MULTIPLES}
_STEPS: Final = "it|iters?|iterations?|steps?"
_NOUNS: Final = (
    rf"{_STEPS}|img|imgs|images?|samples?|ex|examples?|toks?|tokens?|seqs?|frames?|rows?"
    "|cells?|batch|batches|items?|ops?|B|b"
)
_TIME_NAMES: Final = "|".join(sorted(_TIMES, key=len, reverse=True))
WIDE: Final = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
"""Spaces that stand within numbers, and separate nothing else."""
_GAP: Final = rf"(?P<gap>[ {WIDE}]?)"
_PER: Final = rf"(?:/| per )(?P<per>{_TIME_NAMES})(?!\w)"
_RATE = re.compile(rf"{_GAP}(?:(?P<multiple>[kKMG]) ?)?(?P<noun>{_NOUNS}|){_PER}")
_OTHER_RATE = re.compile(rf"{_GAP}(?P<multiple>)(?P<noun>[^\W\d_]+){_PER}")
_TIME = re.compile(rf"{_GAP}(?P<time>{_TIME_NAMES})(?:/(?P<item>[^\W\d_]+))?(?!\w)")
_SECOND_PART = re.compile(rf",? ?[0-9.]+ ?(?P<time>{_TIME_NAMES})(?![\w/])")
_LONG = re.compile(
    rf"{_GAP}(?P<per>[^\W\d_]*(?:/| per ))?(?:d|m|days?|weeks?|months?|years?)(?!\w)"
)
_MULTIPLE = re.compile(r"[kKMG](?![\w/])")
_MULTIPLE_APART = re.compile(r" [kKMGT](?![\w:=/])")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):([0-5]\d(?:\.\d+)?)(?![\w:]|\.\w|,\d)", re.ASCII)
_PARTS = re.compile(
    r"(?=\d+[hm])(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?(?![\w/])", re.ASCII
)


_UNCLEAR: Final = "may be in thousands or millions; print the whole number"


class Quantity(enum.Enum):
    """What a number is to be; a time is returned in its unit."""

    RATE = "a rate"
    SEC = "a time"
    MS = "a time in ms"
    COUNT = "a whole number"

    @property
    def per_sec(self) -> Decimal | None:
        """Units in a second; None where it is no time."""
        return {Quantity.SEC: Decimal(1), Quantity.MS: Decimal(1000)}.get(self)


class NumberError(ValueError):
    """A token that is no number; ``start`` and ``end`` say where it stands."""

    def __init__(self, reason: str, start: int, end: int) -> None:
        super().__init__(reason)
        self.start, self.end = start, end


def composed(
    text: str, start: int, quantity: Quantity, declared: str
) -> tuple[Decimal, int] | None:
    """Returns a time such as 1:02:03 or 1m30s, and its end; None if it is none."""
    clock = _CLOCK.match(text, start)
    found = clock or _PARTS.match(text, start)
    if found is None or sum(part is not None for part in found.groups()) < 2:  # noqa: PLR2004
        return None
    if quantity.per_sec is None:
        raise NumberError(f"is a time, not {quantity.value}", start, found.end())
    hours, minutes, seconds = (Decimal(part or 0) for part in found.groups())
    is_open = clock is not None and clock[1] is None and "." not in clock[3]
    if is_open and declared != MINUTES:
        raise NumberError(
            f"may be minutes or hours; write [{MINUTES}] behind the name if it is"
            " minutes and seconds, or print seconds",
            start,
            found.end(),
        )
    return (hours * 3600 + minutes * 60 + seconds) * quantity.per_sec, found.end()


def in_unit(
    number: Decimal, text: str, span: tuple[int, int], quantity: Quantity, declared: str
) -> tuple[Decimal, int]:
    """Returns a number in the unit of its quantity, and where its own unit ends."""
    start, end = span
    rate = _RATE.match(text, end) or _OTHER_RATE.match(text, end)
    time = _TIME.match(text, end)
    try:
        if rate is not None and quantity is not Quantity.COUNT:
            return _from_rate(number, rate, quantity), rate.end()
        if time is not None and (quantity.per_sec or time["time"] != "min"):
            return _from_time(number, text, time, quantity, declared), time.end()
        long = _LONG.match(text, end)
        is_meant = quantity.per_sec or (
            quantity is Quantity.RATE and long and long["per"]
        )
        if long and is_meant:
            _refuse("is in an unknown unit of time; known are h, min, s, ms, us, ns")
        multiple = _MULTIPLE.match(text, end)
        if multiple is not None and quantity is Quantity.RATE:
            return number * _MULTIPLES[multiple[0]], multiple.end()
        if multiple is not None and quantity is Quantity.COUNT:
            _refuse("is rounded; print the whole number")
        if _MULTIPLE_APART.match(text, end) and declared not in _MULTIPLES:
            _refuse(_UNCLEAR)
    except ValueError as error:
        last = max([end + 1, *(found.end() for found in (rate, time) if found)])
        raise NumberError(str(error), start, last) from error
    if declared in _TIMES and quantity.per_sec:
        return number * _TIMES[declared] * quantity.per_sec, end
    return number * _MULTIPLES[declared] if declared in _MULTIPLES else number, end


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)


def _from_rate(number: Decimal, rate: re.Match[str], quantity: Quantity) -> Decimal:
    if not (rate["multiple"] or rate["gap"]) and rate["noun"][:1] in [*"kKMGT"]:
        raise ValueError(_UNCLEAR)
    found = number * _MULTIPLES.get(rate["multiple"] or "", 1) / _TIMES[rate["per"]]
    if quantity.per_sec is None:
        return found
    if not re.fullmatch(_STEPS, rate["noun"]) or not number:
        raise ValueError("is a rate, not a time")
    return quantity.per_sec / found


def _from_time(
    number: Decimal,
    text: str,
    time: re.Match[str],
    quantity: Quantity,
    declared: str,
) -> Decimal:
    factor = _TIMES[time["time"]]
    if (
        time["gap"]
        and time["time"] == "min"
        and text[time.end() :][:2].strip().isdecimal()
    ):
        raise ValueError("may be minutes or a minimum; print seconds")
    if time["gap"] and text[time.end() :][:1] in [*":="]:
        raise ValueError("is before a unit or a name; write it without a blank")
    more = _SECOND_PART.match(text, time.end())
    is_whole = number == number.to_integral_value() and not time["item"]
    if more and is_whole and _TIMES[more["time"]] < factor:
        raise ValueError("is a time in two parts; print seconds")
    if quantity.per_sec is not None:
        if declared in _TIMES and factor != _TIMES[declared]:
            raise ValueError(f"is not in {declared}, as was declared")
        return number * factor * quantity.per_sec
    if not time["item"] or quantity is Quantity.COUNT or not number:
        raise ValueError(f"is a time, not {quantity.value}")
    return 1 / (number * factor)
