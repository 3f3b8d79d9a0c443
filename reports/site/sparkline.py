"""Efficiency over replicas in the size of a line of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT, MARGIN = 120, 36, 5
HIGHEST: Final = 1.25
"""Efficiency at the upper edge; what exceeds it is drawn there."""


def draw(values: Sequence[tuple[int, float]], *, series: int, label: str) -> Markup:
    """Returns the sparkline as an ``<svg>`` element.

    Places are equally far apart; the vertical axis begins at zero, and the dotted line
    is 100 %.
    """
    last = max(len(values) - 1, 1)
    spots = [
        (MARGIN + (WIDTH - 2 * MARGIN) * place / last, _up(value))
        for place, (_, value) in enumerate(values)
    ]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    x, y = spots[-1]
    ideal = f"M{MARGIN} {_up(1.0):.1f}H{WIDTH - MARGIN}"
    axis = f"M{MARGIN} {_up(0.0):.1f}H{WIDTH - MARGIN}"
    # The label is escaped, all else is numbers.
    return Markup(  # noqa: S704
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}" fill="none">'
        f'<path d="{axis}" stroke="var(--rule)"/>'
        f'<path d="{ideal}" stroke="var(--muted)" stroke-dasharray="2 3"/>'
        f'<path d="M{path}" stroke="var(--series-{series})" stroke-width="2"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="var(--series-{series})"/>'
        "</svg>"
    )


def _up(value: float) -> float:
    share = min(max(value / HIGHEST, 0.0), 1.0)
    return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share
