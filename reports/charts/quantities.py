"""What is drawn over the number of replicas: efficiency, speedup, throughput."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from reports.words import formats
from results.figures import points

if TYPE_CHECKING:
    from collections.abc import Callable

    from results.figures.scaling import Point
    from results.statistics.estimates import Estimate


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One quantity that is drawn over the number of replicas.

    Attributes:
      name: As in the glossary.
      slug: In the frame, and for ids.
      estimate: Returns its estimate at a point.
      write: Formats one value.
    """

    name: str
    slug: str
    estimate: Callable[[Point], Estimate | None]
    write: Callable[[float], str]

    def ideal(self, num_replicas: int, base: int, value: float) -> float:
        """Returns perfect scaling from ``value`` at a baseline of ``base`` replicas."""
        if self.slug == "efficiency":
            return 1.0
        if self.slug == "speedup":
            return float(num_replicas)
        return value * num_replicas / base


EFFICIENCY = Quantity(
    name="Parallel efficiency",
    slug="efficiency",
    estimate=lambda point: point.efficiency,
    write=formats.percent,
)
SPEEDUP = Quantity(
    name="Speedup",
    slug="speedup",
    estimate=lambda point: point.speedup,
    write=formats.times,
)
THROUGHPUT = Quantity(
    name="Throughput",
    slug="throughput",
    estimate=lambda point: point.throughput,
    write=formats.significant,
)
QUANTITIES = (EFFICIENCY, SPEEDUP, THROUGHPUT)


def value_of(quantity: Quantity, point: Point) -> float | None:
    """Returns the value of a point; the baseline's is fixed by definition."""
    estimate = quantity.estimate(point)
    if estimate is not None:
        return estimate.value
    if point.is_baseline and point.throughput is not None:
        return quantity.ideal(point.num_replicas, point.num_replicas, 1.0)
    return None


def dots(quantity: Quantity, point: Point) -> list[float]:
    """Returns single repetitions of a point; ratios where both sides have the same."""
    return [value for _, _, value in points.repetitions(point, quantity.slug)]
