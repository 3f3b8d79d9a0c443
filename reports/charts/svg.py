"""Converts a matplotlib figure to SVG that is embedded in the page.

It is drawn in placeholder colours, which become variables of the style sheet. What
varies from run to run or refers to the network is removed.
"""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.text import Text

from reports.charts.style import (
    CUT,
    FONT_SIZE,
    LONGEST_TICK,
    PAGE,
    POINTS_PER_INCH,
    new_axes,
    page_style,
)
from reports.words import formats
from results.statistics.estimates import Estimate

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PADDING: Final = 2.9
"""In points, around what is drawn."""
WIDEST_TEXT, WIDEST_BESIDE = 0.9, 0.35
"""Fraction of a figure's width that text beside the axes may take."""
VARIABLES: Final = {
    PAGE.ink: "currentColor",
    PAGE.muted: "var(--muted)",
    PAGE.grid: "var(--rule)",
    PAGE.paper: "var(--paper)",
    **{color: f"var(--series-{index})" for index, color in enumerate(PAGE.series)},
}
_TIP: Final = "tip "


def attach(artist: Artist, text: str) -> None:
    """Gives an artist a tip, as its id; it becomes the ``<title>`` of its group."""
    if text:
        artist.set_gid(f"{_TIP}{text}")


def row_tip(name: str, row: Any, write: Callable[[float], str], unit: str = "") -> str:
    """Returns the tip of a row of the tidy frame, whose unit ``write`` may replace."""
    unit = unit or row.unit
    low, high = (None, None) if pd.isna(row.low) else (row.low, row.high)
    n = 0 if pd.isna(row.n) else int(row.n)
    estimate = Estimate(value=row.value, low=low, high=high, n=n, unit=unit, method="")
    shown = formats.telling(estimate, write)
    text = f"{name}: {shown(row.value)}{f' {unit}' if unit else ''}"
    if not n:
        return f"{text}, by definition"
    if not estimate.has_interval:
        return f"{text}, no interval, n = {n}"
    return f"{text}, 95 % interval {formats.interval(low, high, shown)}, n = {n}"


def draw(
    size: tuple[float, float],
    draw_on: Callable[[Axes], None],
    *,
    slug: str,
    title: str,
    description: str,
) -> Markup:
    """Draws a figure of a page, in the style of the report, as an ``<svg>`` element."""
    buffer = io.StringIO()
    with page_style(), mpl.rc_context({"svg.hashsalt": slug}):
        axes = new_axes(*size)
        draw_on(axes)
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.dpi = POINTS_PER_INCH  # as it is while an SVG is drawn
        _shorten_texts(figure)
        _lay_out(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    tips: list[str] = []

    def take_tip(match: re.Match[str]) -> str:
        tips.append(match.group(1))
        return f'<g class="tip" data-number="{len(tips) - 1}"'

    def put_tip(match: re.Match[str]) -> str:
        tip = html.escape(html.unescape(tips[int(match.group(1))]))
        return f'<g class="tip"{match.group(2)}><title>{tip}</title>'

    text = re.sub(rf'<g id="{_TIP}([^"]*)"', take_tip, text)
    text = _give_to_page(_name_ids(text, slug))
    opening, _, body = text.partition(">")
    box = re.search(r'viewBox="\S+ \S+ (\S+) [^"]*"', opening)
    assert box is not None
    # Without namespaces and size: an inline element needs none, the page sets the size.
    head = (
        f'<svg {box.group(0)} role="img" aria-labelledby="{slug}-title {slug}-desc" '
        f'style="max-width:{float(box.group(1)) * 96 / 72 / 16:.4g}rem;'
        f'font-size:{FONT_SIZE}px">'
        f'<title id="{slug}-title">{escape(title)}</title>'
        f'<desc id="{slug}-desc">{escape(description)}</desc>'
    )
    body = re.sub(r"\n\s*", "\n", body)
    body = re.sub(r'<g class="tip" data-number="(\d+)"([^>]*)>', put_tip, body)
    return Markup(head + body.strip())  # noqa: S704  # built here, escaped above


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
                text.set_text(f"{content[: int(len(content) * widest / width)]}{CUT}")


def _lay_out(figure: Figure) -> None:
    """Gives the axes what their texts leave; layout engines measure these twice."""
    (axes,) = figure.axes
    axes.set_position((0.0, 0.0, 1.0, 1.0))
    taken, whole = axes.get_tightbbox(), figure.bbox
    assert taken is not None
    left, bottom = PADDING - taken.x0, PADDING - taken.y0
    right, top = PADDING + taken.x1 - whole.x1, PADDING + taken.y1 - whole.y1
    width, height = whole.width, whole.height
    axes.set_position(
        (
            left / width,
            bottom / height,
            (width - left - right) / width,
            (height - bottom - top) / height,
        )
    )


def _name_ids(text: str, slug: str) -> str:
    """Keeps ids that are referenced, with a prefix, and drops the others."""
    used = dict.fromkeys(re.findall(r"(?:#|url\(#)([\w.-]+)", text))
    names = {name: f"{slug}-i{number}" for number, name in enumerate(used)}

    def rename(match: re.Match[str]) -> str:
        name = match.group(1)
        return f' id="{names[name]}"' if name in names else ""

    def refer(match: re.Match[str]) -> str:
        # What is no id here is text that looks like one.
        before, name, after = match.groups()
        return f"{before}{names.get(name, name)}{after}"

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
    text = re.sub(r"font: (?=\d)", "font-size: ", text)
    text = re.sub(r"font: (\w+) (?=\d)", r"font-weight: \1; font-size: ", text)
    text = re.sub(r"(font-size: [\d.]+px) [^;\"]*", r"\1", text)
    text = re.sub(r" transform=\"rotate\(-?0 [^\"]*\"", "", text)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)
    # The figure as a whole has the size of most of its texts.
    return text.replace(f"font-size: {FONT_SIZE}px; ", "")
