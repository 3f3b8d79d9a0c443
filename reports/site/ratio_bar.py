"""A ratio and its interval in a cell of a table, on a logarithmic axis around 1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from results.statistics.estimates import Estimate

WIDTH, HEIGHT = 160, 20
REACHES: Final = (1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
"""Ratios at the right end of an axis; its left end is the inverse."""


def reach(estimates: Iterable[Estimate]) -> float:
    """Returns the ratio at the right end of an axis that shows all values.

    An interval that is longer than that ends at the edge: its ends are in the table.
    """
    furthest = max((abs(math.log(of.value)) for of in estimates), default=0.0)
    fitting = [ratio for ratio in REACHES if math.log(ratio) >= 1.2 * furthest]
    return fitting[0] if fitting else REACHES[-1]


def ends(right: float) -> tuple[str, str]:
    """Returns the labels at both ends of an axis."""
    return f"{1 / right:.2g}", f"{right:g}"


def draw(estimate: Estimate, right: float, *, is_marked: bool) -> Markup:
    """Returns the ratio as an ``<svg>`` element, hidden from screen readers.

    The cells beside it have its numbers.
    """
    middle = HEIGHT / 2
    one = f"M{WIDTH / 2} 0V{HEIGHT}"
    parts = [f'<path d="{one}" stroke="var(--muted)" stroke-dasharray="2 2"/>']
    color = "var(--accent)" if is_marked else "var(--muted)"
    if estimate.low is not None and estimate.high is not None:
        low, high = _across(estimate.low, right), _across(estimate.high, right)
        parts.append(
            f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="{color}" '
            'stroke-width="2.5"/>'
        )
    x = _across(estimate.value, right)
    parts.append(f'<circle cx="{x:.1f}" cy="{middle}" r="4" fill="{color}"/>')
    return Markup(  # noqa: S704  # constants and numbers
        f'<svg class="bar" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true" '
        f'fill="none">{"".join(parts)}</svg>'
    )


def _across(ratio: float, right: float) -> float:
    # The end of a very long interval can be too small for a number.
    share = 0.0 if ratio <= 0 else (math.log(ratio) / math.log(right) + 1) / 2
    return 4 + (WIDTH - 8) * min(max(share, 0.0), 1.0)
