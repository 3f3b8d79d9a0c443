"""Axis limits that show the estimates even where an interval is very long.

With two or three repetitions a correct interval can span orders of magnitude. It would
compress everything else into a line, so the axis follows the estimates, and a bar that
is too long is clipped at the panel; its ends are in the table below the figure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

REACH = 1.5
"""How far intervals may extend a logarithmic axis beyond the estimates, as a factor."""
MARGIN = 0.06
NARROWEST_RATIO = 1.1
"""Ratios within 10 % are not spread over a whole panel."""
WIDEST_RATIO = 500.0
"""Ratios beyond this are at the edge of the panel; no axis is symmetric about them."""


def logarithmic(anchors: Sequence[float], ends: Sequence[float]) -> tuple[float, float]:
    """Limits around all ``anchors`` and those ``ends`` that are close enough."""
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


def symmetric(
    anchors: Sequence[float], ends: Sequence[float], *, centre: float
) -> tuple[float, float]:
    """Returns logarithmic limits equally far below and above ``centre``."""
    lowest, highest = centre / WIDEST_RATIO, centre * WIDEST_RATIO
    within = [min(max(anchor, lowest), highest) for anchor in anchors]
    low, high = logarithmic([*within, centre], ends)
    reach = max(high / centre, centre / low, NARROWEST_RATIO)
    return centre / reach, centre * reach
