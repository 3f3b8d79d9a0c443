"""The axis of replicas: its ticks, and how curves are shifted along it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Final

from matplotlib.ticker import NullLocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

DODGE: Final = 0.016
"""Curves are shifted sideways by this share of an axis, so that none is hidden."""
LEAST_TICK_GAP: Final = 0.055
"""Smallest distance of two labelled numbers of replicas, as a share of the axis."""
MOST_OF_A_GAP: Final = 0.07
"""Share of the smallest gap between two sizes that a shift may take."""
RIGHT_MARGIN: Final = 1.06


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sideways:
    """Shifts curves sideways by a share of the x axis, linear or logarithmic."""

    sizes: tuple[int, ...]
    is_log: bool

    @property
    def smallest(self) -> int:
        """The fewest replicas."""
        return self.sizes[0]

    @property
    def largest(self) -> int:
        """The most replicas."""
        return self.sizes[-1]

    def __call__(self, num_replicas: float, share: float) -> float:
        """Returns the place of ``num_replicas``, shifted by ``share`` of the axis."""
        if not self.is_log:
            gap = min(b - a for a, b in itertools.pairwise((0, *self.sizes)))
            whole = min(self.largest * RIGHT_MARGIN, gap * MOST_OF_A_GAP / DODGE)
            return num_replicas + share * whole
        reach = max(self.largest / self.smallest, 2.0)
        return float(num_replicas * reach**share)


def set_axis(axes: Axes, sizes: Sequence[int], sideways: Sideways) -> None:
    """Sets limits, ticks and label; of ticks that are too close, the larger stays."""
    if sideways.is_log:
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(sizes) / 1.25, max(sizes) * 1.35)
        ticks = list(sizes)
    else:
        axes.set_xlim(0, sideways.largest * RIGHT_MARGIN + 0.25)
        ticks = []
        for size in reversed(sizes):
            gap = (ticks[-1] - size) / sideways.largest if ticks else 1.0
            if gap >= LEAST_TICK_GAP:
                ticks.append(size)
        ticks.reverse()
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("replicas")
