"""What all charts share: colours, settings, limits and ticks of axes, line labels.

A correct interval of few repetitions can span orders of magnitude, so limits follow the
estimates, and a bar that is too long is clipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

import matplotlib as mpl
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from reports.view import NUM_SERIES, series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_Item = TypeVar("_Item")
POINTS_PER_INCH: Final = 72
WIDTH, HEIGHT = 310, 225
"""Of most charts, in points."""
FONT_SIZE: Final = 9.75
"""In points; at least 11 pixels where a figure fills a page 390 pixels wide."""
MARKERS: Final = ("o", "s", "D", "^", "v", "P", "X", "p", "h", "*")
DASHES: Final = {"weak": "-", "strong": "--"}
"""Of a scaling mode; dotted lines are a reference, such as ideal scaling."""
WIDTHS: Final = (1.1, 2.0, 2.9, 3.8)
"""Of lines of one colour that differ in something else than the mode."""
MOST_LINES: Final = 7
"""More lines than this are drawn in several panels, or left out."""
LONGEST_TICK: Final = 20
CUT: Final = "\N{HORIZONTAL ELLIPSIS}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The colours that a figure is drawn in."""

    ink: str  # Text and totals.
    muted: str  # Labels of axes, lines to compare with.
    grid: str  # Grid lines.
    paper: str  # What hollow markers are filled with.
    series: tuple[str, ...]  # Of backends, by ``reports.view.series_of``.

    def color(self, backend: str) -> str:
        return self.series[series_of(backend)]


PAGE: Final = Look(
    ink="#010203",
    muted="#040506",
    grid="#070809",
    paper="#0a0b0c",
    series=tuple(f"#0d0e{index:02x}" for index in range(NUM_SERIES)),
)
"""Placeholders, which ``svg.inline`` replaces by the variables of the style sheet."""
NOTEBOOK: Final = Look(
    ink="#1b1f24",
    muted="#58616c",
    grid="#d9dde2",
    paper="#ffffff",
    series=(
        *("#0068a8", "#c8500a", "#00805c", "#9a4d86", "#2f86bd"),
        *("#8d6a08", "#5c6470", "#7a4a2a", "#b0305c", "#4a4fb5"),
    ),
)
"""The light scheme of the page."""

SETTINGS: Final = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": FONT_SIZE,
    # Names with a dollar sign must not be parsed as math.
    "text.parse_math": False,
    "text.color": PAGE.ink,
    "axes.labelcolor": PAGE.muted,
    "axes.edgecolor": PAGE.grid,
    "axes.facecolor": "none",
    "axes.titlelocation": "left",
    "axes.titlesize": FONT_SIZE,
    "axes.titleweight": "bold",
    "axes.labelsize": FONT_SIZE,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": PAGE.grid,
    "grid.linewidth": 0.8,
    "xtick.color": PAGE.grid,
    "ytick.color": PAGE.grid,
    "xtick.labelcolor": PAGE.muted,
    "ytick.labelcolor": PAGE.muted,
    "xtick.labelsize": FONT_SIZE,
    "ytick.labelsize": FONT_SIZE,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "hatch.linewidth": 0.8,
    "hatch.color": PAGE.grid,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.solid_capstyle": "round",
    "path.simplify": False,
}


@contextlib.contextmanager
def page_style() -> Iterator[None]:
    """Applies the style of the report, whatever the user's own settings are."""
    with mpl.rc_context(), warnings.catch_warnings():
        # The page's font draws the text; the font without the glyph only measures it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not supp")
        # Names that leave no room for axes are cut by the edge of the figure.
        warnings.filterwarnings("ignore", message="Tight layout not applied")
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)  # type: ignore[arg-type]
        yield


def short(text: str) -> str:
    """Returns the label of a tick, cut where it would leave no room for the axes."""
    return text if len(text) <= LONGEST_TICK else f"{text[: LONGEST_TICK - 1]}{CUT}"


