"""Times on the command line and in study files: ``90s``, ``12min``, ``2h``."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import pydantic

from harness.errors import ParseError
from harness.options.kinds import Kind, shown
from results.records.limits import MAX_SEC

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
