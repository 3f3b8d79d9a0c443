"""Colours and markers of figures: placeholders of the page, or those of a notebook."""

from __future__ import annotations

import dataclasses
from typing import Final

from reports.charts.drawing import svg
from reports.view.view import series_of


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The colours that a figure is drawn in."""

    ink: str  # Text and totals.
    muted: str  # Labels of axes, lines to compare with.
    grid: str  # Grid lines.
    paper: str  # What hollow markers are filled with.
    # Colours of backends, by the index of ``reports.view.view.series_of``.
    series: tuple[str, ...]

    def color(self, backend: str) -> str:
        """Returns the colour of a backend."""
        return self.series[series_of(backend)]


DASHES: Final = {"weak": "-", "strong": "--"}
WIDTHS: Final = (1.1, 2.0, 2.9, 3.8)

PAGE: Final = Look(
    ink=svg.INK, muted=svg.MUTED, grid=svg.GRID, paper=svg.PAPER, series=svg.SERIES
)
"""Placeholders, which ``svg.inline`` replaces by the variables of the style sheet."""

NOTEBOOK: Final = Look(
    ink="#1b1f24",
    muted="#58616c",
    grid="#d9dde2",
    paper="#ffffff",
    series=(
        "#0068a8",
        "#c8500a",
        "#00805c",
        "#9a4d86",
        "#2f86bd",
        "#8d6a08",
        "#5c6470",
        "#7a4a2a",
        "#b0305c",
        "#4a4fb5",
    ),
)
"""The light scheme of the page."""


def marker(backend: str) -> str:
    """Returns the marker of a backend."""
    return svg.MARKERS[series_of(backend)]


def dash(mode: str) -> str:
    """Returns the dash of lines over replicas in a scaling mode, the same everywhere.

    Dotted lines are what is compared with, such as ideal scaling.
    """
    return DASHES.get(mode, "-")


def width(number: int) -> float:
    """Returns the width of the line of one colour that is drawn after so many others.

    A dash is a scaling mode, so lines that differ in something else have widths.
    """
    return WIDTHS[number % len(WIDTHS)]