def widths(backends: Sequence[str]) -> list[float]:
    """Returns the width of each line: those of one colour differ."""
    before = [backends[:index].count(name) for index, name in enumerate(backends)]
    return [WIDTHS[number % len(WIDTHS)] for number in before]


def draw_marker(
    axes: Axes, x: float, y: float, series: int, look: Look, *, is_hollow: bool
) -> Line2D:
    """Draws the marker of an estimate; a hollow one is no evidence (oversubscribed)."""
    color = look.series[series]
    (marker,) = axes.plot(
        [x],
        [y],
        linestyle="none",
        marker=MARKERS[series],
        markersize=5.5,
        color=color,
        markerfacecolor=look.paper if is_hollow else color,
        markeredgewidth=1.4,
        zorder=4,
    )
    return marker


def draw_dots(axes: Axes, x: Sequence[float], y: Sequence[float], color: str) -> None:
    axes.plot(
        x,
        y,
        linestyle="none",
        marker=".",
        markersize=3,
        markeredgewidth=0,
        color=color,
        zorder=3,
    )


def panels(
    items: Sequence[_Item], backend_of: Callable[[_Item], str]
) -> list[tuple[str, Sequence[_Item]]]:
    """Returns heading and lines of each panel: all, or parts of those of a backend."""
    if len(items) <= MOST_LINES:
        return [("", items)]
    parts: list[tuple[str, Sequence[_Item]]] = []
    for backend in dict.fromkeys(map(backend_of, items)):
        own = [item for item in items if backend_of(item) == backend]
        starts = range(0, len(own), MOST_LINES)
        parts += [(backend, own[i : i + MOST_LINES]) for i in starts]
    return parts


def hatch(axes: Axes, left: float, right: float, look: Look) -> None:
    axes.axvspan(
        left,
        right,
        facecolor="none",
        edgecolor=look.grid,
        hatch="////",
        linewidth=0,
        zorder=0,
    )


REACH: Final = 1.5
"""How far intervals may extend a logarithmic axis beyond the estimates, as a factor."""
MARGIN: Final = 0.06
NARROWEST_RATIO: Final = 1.1
"""Ratios within 10 % are not spread over a whole panel."""
WIDEST_RATIO: Final = 500.0
"""Ratios beyond this are at the edge of the panel; no axis is symmetric about them."""


def logarithmic(anchors: Sequence[float], ends: Sequence[float]) -> tuple[float, float]:
    """Returns limits around all ``anchors`` and those ``ends`` that are close."""
    low = max(min([*anchors, *ends]), min(anchors) / REACH)
    high = min(max([*anchors, *ends]), max(anchors) * REACH)
    pad = math.exp(MARGIN * max(math.log(high / low), 0.5))
    return low / pad, high * pad


def from_zero(anchors: Sequence[float], ends: Sequence[float]) -> tuple[float, float]:
    """Returns limits from zero to all ``anchors`` and those ``ends`` close enough."""
    top = max(anchors, default=0.0) or 1.0
    return 0.0, (1 + MARGIN) * max(top, min(max(ends, default=top), REACH * top))


def linear(anchors: Sequence[float], ends: Sequence[float]) -> tuple[float, float]:
    """Returns limits around all ``anchors`` and, within one spread, around ``ends``."""
    spread = max(anchors) - min(anchors) or max(abs(max(anchors)) / 4, 1e-9)
    low = max(min([*anchors, *ends]), min(anchors) - spread)
    high = min(max([*anchors, *ends]), max(anchors) + spread)
    pad = MARGIN * (high - low or spread)
    return low - pad, high + pad


def symmetric(anchors: Sequence[float], ends: Sequence[float]) -> tuple[float, float]:
    """Returns logarithmic limits equally far below and above 1."""
    within = [min(max(anchor, 1 / WIDEST_RATIO), WIDEST_RATIO) for anchor in anchors]
    low, high = logarithmic([*within, 1.0], ends)
    reach = max(high, 1 / low, NARROWEST_RATIO)
    return 1 / reach, reach


