"""Converts a matplotlib figure to SVG that is embedded in the page.

The page defines colours and fonts: a figure is drawn in placeholder colours that are
replaced by CSS variables, so one drawing works in the light and the dark scheme, and
text remains text in the page's font. Everything that varies from run to run or refers
to the network (dates, metadata, document type, namespaces) is removed.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from typing import TYPE_CHECKING, Literal

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from reports.charts.compact import compact
from reports.charts.drawing import tips
from reports.view.view import NUM_SERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes

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
    text, texts = tips.take_out(text)
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
    body = tips.put_in(compact(re.sub(r"\n\s*", "\n", body)), texts)
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
