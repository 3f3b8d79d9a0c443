"""Converts a matplotlib figure to SVG that is embedded in the page.

It is drawn in placeholder colours, which become variables of the style sheet. What
varies from run to run or refers to the network is removed.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text

from reports.charts import style
from reports.words import formats
from results.statistics.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

PADDING: Final = 2.9
"""In points, around what is drawn."""
WIDEST_TEXT, WIDEST_BESIDE = 0.9, 0.35
"""Fraction of a figure's width that text beside the axes may take."""
VARIABLES: Final = {
    style.PAGE.ink: "currentColor",
    style.PAGE.muted: "var(--muted)",
    style.PAGE.grid: "var(--rule)",
    style.PAGE.paper: "var(--paper)",
    **{
        color: f"var(--series-{index})" for index, color in enumerate(style.PAGE.series)
    },
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
    with style.page_style(), mpl.rc_context({"svg.hashsalt": slug}):
        width, height = (points / style.POINTS_PER_INCH for points in size)
        figure = Figure(figsize=(width, height))
        FigureCanvasSVG(figure)  # without pyplot, nothing is global
        draw_on(figure.add_subplot())
        figure.dpi = style.POINTS_PER_INCH  # as it is while an SVG is drawn
        _shorten_texts(figure)
        figure.tight_layout(pad=PADDING / style.FONT_SIZE)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    # The text of a tip stays as it is, and its place has a character that no text has.
    tips = iter(re.findall(rf'<g id="{_TIP}([^"]*)"', text))
    text = re.sub(rf'<g id="{_TIP}[^"]*"', '<g class="tip"\0', text)
    text = _give_to_page(_drop_ids(text))
    (width, height), body = size, text.partition(">")[2]
    # Without namespaces and size: an inline element needs none, the page sets the size.
    head = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-labelledby="{slug}-title {slug}-desc" '
        f'style="max-width:{width * 96 / 72 / 16:.4g}rem;'
        f'font-size:{style.FONT_SIZE}px">'
        f'<title id="{slug}-title">{escape(title)}</title>'
        f'<desc id="{slug}-desc">{escape(description)}</desc>'
    )
    body = re.sub(r"\n\s*", "\n", body)

    def put_tip(match: re.Match[str]) -> str:
        return f"{match[1]}><title>{html.escape(html.unescape(next(tips)))}</title>"

    body = re.sub("\0([^>]*)>", put_tip, body)
    return Markup(head + body.strip())  # noqa: S704  # built here, escaped above


def _shorten_texts(figure: Figure) -> None:
    """Cuts labels that are wider than the figure; records can have long names."""
    for text in figure.findobj(Text):
        content = text.get_text()
        if len(content) > style.LONGEST_TICK:
            is_beside = getattr(text, "get_annotation_clip", lambda: None)() is False
            share = WIDEST_BESIDE if is_beside else WIDEST_TEXT
            widest = share * figure.bbox.width
            width = text.get_window_extent().width
            if width > widest:
                text.set_text(
                    f"{content[: int(len(content) * widest / width)]}{style.CUT}"
                )


def _drop_ids(text: str) -> str:
    """Drops ids that nothing refers to; the others depend on the name of the figure."""
    used = set(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", text))
    return re.sub(r' id="([^"]+)"', lambda id_: id_[0] * (id_[1] in used), text)


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
    return text.replace(f"font-size: {style.FONT_SIZE}px; ", "")
