"""A verdict against a stored baseline whose variation between days was measured.

Hours or weeks lie between a change and a stored study. The machine is then as a whole
faster or slower, which no interval over the generations of either study holds: with a
day effect of 2 % equal programs regress in 0.16 of gates of one case, in 0.37 of six.

So the unit is the day. The baseline is measured on several days, with the same code;
the mean log cost of each day is one number y. For a change that is measured on one more
day, with K days of mean m and standard deviation s,

    y_change - m  has the standard error  s sqrt(1 + 1 / K),  K - 1 degrees of freedom

which holds what varies between days and between generations alike. The lower end is at
the level ``alpha`` over the number of cases (Bonferroni), since one false regression
fails the gate; the upper end, which lets a case pass, at ``alpha``.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from results import errors
from results.judging import gate_metrics
from results.statistics import estimates, group_sequential, judge
from results.statistics.judge import Verdict
from results.study import case_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.judging.gate_metrics import Rule
    from results.statistics.estimates import Mean
    from results.statistics.judge import Judgement
    from results.study.cases import Case, Study

FEWEST_DAYS = 3
METHOD = (
    "Student's t over days of the baseline's mean log cost, for one more day; the lower"
    " end holds for all cases together (Bonferroni)"
)


def day_of(study: Study) -> str:
    """Returns the first day on which a study was measured, in UTC; empty if none."""
    starts = [
        entry.trial.status.started_at
        for entry in study.planned
        if entry.is_ok and entry.trial is not None and entry.trial.status is not None
    ]
    return min(starts, default="")[: len("2026-01-01")]


def check(baseline: Study, others: Sequence[Study]) -> None:
    """Checks that studies measured the same code on days of their own.

    Raises:
      ResultsError: They are too few, share a day, or differ in what must be equal.
    """
    studies = (baseline, *others)
    days: dict[str, str] = {}
    for study in studies:
        day = day_of(study)
        name = study.plan.study
        if not day:
            raise errors.ResultsError(
                f"study {name!r} has no trial that is ok, so it measures no day; finish"
                " it with 'sweep --study', or leave it out"
            )
        if day in days:
            raise errors.ResultsError(
                f"studies {days[day]!r} and {name!r} were both measured on {day}, which"
                " says nothing about other days; name studies of different days"
            )
        days[day] = name
    if len(studies) < FEWEST_DAYS:
        raise errors.ResultsError(
            f"{len(studies)} day(s) say too little about what varies between days; name"
            f" {FEWEST_DAYS - 1} or more studies beside the baseline"
        )
    for study in others:
        found = [*case_pairs.differences(baseline, study)]
        for case, other in case_pairs.pairs(baseline, study):
            found += case_pairs.settings(case, other)
            if case.spec.code_digest != other.spec.code_digest:
                found.append(
                    f"code: {case.spec.code_digest[:9]} / {other.spec.code_digest[:9]}"
                )
        if found:
            raise errors.ResultsError(
                f"study {study.plan.study!r} differs from {baseline.plan.study!r}"
                f" ({found[0]}), so it shows more than what varies between days; name"
                " studies of the same code and settings"
            )


def judged(
    case: Case, days: Sequence[Case], rule: Rule, *, num_cases: int
) -> tuple[Judgement | None, str]:
    """Judges a case against the same case of several days.

    Args:
      case: Of the change.
      days: Of the baseline, one of each day.
      rule: What is judged.
      num_cases: Cases of the gate.

    Returns:
      The judgement and "", or None and why there is none.
    """
    sign = 1.0 if rule.metric.is_cost else -1.0
    of_days = [gate_metrics.logs(day, rule.metric) for day in days]
    ours = gate_metrics.logs(case, rule.metric)
    known = [sign * math.fsum(logs) / len(logs) for logs in of_days if logs]
    if len(known) < FEWEST_DAYS or not ours:
        return None, (
            f"{len(known)} day(s) of the baseline have it, a verdict needs"
            f" {FEWEST_DAYS} or more"
        )
    mean = one_more_day(sign * math.fsum(ours) / len(ours), known)
    judgement = of_mean(mean, rule, num_cases=num_cases)
    fewest = group_sequential.fewest_to_pass(rule.alpha)
    if not judgement.verdict.is_pass or len(ours) >= fewest:
        return judgement, ""
    reason = f"{len(ours)} generations cannot pass; give --repeats {fewest}"
    return dataclasses.replace(judgement, verdict=Verdict.INCONCLUSIVE), reason


def one_more_day(value: float, days: Sequence[float]) -> Mean:
    """Returns value - mean(days), where the value is of a day of its own."""
    known = estimates.one_group(days, "days")
    error = known.standard_error
    assert error is not None  # there are several days
    return dataclasses.replace(
        known,
        centre=value - known.centre,
        standard_error=error * math.sqrt(known.n + 1),
    )


def of_mean(mean: Mean, rule: Rule, *, num_cases: int) -> Judgement:
    """Judges a mean log cost: the upper end by itself, the lower for all cases."""
    found = judge.of_mean(mean, delta=rule.delta, alpha=rule.alpha, method=METHOD)
    strict = mean.half_width(1 - 2 * rule.alpha / num_cases)
    assert strict is not None  # several days
    low = mean.centre - strict
    assert found.slowdown.high is not None
    high = math.log(found.slowdown.high)
    return dataclasses.replace(
        found,
        verdict=judge.verdict_of(low, high, margin=math.log1p(rule.delta)),
        slowdown=dataclasses.replace(found.slowdown, low=math.exp(low)),
    )
