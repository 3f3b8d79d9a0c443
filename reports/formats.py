"""How numbers are written: digits, units, intervals. One place, so all agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

GIBIBYTE = 2**30
SHORT_ID_LENGTH = 8
SIGNIFICANT_DIGITS = 3
ABSENT = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
THIN_SPACE = "\N{NARROW NO-BREAK SPACE}"
HARD_SPACE = "\N{NO-BREAK SPACE}"


def significant(value: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    """Writes a number with that many significant digits, never as an exponent."""
    if value == 0:
        return "0"
    # The exponent after rounding: 9.999 is 10.0, not 10.00.
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    decimals = max(0, digits - 1 - exponent)
    text = f"{value:,.{decimals}f}"
    return text.replace(",", THIN_SPACE)


def times(value: float) -> str:
    """Writes a ratio as a multiple, such as 1.71x."""
    return f"{value:.2f}{TIMES}"


def percent(value: float) -> str:
    """Writes a ratio as a percentage without decimals."""
    return f"{100 * value:.0f}{THIN_SPACE}%"


def seconds(value: float) -> str:
    """Writes a duration in seconds, or in milliseconds below one second."""
    if value < 1:
        return f"{significant(1000 * value)}{THIN_SPACE}ms"
    return f"{significant(value)}{THIN_SPACE}s"


def gibibytes(value: float) -> str:
    """Writes a number of bytes in GiB (2**30 bytes)."""
    return f"{significant(value / GIBIBYTE)}{THIN_SPACE}GiB"


def ratio(value: float) -> str:
    """Writes a ratio with two decimals and no sign for multiples."""
    return f"{value:.2f}"


def interval(low: float, high: float, write: Callable[[float], str]) -> str:
    """Writes an interval in brackets that no line break can tear apart."""
    return f"[{write(low)},{HARD_SPACE}{write(high)}]"


def short_id(trial_id: str) -> str:
    """Returns the first characters of a trial id, enough to find it in the table."""
    return trial_id[:SHORT_ID_LENGTH]


def count(number: int, singular: str, plural: str | None = None) -> str:
    """Writes a number with its noun: 1 trial, 2 trials."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
