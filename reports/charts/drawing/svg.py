"""Converts a matplotlib figure to SVG that is embedded in the page.

The page defines colours and fonts: a figure is drawn in placeholder colours that are
replaced by CSS variables, so one drawing works in the light and the dark scheme, and
text remains text in the page's font. Everything that varies from run to run or refers
to the network (dates, metadata, document type, namespaces) is removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import io
import math
import re
import warnings
from typing import TYPE_CHECKING, Any, Final, Literal

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from reports.charts.compact import compact
from reports.view.view import NUM_SERIES, series_of
from reports.words import formats
from results.statistics.estimates import Estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


# A tip is written beside the artist that it belongs to, as the id that matplotlib gives
# to its group in the SVG. There it becomes the ``<title>`` of the group, which browsers
# show without a script; ``templates/tips.js`` shows it at once, also by keyboard.

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


POINTS_PER_INCH = 72
PADDING = 2.9
"""In points, around what is drawn."""
FONT_SIZE = 9.75
"""In points; at least 11 pixels where a figure fills a page 390 pixels wide."""

# Placeholder colours, each unlike any other colour in a figure, and their variables.
INK = "#010203"
MUTED = "#040506"
GRID = "#070809"
PAPER = "#0a0b0c"
WARN = "#0b0c0d"
SERIES = tuple(f"#0d0e{index:02x}" for index in range(NUM_SERIES))
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p", "h", "*")
VARIABLES = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--rule)",
    PAPER: "var(--paper)",
    WARN: "var(--warn)",
    **{color: f"var(--series-{index})" for index, color in enumerate(SERIES)},
}

# Tick marks in each decade, for ranges of at most so many to one.
LOG_TICKS = (
    (12, (1, 1.5, 2, 3, 4, 5, 7)),
    (120, (1, 2, 5)),
    (math.inf, (1,)),
)

RATIO_TICKS = (
    (1.16, (1.05, 1.1)),
    (1.4, (1.1, 1.25)),
    (1.8, (1.25, 1.5)),
    (3.2, (1.5, 2, 3)),
    (12, (2, 5, 10)),
    (math.inf, (10, 100, 1000)),
)
"""Ticks above 1, by how far the axis reaches as a factor; below 1, their inverses."""

LONGEST_TICK = 20
WIDEST_TEXT, WIDEST_BESIDE = 0.9, 0.35
"""Fraction of a figure's width that text beside the axes may take."""
CUT = "\N{HORIZONTAL ELLIPSIS}"

SETTINGS = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": FONT_SIZE,
    # Names with a dollar sign must not be parsed as math.
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
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
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": FONT_SIZE,
    "ytick.labelsize": FONT_SIZE,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "hatch.linewidth": 0.8,
    "hatch.color": GRID,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.solid_capstyle": "round",
    "path.simplify": False,
}


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """Returns an empty figure of ``width`` x ``height`` points and its axes.

    Call within ``style()``. Without pyplot, no global state leaks between figures.
    """
    figure = Figure(figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH))
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Applies the style of the report, whatever the user's own settings are."""
    with mpl.rc_context(), warnings.catch_warnings():
        # The page's font draws the text; the font without the glyph only measures it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not supp")
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)  # type: ignore[arg-type]
        yield


def draw(
    size: tuple[float, float],
    draw_on: Callable[[Axes], None],
    *,
    slug: str,
    title: str,
    description: str,
) -> Markup:
    """Draws a figure of a page, in the style of the report."""
    with style():
        figure, axes = new_axes(*size)
        draw_on(axes)
        return inline(figure, slug=slug, title=title, description=description)


