"""The table of figures of a study: a cell per quantity of each case, or why none.

Every output is a projection of it: page, text, Markdown, JSON, frames, event files,
logs, and the files of other programs. A cell has the estimate (value, interval, n,
unit), or a value that is fixed by definition, or the reason why there is neither.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Final

from results.figures import scaling, trial_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from results.figures.scaling import Point
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry

RATIOS: Final = ("throughput", "speedup", "efficiency", "efficiency_of_best")
"""Quantities of a point, in the order of every output."""
OF_CASES: Final = ("time_to_first_step", "peak_memory", "flop_utilisation")
"""Quantities of a case, which are the same in every scaling mode."""
_OF_TRIALS: Final[Mapping[str, tuple[Callable[[Entry], float], str]]] = {
    "throughput": (scaling.throughput_of, ""),  # the unit is that of the workload
    "time_to_first_step": (scaling.time_to_first_step_of, "s"),
    "peak_memory": (scaling.peak_memory_of, "bytes"),
    "flop_utilisation": (scaling.flop_utilisation_of, ""),
}
"""Quantities that each trial has by itself: what reads them, and their unit."""
_NONE_OK: Final = "no trial of this case is ok"
_NOT_READ: Final = "not recorded in every trial"
_NOT_POSITIVE: Final = "not in every trial a number above zero"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One cell."""

    quantity: str  # Its name, as in the glossary.
    estimate: Estimate | None  # Value, interval, n and unit; None without any.
    # Its value where that is fixed by definition, as a baseline's; else None.
    fixed: float | None = None
    why_not: str = ""  # Why there is no estimate; empty if there is one.
    # What each trial that is ok has, in order; empty of ratios.
    values: tuple[float, ...] = ()

    @property
    def value(self) -> float | None:
        """The value, measured or fixed."""
        return self.fixed if self.estimate is None else self.estimate.value


def of_trial(entry: Entry, quantity: str) -> float | None:
    """Returns what a trial that is ok has; None where that could not be read."""
    read, _ = _read(quantity)
    return read(entry) or None  # zero stands for "could not be read"


def of_trials(case: Case, quantity: str) -> Cell:
    """Returns a figure that each trial has by itself."""
    read, unit = _read(quantity)
    values = tuple(of_trial(entry, quantity) or 0.0 for entry in case.shown_entries)
    if not values or min(values) <= 0:
        is_plugins = quantity not in _OF_TRIALS
        why_not = _NOT_POSITIVE if is_plugins else _NOT_READ
        why_not = why_not if values else _NONE_OK
        return Cell(quantity=quantity, estimate=None, why_not=why_not)
    if quantity == "throughput":
        unit = f"{case.shown_entries[0].result.example_unit}/s"
    estimate = scaling.estimate(case, read, unit=unit)
    return Cell(quantity=quantity, estimate=estimate, values=values)


def _read(quantity: str) -> tuple[Callable[[Entry], float], str]:
    """Returns what reads a quantity of a trial, and its unit."""
    found = _OF_TRIALS.get(quantity)
    if found is not None:
        return found
    own = trial_metrics.find(quantity, _OF_TRIALS)
    assert own is not None, quantity
    return functools.partial(trial_metrics.positive_value_of, own), own.unit


def of_point(point: Point) -> dict[str, Cell]:
    """Returns the row of a case in one scaling mode: its figures by quantity."""
    return ratios(point) | {name: of_trials(point.case, name) for name in OF_CASES}


def ratios(point: Point) -> dict[str, Cell]:
    """Returns the part of the row that depends on the scaling mode."""
    return {name: _ratio(point, name) for name in RATIOS}


def _ratio(point: Point, quantity: str) -> Cell:
    estimate: Estimate | None = getattr(point, quantity)
    by_definition: dict[str, float] = {}
    if point.is_baseline and point.throughput is not None:
        by_definition = {"speedup": float(point.num_replicas), "efficiency": 1.0}
        if point.best_baseline is point.case:
            by_definition["efficiency_of_best"] = 1.0
    return Cell(
        quantity=quantity,
        estimate=estimate,
        fixed=by_definition.get(quantity) if estimate is None else None,
        why_not="" if estimate is not None else point.missing_reason,
    )
