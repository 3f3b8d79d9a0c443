"""Bars in the cells of tables: an estimate with its interval, on the axis of a column.

They are hidden from screen readers: the cells beside them have the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

if TYPE_CHECKING:
    from results.statistics.estimates import Estimate

    Ends = tuple[float | None, float | None]

WIDTH, HEIGHT = 160, 16
REACHES: Final = (1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
"""Ratios at the right end of an axis; its left end is the inverse."""


def _svg(*parts: str) -> Markup:
    box = f'<svg class="bar" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">'
    return Markup(f"{box}{''.join(parts)}</svg>")  # noqa: S704  # constants and numbers


def _at(share: float) -> float:
    return WIDTH * min(max(share, 0.0), 1.0)


def _line(at: float, *, is_dashed: bool = True) -> str:
    dashes = ' stroke-dasharray="2 2"' * is_dashed
    return f'<path d="M{at:.1f} 0V{HEIGHT}" stroke="var(--muted)"{dashes}/>'


def from_zero(
    value: float,
    ends: Ends = (None, None),
    *,
    top: float,
    series: int,
    is_hollow: bool = False,
    lines: Iterable[float] = (),
) -> Markup:
    """Draws a bar from zero, its interval as a line, and values to compare with."""
    color, middle = f"var(--series-{series})", HEIGHT / 2
    low, high = ends
    body = (
        f'<rect y="2" width="{_at(value / top):.1f}" height="{HEIGHT - 4}" rx="2"'
        f' fill="{"none" if is_hollow else color}" stroke="{color}"/>'
    )
    parts = [_line(_at(line / top)) for line in lines]
    if low is not None and high is not None:
        span = f"M{_at(low / top):.1f} {middle}H{_at(high / top):.1f}"
        # On paper around it, it is visible inside the bar and beyond it.
        parts += [
            f'<path d="{span}" stroke="var(--{name})" stroke-width="{width}"/>'
            for name, width in (("paper", 4), ("ink", 1.6))
        ]
    return _svg(body, *parts)


def between(
    value: float,
    ends: Ends,
    limits: tuple[float, float],
    *,
    lines: Iterable[float] = (),
    is_marked: bool = False,
) -> Markup:
    """Draws an estimate as a dot on its interval, beside zero."""
    low, high = limits

    def at(number: float) -> float:
        return 4 + (WIDTH - 8) * min(max((number - low) / (high - low), 0.0), 1.0)

    color = "var(--accent)" if is_marked else "var(--muted)"
    parts = [
        _line(at(0.0), is_dashed=False),
        *(_line(at(line)) for line in lines),
    ]
    first, last = ends
    if first is not None and last is not None:
        span = f"M{at(first):.1f} {HEIGHT / 2}H{at(last):.1f}"
        parts.append(f'<path d="{span}" stroke="{color}" stroke-width="2.5"/>')
    dot = f'<circle cx="{at(value):.1f}" cy="{HEIGHT / 2}" r="4" fill="{color}"/>'
    return _svg(*parts, dot)


def reach(estimates: Iterable[Estimate]) -> float:
    """Returns the ratio at the right end of an axis that shows all values."""
    furthest = max(
        (abs(math.log(estimate.value)) for estimate in estimates), default=0.0
    )
    fitting = [ratio for ratio in REACHES if math.log(ratio) >= 1.2 * furthest]
    return fitting[0] if fitting else REACHES[-1]


def ratio_bar(ratio: Estimate, right: float, *, is_marked: bool) -> Markup:
    def log(value: float | None) -> float | None:
        # The end of a very long interval can be too small for a number.
        return None if value is None else math.log(max(value, 1e-300))

    return between(
        math.log(ratio.value),
        (log(ratio.low), log(ratio.high)),
        (-math.log(right), math.log(right)),
        is_marked=is_marked,
    )


def sparkline(values: Sequence[tuple[float, Ends, int]]) -> Markup:
    """Draws values, each in a colour, at equal distances; not from zero."""
    every = [number for value, ends, _ in values for number in (value, *ends)]
    numbers = [number for number in every if number is not None]
    low, high = min(numbers), max(numbers)
    span = high - low or 1.0
    last = max(len(values) - 1, 1)

    def up(value: float) -> float:
        return HEIGHT - 2 - (HEIGHT - 4) * (value - low) / span

    parts = []
    for index, (value, (first, end), series) in enumerate(values):
        color = f"var(--series-{series})"
        x = 4 + (WIDTH - 8) * index / last
        if first is not None and end is not None:
            line = f"M{x:.1f} {up(first):.1f}V{up(end):.1f}"
            parts.append(f'<path d="{line}" stroke="{color}"/>')
        parts.append(
            f'<circle cx="{x:.1f}" cy="{up(value):.1f}" r="2" fill="{color}"/>'
        )
    return _svg(*parts)
