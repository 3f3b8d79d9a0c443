"""Ratios between two sides: two backends or settings of one study, or two studies.

Within a study, the sides were measured in the same generations, so their log ratios are
paired. Two studies are two groups: a weaker comparison. Which differences hold when all
of them are looked at is decided by Holm's procedure
(``results/statistics/simultaneous.py``).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results import errors
from results.judging import gate_metrics
from results.statistics import estimates, generations, judge, simultaneous
from results.study import case_pairs, study_differences

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from results.judging.gate_metrics import Metric
    from results.statistics.estimates import Mean
    from results.statistics.simultaneous import Difference
    from results.study.cases import Case, Study

KEYS = ("backend", "replicas", "mode", "revision")
THIS_TREE = "this"
"""Selects the cases of the tree of the harness, in a study of two revisions."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One ratio of a comparison.

    Attributes:
      name: What both sides have in common.
      first: Case of the numerator.
      second: Case of the denominator.
      difference: The ratio, and whether it holds within the set.
    """

    name: str
    first: Case
    second: Case
    difference: Difference


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RatioTable:
    """A set of ratios first / second.

    Attributes:
      first: Name of the numerators.
      second: Name of the denominators.
      metric: What is compared.
      rows: In planned order.
      is_weaker: Whether the sides are two studies.
      settings: In what the sides differ, one line each; the names aside.
      differences: What differs although it must not, one line each.
    """

    first: str
    second: str
    metric: Metric
    rows: tuple[Row, ...]
    is_weaker: bool = False
    settings: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()

    @property
    def without_test(self) -> tuple[Row, ...]:
        """Rows with fewer than two generations: they test nothing."""
        return tuple(row for row in self.rows if row.difference.p_value is None)


def of_studies(first: Study, second: Study, metric: Metric) -> RatioTable:
    """Compares the cases that two studies share.

    Raises:
      ResultsError: They share none, or none was measured in both.
    """
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


def within(study: Study, first: str, second: str, metric: Metric) -> RatioTable:
    """Compares two sides of one study.

    Args:
      study: The study.
      first: A backend, or ``KEY=VALUE[,KEY=VALUE]`` with keys from ``KEYS``.
      second: The same of the other side.
      metric: What to compare.

    Raises:
      ResultsError: A side selects nothing, both are equal, or no two of their cases
        differ in the selected settings only and were measured together.
    """
    here, there = _selector(first, study), _selector(second, study)
    if here == there:
        raise errors.ResultsError(
            f"both sides are {first!r}, which has no difference; name two backends, or"
            " two values of one setting"
        )
    selected = here.keys() | there.keys()
    numerators = _select(study, first, here, selected)
    denominators = _select(study, second, there, selected)
    means: dict[str, Mean] = {}
    sides: dict[str, tuple[Case, Case]] = {}
    compared: set[tuple[str, str]] = set()
    for rest, case in numerators.items():
        other = denominators.get(rest)
        if other is None or (case.case_id, other.case_id) in compared:
            continue
        mean = gate_metrics.mean_log_ratio(case, other, metric)
        if mean is not None:
            compared.add((case.case_id, other.case_id))
            name = ", ".join(f"{key} {value}" for key, value in rest) or "all"
            factor = generations.widening(
                mean.n, is_stopped_on_width=case.is_stopped_on_width
            )
            means[name] = mean.widened(factor)
            sides[name] = (case, other)
    if not means:
        raise errors.ResultsError(
            f"study {study.plan.study!r} has no generation in which {first!r} and"
            f" {second!r} were measured with all else equal; see 'status'"
        )
    return RatioTable(
        first=first,
        second=second,
        metric=metric,
        rows=_rows(simultaneous.differences(means), sides),
    )


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


def _values(case: Case) -> list[dict[str, str]]:
    """Returns what a case is, once per scaling mode that it serves."""
    return [
        {
            "backend": case.spec.backend,
            "replicas": str(case.spec.num_replicas),
            "mode": mode.value,
            "revision": case.spec.revision or THIS_TREE,
        }
        for mode in case.modes
    ]


def _selector(text: str, study: Study) -> dict[str, str]:
    if "=" not in text:
        text = f"backend={text}"
    found: dict[str, str] = {}
    cases = [*study.cases, *study.other_revisions]
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in KEYS or key in found:
            raise errors.ResultsError(
                f"{text!r} selects no side of a study; allowed are a backend, or"
                f" KEY=VALUE with the keys {', '.join(KEYS)}, each once, such as"
                " replicas=2,mode=weak"
            )
        known = sorted({values[key] for case in cases for values in _values(case)})
        if value not in known:
            raise errors.ResultsError(
                f"study {study.plan.study!r} has no {key} {value!r}; it has"
                f" {', '.join(known) or 'no timed case'}"
            )
        found[key] = value
    return found


def _select(
    study: Study, text: str, selector: Mapping[str, str], selected: set[str]
) -> dict[tuple[tuple[str, str], ...], Case]:
    """Returns the cases of a side by what the selectors do not name."""
    found: dict[tuple[tuple[str, str], ...], Case] = {}
    cases: Sequence[Case] = study.cases
    if "revision" in selected:
        cases = (*study.cases, *study.other_revisions)
    for case in cases:
        for values in _values(case):
            if all(values[key] == value for key, value in selector.items()):
                left = tuple(
                    (key, value)
                    for key, value in values.items()
                    if key not in selected
                    and not (key == "revision" and value == THIS_TREE)
                )
                if left in found and found[left].case_id != case.case_id:
                    raise errors.ResultsError(
                        f"{text!r} selects both {found[left].label} and {case.label};"
                        " name a setting more, such as replicas=2"
                    )
                found[left] = case
    return found
