"""What a point of a figure says when it is pointed at: its value, interval and n.

A tip is written beside the artist that it belongs to, as the id that matplotlib gives
to its group in the SVG. There it becomes the ``<title>`` of the group, which browsers
show without a script; ``templates/tips.js`` shows it at once, also by keyboard.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from reports.words import formats
from results.statistics.estimates import Estimate

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.artist import Artist

_MARK: Final = "tip "
_GROUP: Final = re.compile(rf'<g id="{_MARK}([^"]*)"')
_PLACE: Final = re.compile(r'<g class="tip" data-number="(\d+)"([^>]*)>')


def attach(artist: Artist, text: str) -> None:
    """Gives an artist its text; an empty text leaves it as it is."""
    if text:
        artist.set_gid(f"{_MARK}{text}")


def of_value(
    name: str,
    value: float,
    write: Callable[[float], str],
    *,
    interval: tuple[float | None, float | None] = (None, None),
    n: int | None = None,
    unit: str = "",
) -> str:
    """Returns the text of a point."""
    low, high = interval
    estimate = Estimate(value=value, low=low, high=high, n=n or 0, unit=unit, method="")
    after = f" {unit}" if unit else ""
    shown = formats.telling(estimate, write)
    text = f"{name}: {shown(value)}{after}"
    if n is None:
        return f"{text}, by definition"
    if low is None or high is None:
        return f"{text}, no interval, n = {n}"
    return f"{text}, 95 % interval {formats.interval(low, high, shown)}, n = {n}"


def of_row(name: str, row: Any, write: Callable[[float], str]) -> str:
    """Returns the text of a row of the tidy frame, as ``of_value``."""
    return of_value(
        name,
        row.value,
        write,
        interval=(None, None) if pd.isna(row.low) else (row.low, row.high),
        n=None if pd.isna(row.n) else int(row.n),
        unit=row.unit,
    )


def take_out(drawing: str) -> tuple[str, list[str]]:
    """Replaces the texts in an SVG by numbers, and returns both."""
    texts: list[str] = []

    def number(match: re.Match[str]) -> str:
        texts.append(html.unescape(match.group(1)))
        return f'<g class="tip" data-number="{len(texts) - 1}"'

    return _GROUP.sub(number, drawing), texts


def put_in(drawing: str, texts: list[str]) -> str:
    """Writes the texts into the groups that have their numbers."""

    def title(match: re.Match[str]) -> str:
        text = html.escape(texts[int(match.group(1))])
        return f'<g class="tip"{match.group(2)}><title>{text}</title>'

    return _PLACE.sub(title, drawing)