def set_ticks(axes: Axes, which: Literal["x", "y"], most: int = 5) -> None:
    locator = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10])
    getattr(axes, f"{which}axis").set_major_locator(locator)


# Tick marks in each decade, for ranges of at most so many to one.
LOG_TICKS: Final = ((12, (1, 1.5, 2, 3, 4, 5, 7)), (120, (1, 2, 5)), (math.inf, (1,)))
RATIO_TICKS: Final = (
    (1.16, (1.05, 1.1)),
    (1.4, (1.1, 1.25)),
    (1.8, (1.25, 1.5)),
    (3.2, (1.5, 2, 3)),
    (12, (2, 5, 10)),
    (math.inf, (10, 100, 1000)),
)
"""Ticks above 1, by how far the axis reaches as a factor; below 1, their inverses."""


def set_plain_log(axes: Axes) -> None:
    """Makes the y axis logarithmic with few ticks as plain numbers."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    subs = next(ticks for limit, ticks in LOG_TICKS if high <= limit * low)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=subs))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def set_ratio_log(axes: Axes) -> None:
    """Makes the x axis logarithmic, with the same ticks to either side of 1."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    reach = max(high, 1 / low)
    ticks = next(ticks for limit, ticks in RATIO_TICKS if reach <= limit)
    above = [tick for tick in ticks if tick <= high]
    axes.xaxis.set_major_locator(
        FixedLocator([*(1 / t for t in above[::-1]), 1, *above])
    )
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value:.2g}" if value < 1 else f"{value:g}"
    )
    axes.xaxis.set_minor_locator(NullLocator())


LINE_HEIGHT: Final = 11.5
"""Of a line of a label, in points."""
LONGEST_LABEL: Final = 24
"""Of a line of a label, in characters: the longest name of a backend, and some."""
FRAME: Final = 48
"""What ticks, their labels and the margins take of a figure's height, at most."""


class Label(NamedTuple):
    text: str  # One or several lines.
    value: float  # Where the line ends, in data coordinates.
    color: str  # Of the line.


def spread(
    places: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Moves the centres of labels apart, so that none overlaps, and all are within."""
    order = sorted(range(len(places)), key=lambda k: (places[k], k))
    moved = list(places)
    least, most = low, high
    for index in order:
        moved[index] = max(moved[index], least + heights[index] / 2)
        least = moved[index] + heights[index] / 2
    for index in reversed(order):
        moved[index] = min(moved[index], most - heights[index] / 2)
        most = moved[index] - heights[index] / 2
    return moved


def write_labels(axes: Axes, labels: Sequence[Label], height: float) -> None:
    """Writes labels at the right of the axes, each with a line to where it belongs."""
    low, high = axes.get_ylim()
    # Of the axes, which always shows it: only the text is placed beside them.
    middle = sum(axes.get_xlim()) / 2, (low + high) / 2
    # The height of the axes is not known before the layout; it is never less.
    per_point = (high - low) / (height - FRAME)
    heights = [
        LINE_HEIGHT * (1 + label.text.count("\n")) * per_point for label in labels
    ]
    places = spread([label.value for label in labels], heights, low, high)
    for label, level in zip(labels, places, strict=True):
        axes.plot(
            [1.0, 1.035],
            [label.value, level],
            transform=axes.get_yaxis_transform(),
            color=label.color,
            linewidth=0.9,
            clip_on=False,
            zorder=2,
        )
        lines = [
            line if len(line) <= LONGEST_LABEL else f"{line[: LONGEST_LABEL - 1]}{CUT}"
            for line in label.text.split("\n")
        ]
        axes.annotate(
            "\n".join(lines),
            middle,
            xytext=(1.05, level),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            ha="left",
            color=label.color,
            fontsize=FONT_SIZE,
            linespacing=1.1,
        )


def write_legend(axes: Axes, below: float) -> None:
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, below),
        frameon=False,
        borderaxespad=0,
        labelspacing=0.25,
    )
