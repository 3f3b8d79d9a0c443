"""A gate on what is learned: quality runs of a change beside those of its baseline.

A faster model that learns less is a regression, which no gate on speed sees. Both sides
train with the same seeds, so they start from the same weights and read the same data.
The loss of a seed is how much worse the change ended, relative to the mean quality q of
the baseline's runs:

- (q_baseline - q_change) / q where more is better, such as accuracy and return
- (q_change - q_baseline) / q where less is better, such as FID

Its mean over seeds has an interval by Student's t, which is judged by the rule of
``results/statistics/judge.py`` with the margin ``delta``. Against a stored study
nothing is paired, and the interval is Welch's (``results/statistics/estimates.py``). q
is taken as known: its own error changes a loss of 5 % by a twentieth of that error.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from results.figures import learning_gains
from results.judging import gate
from results.judging.gate import JudgedCase
from results.statistics import estimates, judge
from results.study import case_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.judging.gate import Gate
    from results.judging.gate_metrics import Metric
    from results.records.models import QualityMetric
    from results.statistics.judge import Judgement
    from results.study.cases import Case, Key, Study

FEWEST_SEEDS = learning_gains.FEWEST_RUNS
PAIRED = (
    "Student's t over seeds of the loss relative to the baseline's mean quality, both"
    " sides with the same seeds"
)
UNPAIRED = (
    "Welch's t over the seeds of two studies, relative to the baseline's mean quality"
)


def of_revisions(
    study: Study, metric: Metric, *, baseline: str, delta: float, alpha: float
) -> Gate:
    """Judges the quality runs of a study, of this tree and of another revision.

    Raises:
      ResultsError: The runs do not measure this metric, or ``delta`` or ``alpha`` is
        out of range.
    """
    _check(delta, alpha)
    runs = study.quality_runs
    others = {case_pairs.key_of(case): case for case in runs if case.spec.revision}
    judged = []
    for case in runs:
        if case.spec.revision:
            continue
        other = others[case_pairs.key_of(case)]
        judged.append(_judged(case, other, metric, delta, alpha, is_paired=True))
    return gate.conclude(study, metric, baseline, delta, alpha, judged)


def of_studies(
    study: Study,
    stored: Study,
    metric: Metric,
    *,
    baseline: str,
    delta: float,
    alpha: float,
) -> Gate:
    """Judges the quality runs of a study against those of a stored one.

    Raises:
      ResultsError: No case is in both, the runs do not measure this metric, or
        ``delta`` or ``alpha`` is out of range.
    """
    _check(delta, alpha)
    judged = []
    differences = list(case_pairs.differences(study, stored, are_quality_runs=True))
    for case, other in case_pairs.pairs(study, stored, are_quality_runs=True):
        differences += case_pairs.settings(case, other)
        judged.append(_judged(case, other, metric, delta, alpha, is_paired=False))
    found = gate.conclude(study, metric, baseline, delta, alpha, judged)
    return dataclasses.replace(
        found, is_weaker=True, differences=tuple(dict.fromkeys(differences))
    )


def _check(delta: float, alpha: float) -> None:
    judge.check_delta(delta)
    judge.check_alpha(alpha)


def _judged(
    case: Case,
    other: Case,
    metric: Metric,
    delta: float,
    alpha: float,
    *,
    is_paired: bool,
) -> JudgedCase:
    here, there = _final(case, metric), _final(other, metric)
    if is_paired:
        keys = [key for key in here if key in there]
        here = {key: here[key] for key in keys}
        there = {key: there[key] for key in keys}
    reason = _why_not(here, there)
    judgement = None
    if not reason:
        judgement = _judgement(
            [found.value for found in here.values()],
            [found.value for found in there.values()],
            metric,
            delta,
            alpha,
            is_paired=is_paired,
        )
    return JudgedCase(
        name=gate.name_of(case), case=case, judgement=judgement, reason=reason
    )


def _final(case: Case, metric: Metric) -> dict[Key, QualityMetric]:
    return {
        entry.key: learning_gains.final(entry, metric.name) for entry in case.ok_entries
    }


def _why_not(here: dict[Key, QualityMetric], there: dict[Key, QualityMetric]) -> str:
    """Why two groups of runs give no verdict; empty if they do."""
    fewest = min(len(here), len(there))
    if fewest < FEWEST_SEEDS:
        return f"{fewest} seed(s) have both, a verdict needs {FEWEST_SEEDS} or more"
    protocols = {
        (found.protocol, found.num_examples)
        for found in (*here.values(), *there.values())
    }
    if len(protocols) > 1:
        listed = " / ".join(
            f"{protocol or 'none'} ({number} examples)"
            for protocol, number in sorted(protocols)
        )
        return f"the protocols of the metric differ, so it is not comparable: {listed}"
    mean = math.fsum(found.value for found in there.values()) / len(there)
    if mean <= 0:
        return (
            f"the baseline's mean is {mean:.4g}, and a loss relative to it has no"
            " meaning; train longer"
        )
    return ""


def _judgement(
    here: Sequence[float],
    there: Sequence[float],
    metric: Metric,
    delta: float,
    alpha: float,
    *,
    is_paired: bool,
) -> Judgement:
    mean = math.fsum(there) / len(there)
    sign = 1.0 if metric.is_cost else -1.0
    here = [sign * value / mean for value in here]
    there = [sign * value / mean for value in there]
    if is_paired:
        losses = [a - b for a, b in zip(here, there, strict=True)]
        loss = estimates.one_group(losses)
    else:
        loss = estimates.two_groups(here, there)
    return judge.of_mean(
        loss,
        delta=delta,
        alpha=alpha,
        method=PAIRED if is_paired else UNPAIRED,
        is_log=False,
    )