def inline(figure: Figure, *, slug: str, title: str, description: str) -> Markup:
    """Returns the figure as an ``<svg>`` element."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": slug}):
        figure.dpi = POINTS_PER_INCH  # as it is while an SVG is drawn
        _shorten_texts(figure)
        _lay_out(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text, texts = take_out(text)
    text = _name_ids(text, slug)
    text = _give_to_page(text)
    opening, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', opening)
    assert box is not None
    _, _, width, _ = box.group(0)[9:-1].split()
    # Without namespaces and size: an inline element needs none, the page sets the size.
    head = (
        f'<svg {box.group(0)} role="img" aria-labelledby="{slug}-title {slug}-desc" '
        f'style="max-width:{float(width) * 96 / 72 / 16:.4g}rem;'
        f'font-size:{FONT_SIZE}px">'
        f'<title id="{slug}-title">{escape(title)}</title>'
        f'<desc id="{slug}-desc">{escape(description)}</desc>'
    )
    body = put_in(compact(re.sub(r"\n\s*", "\n", body)), texts)
    return Markup(head + body.strip())  # noqa: S704  # built here, escaped above


def short(text: str) -> str:
    """Returns the label of a tick, cut where it would leave no room for the axes."""
    return text if len(text) <= LONGEST_TICK else f"{text[: LONGEST_TICK - 1]}{CUT}"


def _shorten_texts(figure: Figure) -> None:
    """Cuts labels that are wider than the figure; records can have long names."""
    for text in figure.findobj(Text):
        content = text.get_text()
        if len(content) > LONGEST_TICK:
            is_beside = getattr(text, "get_annotation_clip", lambda: None)() is False
            share = WIDEST_BESIDE if is_beside else WIDEST_TEXT
            widest = share * figure.bbox.width
            width = text.get_window_extent().width
            if width > widest:
                kept = int(len(content) * widest / width)
                text.set_text(f"{content[:kept]}{CUT}")


def _lay_out(figure: Figure) -> None:
    """Gives the axes what their texts leave of the figure.

    What texts take does not depend on the size of the axes, so they are measured once;
    a layout engine of matplotlib measures them twice, and saving would once more.
    """
    (axes,) = figure.axes
    axes.set_position((0.0, 0.0, 1.0, 1.0))
    taken, whole = axes.get_tightbbox(), figure.bbox
    assert taken is not None
    left, bottom = PADDING - taken.x0, PADDING - taken.y0
    right, top = PADDING + taken.x1 - whole.x1, PADDING + taken.y1 - whole.y1
    width, height = whole.width - left - right, whole.height - bottom - top
    axes.set_position(
        (
            left / whole.width,
            bottom / whole.height,
            width / whole.width,
            height / whole.height,
        )
    )


def _name_ids(text: str, slug: str) -> str:
    """Keeps ids that are referenced, with a prefix, and drops the others."""
    used = dict.fromkeys(re.findall(r"(?:#|url\(#)([\w.-]+)", text))
    short = {name: f"{slug}-i{number}" for number, name in enumerate(used)}

    def rename(match: re.Match[str]) -> str:
        name = match.group(1)
        return f' id="{short[name]}"' if name in short else ""

    def refer(match: re.Match[str]) -> str:
        # What is no id here is text that looks like one.
        before, name, after = match.groups()
        return f"{before}{short.get(name, name)}{after}"

    text = re.sub(r' id="([^"]+)"', rename, text)
    text = re.sub(r'xlink:(href="#)([^"]+)(")', refer, text)
    return re.sub(r"(url\(#)([^)]+)(\))", refer, text)


def _give_to_page(text: str) -> str:
    """Leaves colours, fonts and line joins to the page; drops unneeded digits."""
    # A style element inside the page would apply to the whole page.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    for color, variable in VARIABLES.items():
        text = text.replace(color, variable)
    # Matplotlib 3.11 has the family apart, 3.10 in the shorthand after the size.
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub(r"font: (?:(\w+) )?([\d.]+px) [^;\"]*", _font, text)
    text = re.sub(r" transform=\"rotate\(-?0 [^\"]*\"", "", text)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)
    # The figure as a whole has the size of most of its texts.
    return text.replace(f"font-size: {FONT_SIZE}px; ", "")


def _font(match: re.Match[str]) -> str:
    weight = f"font-weight: {match.group(1)}; " if match.group(1) else ""
    return f"{weight}font-size: {match.group(2)}"


def set_plain_log(axes: Axes, which: Literal["x", "y"]) -> None:
    """Makes an axis logarithmic with few ticks, written as plain numbers.

    Call after drawing: the ticks depend on the range.
    """
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    subs = next(ticks for limit, ticks in LOG_TICKS if high <= limit * low)
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(NullLocator())


def set_ratio_log(axes: Axes, which: Literal["x", "y"]) -> None:
    """Makes an axis of ratios logarithmic, with the same ticks to either side of 1.

    Call after drawing: the ticks depend on the range.
    """
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    reach = max(high, 1 / low)
    ticks = next(ticks for limit, ticks in RATIO_TICKS if reach <= limit)
    above = [tick for tick in ticks if tick <= high]
    below = [1 / tick for tick in reversed(above)]
    axis.set_major_locator(FixedLocator([*below, 1, *above]))
    axis.set_major_formatter(
        lambda value, _: f"{value:.2g}" if value < 1 else f"{value:g}"
    )
    axis.set_minor_locator(NullLocator())


LINE_HEIGHT: Final = 11.5
"""Of a line of a label, in points."""
LONGEST: Final = 24
"""Of a line of a label, in characters: the longest name of a backend, and some."""
FRAME: Final = 48
"""What ticks, their labels and the margins take of a figure's height, at most."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """The name of one line."""

    text: str  # One or several lines.
    value: float  # Where the line ends, in data coordinates.
    color: str  # Of the line.


