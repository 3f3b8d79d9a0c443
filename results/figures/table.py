"""The table of figures of a study: a cell per quantity of each case, or why none.

Every output is a projection of it: page, text, Markdown, JSON, frames, event files. A
cell has the estimate (value, interval, n, unit), or a value that is fixed by
definition, or the reason why there is neither.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from results.figures import scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from results.figures.scaling import Point
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry

RATIOS: Final = ("throughput", "speedup", "efficiency", "efficiency_of_best")
"""Quantities of a point, in the order of every output."""
OF_TRIALS: Final[Mapping[str, tuple[Callable[[Entry], float], str]]] = {
    "time_to_first_step": (scaling.time_to_first_step_of, "s"),
    "peak_memory": (scaling.peak_memory_of, "bytes"),
    "flop_utilisation": (scaling.flop_utilisation_of, ""),
}
"""Quantities that each trial has by itself: what reads them, and their unit."""
NOT_READ: Final = "not recorded in every trial"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One cell.

    Attributes:
      quantity: Its name, as in the glossary.
      estimate: Value, interval, n and unit; None without any.
      fixed: Its value where that is fixed by definition, as a baseline's; else None.
      why_not: Why there is no estimate; empty if there is one.
    """

    quantity: str
    estimate: Estimate | None
    fixed: float | None = None
    why_not: str = ""

    @property
    def value(self) -> float | None:
        """The value, measured or fixed."""
        return self.fixed if self.estimate is None else self.estimate.value


def of_trials(case: Case, quantity: str) -> Cell:
    """Returns a figure that each trial has; zero stands for "could not be read".

    Args:
      case: The case.
      quantity: One of ``OF_TRIALS``.
    """
    read, unit = OF_TRIALS[quantity]
    found = scaling.values(case, read).values()
    if not found or min(found) <= 0:
        return Cell(quantity=quantity, estimate=None, why_not=NOT_READ)
    estimate = scaling.estimate(case, read, unit=unit)
    return Cell(quantity=quantity, estimate=estimate)


def of_point(point: Point) -> dict[str, Cell]:
    """Returns the row of a case in one scaling mode: its figures by quantity."""
    return ratios(point) | {name: of_trials(point.case, name) for name in OF_TRIALS}


def ratios(point: Point) -> dict[str, Cell]:
    """Returns the part of the row that depends on the scaling mode."""
    return {name: _ratio(point, name) for name in RATIOS}


def _ratio(point: Point, quantity: str) -> Cell:
    estimate: Estimate | None = getattr(point, quantity)
    fixed = None
    if point.is_baseline and point.throughput is not None:
        by_definition = {"speedup": float(point.num_replicas), "efficiency": 1.0}
        fixed = by_definition.get(quantity)
    return Cell(
        quantity=quantity,
        estimate=estimate,
        fixed=fixed if estimate is None else None,
        why_not="" if estimate is not None else point.missing_reason,
    )
