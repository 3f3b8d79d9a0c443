"""Small line charts as inline SVG, written by hand: no text is drawn as a path.

Colours are variables of the page's style sheet, so one drawing serves the light and the
dark scheme. A chart is as wide as a phone, so its text is never smaller than 11 px.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WIDTH: Final = 360
HEIGHT: Final = 220
LEFT, RIGHT, TOP, BOTTOM = 46, 58, 14, 40
LINE_HEIGHT: Final = 15
FONT_SIZE: Final = 12
MOST_LINEAR: Final = 16
"""Replicas up to which the axis is linear; beyond, doublings are equally far apart."""
NUM_TICKS: Final = 5
INSET: Final = 12
"""Between the edges of the panel and the first and last place: no mark is clipped."""
_DASHES: Final = ("", "5 3", "2 3", "7 3 2 3")
_LONGEST_LABEL: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """One value of a line.

    Attributes:
      x: On the horizontal axis.
      value: On the vertical axis.
      low: Lower end of its interval, or None.
      high: Upper end of its interval, or None.
    """

    x: float
    value: float
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a chart.

    Attributes:
      label: Short; written at the end of the line.
      series: Index of its colour.
      dots: Ascending by ``x``; at least one.
      is_joined: Whether the values are joined by a line.
    """

    label: str
    series: int
    dots: tuple[Dot, ...]
    is_joined: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The axes, which several charts can share.

    Attributes:
      places: Labelled positions on the horizontal axis, ascending: value and label.
      low: Lower end of the vertical axis.
      high: Upper end.
      x_label: Below the horizontal axis.
      write: Writes the value of a tick of the vertical axis.
      is_log: Whether the horizontal axis is logarithmic.
    """

    places: tuple[tuple[float, str], ...]
    low: float
    high: float
    x_label: str
    write: Callable[[float], str]
    is_log: bool = False

    def across(self, value: float) -> float:
        """Returns the horizontal position of a value."""
        first, last = self.places[0][0], self.places[-1][0]
        if first == last:
            return (LEFT + WIDTH - RIGHT) / 2
        if self.is_log:
            value, first, last = math.log(value), math.log(first), math.log(last)
        width = WIDTH - LEFT - RIGHT - 2 * INSET
        return LEFT + INSET + width * (value - first) / (last - first)

    def up(self, value: float) -> float:
        """Returns the vertical position of a value, within the panel."""
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(share, 0.0), 1.0)


def of_replicas(
    sizes: Iterable[int], values: Iterable[float], *, write: Callable[[float], str]
) -> Frame:
    """Returns axes over numbers of replicas, linear from zero."""
    numbers = sorted(set(sizes))
    return Frame(
        places=tuple((float(number), str(number)) for number in numbers),
        low=0.0,
        high=ticks(0.0, max(values, default=1.0))[-1],
        x_label="replicas",
        write=write,
        is_log=numbers[-1] > MOST_LINEAR,
    )


def plain(value: float) -> str:
    """Writes the value of a tick without zeros that say nothing."""
    return f"{value:,.10g}".replace(",", formats.THIN_SPACE)


def ticks(low: float, high: float) -> list[float]:
    """Returns round values that include both ends, at least two."""
    rough = max(high - low, 1e-12) / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * of for of in (1, 2, 2.5, 5, 10) if power * of >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * index for index in range(first, max(last, first + 1) + 1)]


def draw(
    frame: Frame,
    lines: Sequence[Line],
    *,
    slug: str,
    title: str,
    description: str,
    marks: Sequence[float] = (),
    level: float | None = None,
    levels: Sequence[tuple[float, float, float, int]] = (),
) -> Markup:
    """Returns the chart as an ``<svg>`` element.

    Args:
      frame: Its axes.
      lines: What is drawn.
      slug: Prefix of its ids; unique in the page.
      title: Its accessible name.
      description: Its content in words, for screen readers.
      marks: Positions of vertical lines, such as changes.
      level: Value of a dotted horizontal line, such as the ideal; None for none.
      levels: Means of segments: from, to, value, and index of the colour.
    """
    parts = [*_axes(frame)]
    bottom = HEIGHT - BOTTOM
    parts += [
        f'<path d="M{frame.across(x):.1f} {TOP}V{bottom}" stroke="var(--warn)" '
        'stroke-width="1.5" stroke-dasharray="3 3"/>'
        for x in marks
    ]
    if level is not None:
        parts.append(
            f'<path d="M{LEFT} {frame.up(level):.1f}H{WIDTH - RIGHT}" '
            'stroke="var(--muted)" stroke-dasharray="2 3"/>'
        )
    for start, end, value, series in levels:
        y = frame.up(value)
        parts.append(
            f'<path d="M{frame.across(start) - 6:.1f} {y:.1f}H'
            f'{frame.across(end) + 6:.1f}" stroke="var(--series-{series})" '
            'stroke-width="2"/>'
        )
    for place, line in enumerate(lines):
        parts += _line(frame, line, place, len(lines))
    parts += _labels(frame, lines)
    body = "\n".join(parts)
    # All text is escaped where it is written.
    return Markup(  # noqa: S704
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="{slug}-title {slug}-desc" class="chart" '
        f'font-size="{FONT_SIZE}" fill="none">'
        f'<title id="{slug}-title">{escape(title)}</title>'
        f'<desc id="{slug}-desc">{escape(description)}</desc>\n{body}\n</svg>'
    )


def _text(x: float, y: float, anchor: str, color: str, text: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">'
        f"{escape(text)}</text>"
    )


def _axes(frame: Frame) -> Iterable[str]:
    bottom = HEIGHT - BOTTOM
    for value in ticks(frame.low, frame.high):
        if frame.low <= value <= frame.high * (1 + 1e-9):
            y = frame.up(value)
            yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="var(--rule)"/>'
            yield _text(LEFT - 6, y + 4, "end", "var(--muted)", frame.write(value))
    last = -math.inf
    for value, label in frame.places:
        x = frame.across(value)
        # Half a label to either side, so that no two touch.
        if x - last >= FONT_SIZE * 0.62 * len(label) + 6:
            yield _text(x, bottom + 17, "middle", "var(--muted)", label)
            last = x
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield _text(middle, HEIGHT - 6, "middle", "var(--muted)", frame.x_label)


def _line(frame: Frame, line: Line, place: int, number: int) -> Iterable[str]:
    color = f"var(--series-{line.series})"
    # Side by side, so that no interval hides another.
    shift = 5 * (place - (number - 1) / 2) if line.is_joined else 0.0
    spots = [(frame.across(dot.x) + shift, frame.up(dot.value)) for dot in line.dots]
    if line.is_joined:
        dashes = _DASHES[place % len(_DASHES)]
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
        yield f'<path d="M{path}" stroke="{color}" stroke-width="2"{dash}/>'
    for dot, (x, y) in zip(line.dots, spots, strict=True):
        if dot.low is not None and dot.high is not None:
            yield (
                f'<path d="M{x:.1f} {frame.up(dot.low):.1f}V{frame.up(dot.high):.1f}" '
                f'stroke="{color}" stroke-width="2"/>'
            )
        if place % 2:
            yield (
                f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" '
                f'fill="{color}"/>'
            )
        else:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>'


def _labels(frame: Frame, lines: Sequence[Line]) -> Iterable[str]:
    """Writes the names of lines in the right margin, in order, none over another."""
    ordered = sorted(lines, key=lambda line: frame.up(line.dots[-1].value))
    last = -math.inf
    for line in ordered:
        y = max(frame.up(line.dots[-1].value) + 4, last + LINE_HEIGHT)
        last = y
        label = line.label
        if len(label) > _LONGEST_LABEL:
            label = f"{label[: _LONGEST_LABEL - 1]}\N{HORIZONTAL ELLIPSIS}"
        if label:
            color = f"var(--series-{line.series})"
            yield _text(WIDTH - RIGHT + 12, y, "start", color, label)
