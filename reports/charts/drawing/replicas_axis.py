"""The axis of replicas: its ticks, and how lines are shifted along it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Final

from matplotlib.ticker import NullLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINEAR: Final = 16
"""Of more replicas, efficiency is over doublings, which a linear axis would squeeze."""
DODGE: Final = 0.02
"""Lines are shifted sideways by this share of an axis, so that none is hidden."""
LEAST_TICK_GAP: Final = 0.055
"""Smallest distance of two labelled numbers of replicas, as a share of the axis."""
MOST_OF_A_GAP: Final = 0.07
"""Share of the smallest gap between two sizes that a shift may take."""
MARGIN: Final = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicasAxis:
    """Places of numbers of replicas, linear or by doublings."""

    sizes: tuple[int, ...]  # Those that are labelled, ascending.
    is_log: bool  # Whether doublings are equally far apart.
    is_from_zero: bool  # Whether a linear axis begins at zero, not at the fewest.

    @property
    def limits(self) -> tuple[float, float]:
        """Both ends of the axis."""
        first, last = self.sizes[0], self.sizes[-1]
        if self.is_log:
            return first / 1.25, last * 1.35
        if self.is_from_zero:
            return 0.0, last * 1.06 + 0.25
        margin = MARGIN * (last - first or 1)
        return first - margin, last + margin

    def __call__(self, num_replicas: float, share: float = 0.0) -> float:
        """Returns the place of ``num_replicas``, shifted by ``share`` of the axis."""
        if self.is_log:
            reach = max(self.sizes[-1] / self.sizes[0], 2.0)
            return float(num_replicas * reach**share)
        low, high = self.limits
        sizes = (0, *self.sizes) if self.is_from_zero else self.sizes
        gaps = [b - a for a, b in itertools.pairwise(sizes)]
        whole = min([high - low, *(gap * MOST_OF_A_GAP / DODGE for gap in gaps)])
        return float(num_replicas + share * whole)

    def set_on(self, axes: Axes) -> None:
        """Sets limits, ticks and label; of ticks too close, the larger stays."""
        if self.is_log:
            axes.set_xscale("log", base=2)
        low, high = self.limits
        axes.set_xlim(low, high)
        ticks: list[int] = []
        for size in reversed(self.sizes):
            gap = (ticks[-1] - size) / (high - low) if ticks else 1.0
            if self.is_log or gap >= LEAST_TICK_GAP:
                ticks.append(size)
        axes.set_xticks(ticks, [str(size) for size in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("replicas")
