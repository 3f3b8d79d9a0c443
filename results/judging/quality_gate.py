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

import math
from typing import TYPE_CHECKING

from results.figures import learning_gains
from results.statistics import estimates, judge

if TYPE_CHECKING:
    from results.judging.gate_metrics import Metric, Rule
    from results.records.models import QualityMetric
    from results.statistics.judge import Judgement
    from results.study.cases import Case, Key

FEWEST_SEEDS = learning_gains.FEWEST_RUNS
PAIRED = (
    "Student's t over seeds of the loss relative to the baseline's mean quality, both"
    " sides with the same seeds"
)
UNPAIRED = (
    "Welch's t over the seeds of two studies, relative to the baseline's mean quality"
)


def judged(
    case: Case, other: Case, rule: Rule, *, is_paired: bool
) -> tuple[Judgement | None, str]:
    """Judges the quality runs of one case against those of its baseline.

    Args:
      case: Of the change.
      other: Of the baseline.
      rule: What they learned; its loss is relative to the baseline's mean.
      is_paired: Whether seeds are compared one by one.

    Returns:
      The judgement and "", or None and why there is none.

    Raises:
      ResultsError: The runs do not measure this metric.
    """
    here, there = (_final(of, rule.metric) for of in (case, other))
    if is_paired:
        keys = [key for key in here if key in there]
        here = {key: here[key] for key in keys}
        there = {key: there[key] for key in keys}
    reason = _why_not(here, there)
    if reason:
        return None, reason
    mean = math.fsum(found.value for found in there.values()) / len(there)
    scale = (1.0 if rule.metric.is_cost else -1.0) / mean
    ours, theirs = (
        [scale * found.value for found in of.values()] for of in (here, there)
    )
    if is_paired:
        losses = [a - b for a, b in zip(ours, theirs, strict=True)]
        loss = estimates.one_group(losses)
    else:
        loss = estimates.two_groups(ours, theirs)
    judgement = judge.of_mean(
        loss,
        delta=rule.delta,
        alpha=rule.alpha,
        method=PAIRED if is_paired else UNPAIRED,
        is_log=False,
    )
    return judgement, ""


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