def spread(
    places: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Moves the centres of labels apart, so that none overlaps, and all are within."""
    order = sorted(range(len(places)), key=lambda k: (places[k], k))
    moved = list(places)
    least = low
    for index in order:
        moved[index] = max(moved[index], least + heights[index] / 2)
        least = moved[index] + heights[index] / 2
    most = high
    for index in reversed(order):
        moved[index] = min(moved[index], most - heights[index] / 2)
        most = moved[index] - heights[index] / 2
    return moved


def write_label(
    axes: Axes, found: Sequence[Label], height: float, *, has_lines: bool = True
) -> None:
    """Writes labels at the right of the axes, each with a line to where it belongs."""
    low, high = axes.get_ylim()
    # Of the axes, which always shows it: only the text is placed beside them.
    middle = sum(axes.get_xlim()) / 2, (low + high) / 2
    # The height of the axes is not known before the layout; it is never less.
    per_point = (high - low) / (height - FRAME)
    heights = [
        LINE_HEIGHT * (1 + label.text.count("\n")) * per_point for label in found
    ]
    places = spread([label.value for label in found], heights, low, high)
    for label, place in zip(found, places, strict=True):
        if has_lines:
            axes.plot(
                [1.0, 1.035],
                [label.value, place],
                transform=axes.get_yaxis_transform(),
                color=label.color,
                linewidth=0.9,
                clip_on=False,
                zorder=2,
            )
        axes.annotate(
            "\n".join(map(_short, label.text.split("\n"))),
            middle,
            xytext=(1.05, place),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            ha="left",
            color=label.color,
            fontsize=FONT_SIZE,
            linespacing=1.1,
        )


def _short(line: str) -> str:
    """Cuts what would leave no room for the axes; records can have long names."""
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}{CUT}"


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

PAGE: Final = Look(ink=INK, muted=MUTED, grid=GRID, paper=PAPER, series=SERIES)
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
    return MARKERS[series_of(backend)]


def dash_of_line(mode: str) -> str:
    """Returns the dash of lines over replicas in a scaling mode, the same everywhere.

    Dotted lines are what is compared with, such as ideal scaling.
    """
    return DASHES.get(mode, "-")


def width_of_line(number: int) -> float:
    """Returns the width of the line of one colour that is drawn after so many others.

    A dash is a scaling mode, so lines that differ in something else have widths.
    """
    return WIDTHS[number % len(WIDTHS)]
