"""Ratios of two studies: two groups, measured at different times, so advice only."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results import errors
from results.judging import gate_metrics
from results.statistics import estimates, generations, judge, simultaneous
from results.study import case_pairs, study_differences

if TYPE_CHECKING:
    from collections.abc import Mapping

    from results.judging.gate_metrics import Metric
    from results.statistics.estimates import Mean
    from results.statistics.simultaneous import Difference
    from results.study.cases import Case, Study


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One ratio of a comparison."""

    name: str  # What both sides have in common.
    first: Case  # Case of the numerator.
    second: Case  # Case of the denominator.
    difference: Difference  # The ratio, and whether it holds within the set.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatioTable:
    """A set of ratios first / second."""

    first: str  # Name of the numerators.
    second: str  # Name of the denominators.
    metric: Metric  # What is compared.
    rows: tuple[Row, ...]  # In planned order.
    is_weaker: bool = False  # Whether the sides are two studies.
    # In what the sides differ, one line each; the names aside.
    settings: tuple[str, ...] = ()
    # What differs although it must not, one line each.
    differences: tuple[str, ...] = ()

    @property
    def without_test(self) -> tuple[Row, ...]:
        """Rows with fewer than two generations: they test nothing."""
        return tuple(row for row in self.rows if row.difference.p_value is None)


def of_studies(first: Study, second: Study, metric: Metric) -> RatioTable:
    """Compares the cases that two studies share."""
    means: dict[str, Mean] = {}
    sides: dict[str, tuple[Case, Case]] = {}
    settings: list[str] = []
    for case, other in case_pairs.pairs(first, second):
        settings += case_pairs.settings(case, other)
        here = gate_metrics.logs(case, metric)
        there = gate_metrics.logs(other, metric)
        if not here or not there:
            continue
        sides[case.label] = (case, other)
        factor = max(
            generations.widening(len(logs), is_stopped_on_width=of.is_stopped_on_width)
            for of, logs in ((case, here), (other, there))
        )
        means[case.label] = estimates.two_groups(here, there).widened(factor)
    if not means:
        raise errors.ResultsError(
            f"no case was measured in both {first.plan.study!r} and"
            f" {second.plan.study!r}; see 'status' of both"
        )
    return RatioTable(
        first=first.plan.study,
        second=second.plan.study,
        metric=metric,
        rows=_rows(
            _as_advice(simultaneous.differences(means, method=judge.OF_TWO_STUDIES)),
            sides,
        ),
        is_weaker=True,
        settings=tuple(dict.fromkeys(settings)),
        differences=study_differences.why_not_comparable(first, second),
    )


def _as_advice(found: Mapping[str, Difference]) -> dict[str, Difference]:
    """Returns differences of which none holds: days and machines vary by themselves."""
    return {
        name: dataclasses.replace(difference, holds=False)
        for name, difference in found.items()
    }


def _rows(
    found: Mapping[str, Difference], sides: Mapping[str, tuple[Case, Case]]
) -> tuple[Row, ...]:
    return tuple(
        Row(
            name=name,
            first=sides[name][0],
            second=sides[name][1],
            difference=difference,
        )
        for name, difference in found.items()
    )
