"""A gate: every case of a change beside the same case of its baseline, judged.

The baseline is another revision, measured in the same rounds
(``results/judging/paired_gate.py``), or a stored study. That is weaker: its rounds are
not those of the change, so nothing cancels, and what varies between days is in no
interval: such a verdict is advice.

The verdict of a gate is the worst of its cases. There is none on a machine that
disturbed too many turns, and none where the twin (one case measured twice) differs from
its case: a design that finds a difference between equal programs can find any.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results import errors
from results.figures import relay
from results.judging import (
    gate_logs,
    gate_metrics,
    judged_case,
    paired_gate,
    quality_gate,
)
from results.judging.gate_metrics import Rule
from results.judging.judged_case import JudgedCase, name_of, worst
from results.records.masked import shared
from results.statistics import estimates, generations, group_sequential
from results.statistics.group_sequential import Verdict
from results.study import case_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.figures.relay import Load, TurnCounts, Twin
    from results.judging.gate_metrics import Judged
    from results.judging.paired_gate import Paired
    from results.statistics.estimates import Estimate
    from results.statistics.group_sequential import Judgement
    from results.study.cases import Case, Study


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A gate after measuring."""

    metric: Judged  # What was judged.
    baseline: str  # Its name: a revision, or a study.
    delta: float  # The slowdown that matters, as a ratio.
    alpha: float  # The probability that a slowdown of exactly ``delta`` passes.
    cases: tuple[JudgedCase, ...]  # In planned order.
    twin: Twin | None  # The case that was measured twice; None where none was.
    turns: TurnCounts  # How many turns were void.
    # What others used of the machine; None where it changes nothing, as of what runs
    # have learned.
    load: Load | None = None
    is_weaker: bool = False  # Whether the baseline is a stored study.
    # Whether the verdict decides nothing: the sides were measured on different days,
    # and what varies between days is in no interval.
    is_advice: bool = False
    # What differs between the studies although it must not, one line each; such a gate
    # is shown and does not pass.
    differences: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()  # Trials that are not ok, one line each.
    num_ok: int = 0  # Trials that are.
    # How a gate of two revisions looked at its generations; None of others.
    paired: Paired | None = None
    # The time of steps in a row over that of steps of turns, which it checks; None
    # without sustained stretches.
    sustained: Estimate | None = None
    # What is counted of each case and judged, exactly.
    counts: tuple[JudgedCase, ...] = ()
    # What is counted besides: shown where it differs, and in no verdict.
    noted: tuple[JudgedCase, ...] = ()
    # The digests of the code, where that of both sides is the same and nothing had to
    # be measured; empty otherwise.
    equal_code: tuple[str, ...] = ()

    @property
    def judged(self) -> tuple[JudgedCase, ...]:
        """What was timed, then what was counted, as far as it decides."""
        return (*self.cases, *self.counts)

    @property
    def all_cases(self) -> tuple[JudgedCase, ...]:
        """What is judged, then counts that differ and that nobody asked to judge."""
        differ = (case for case in self.noted if case.count and not case.count.is_equal)
        return (*self.judged, *differ)

    @property
    def has_failed_trials(self) -> bool:
        """Whether a trial failed for another reason than what others did meanwhile."""
        harmless = (": void: ", ": missing: ")
        return not all(any(of in text for of in harmless) for text in self.failures)

    @property
    def has_risen(self) -> bool:
        """Whether a count that is judged rose, which no disturbed turn changes."""
        return not (self.is_advice or self.has_failed_trials) and any(
            case.verdict is Verdict.REGRESS for case in self.counts
        )

    @property
    def why_unfit(self) -> str:
        """Why the measurement gives no verdict; empty if it does."""
        if self.turns.is_unfit:
            return (
                f"{self.turns.num_void} of {self.turns.num_turns} blocks are discarded"
                f" ({self.turns.reasons[0][0]}), more than {relay.MOST_VOID:.0%}"
            )
        if self.twin is not None and self.twin.differs:
            ratio = self.twin.strict
            assert ratio is not None
            return (
                f"the A/A control of {name_of(self.twin.case)} differs from it: ratio"
                f" {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
                f" ({ratio.confidence:.0%}) of equal programs"
            )
        return ""

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict of the cases; None if there is none of the whole.

        A case without a verdict makes the whole inconclusive, and so does a baseline
        that is not comparable, or load that was not recorded, unless another case
        regresses. A count that rose is a regression on any machine.
        """
        if self.equal_code:
            return Verdict.PASS
        if self.has_risen:
            return Verdict.REGRESS
        if self.why_unfit or not self.cases:
            return None
        found = {case.verdict or Verdict.INCONCLUSIVE for case in self.judged}
        if self.differences or (self.load is not None and self.load.num_unknown):
            found.add(Verdict.INCONCLUSIVE)
        if self.paired is not None and self.paired.has_slow_processes:
            found.add(Verdict.REGRESS)
        return worst(found)


def of_revisions(study: Study, rule: Rule, *, baseline: str) -> Gate:
    """Judges a study that holds every case twice: of this tree, and of a revision."""
    cases = [*study.cases, *study.other_revisions]
    if rule.metric.is_quality:
        cases = [*study.quality_runs]
    others = {case_pairs.key_of(case): case for case in cases if case.spec.revision}
    pairs = [
        (case, others[case_pairs.key_of(case)])
        for case in cases
        if not case.spec.revision
    ]
    if rule.metric.is_quality:
        gate = _conclude(study, pairs, rule, baseline, is_paired=True)
        return _with_counts(gate, study, pairs)
    design = study.plan.measuring.gate
    planned = () if design is None else design.looks
    judged = paired_gate.judge(pairs, rule, planned)
    gate = dataclasses.replace(
        _of_study(study, rule, baseline, judged.cases),
        paired=judged.paired,
        sustained=gate_logs.sustained_over_turns(pairs),
    )
    return _with_counts(gate, study, pairs)


def of_equal_code(rule: Rule, digests: tuple[str, ...], *, baseline: str) -> Gate:
    """Returns the gate of two sides with the same code: nothing is to be measured."""
    return Gate(
        metric=rule.metric,
        baseline=baseline,
        delta=rule.delta,
        alpha=rule.alpha,
        cases=(),
        twin=None,
        turns=relay.TurnCounts(num_turns=0, num_void=0, num_lost=0, reasons=()),
        equal_code=digests,
    )


def of_studies(
    study: Study,
    stored: Study,
    rule: Rule,
    *,
    baseline: str,
) -> Gate:
    """Judges a study of this tree against a stored one."""
    check_stored(rule, baseline)
    are_quality_runs = rule.metric.is_quality
    pairs = case_pairs.pairs(study, stored, are_quality_runs=are_quality_runs)
    differences = [
        *case_pairs.differences(study, stored, are_quality_runs=are_quality_runs)
    ]
    for case, other in pairs:
        differences += case_pairs.settings(case, other)
    gate = _conclude(study, pairs, rule, baseline, is_paired=False)
    return dataclasses.replace(
        _with_counts(gate, study, pairs),
        is_weaker=True,
        # What runs have learned does not depend on the day.
        is_advice=not are_quality_runs,
        differences=tuple(dict.fromkeys(differences)),
    )


def check_stored(rule: Rule, baseline: str) -> None:
    """Checks that a metric can be judged against a stored study."""
    if rule.metric is gate_metrics.EFFICIENCY:
        raise errors.ResultsError(
            f"efficiency against {baseline} cannot be judged: both sides must take"
            " blocks in the same rounds; use gate --baseline with a revision of git"
        )


def _conclude(
    study: Study,
    pairs: Sequence[tuple[Case, Case]],
    rule: Rule,
    baseline: str,
    *,
    is_paired: bool,
) -> Gate:
    """Judges pairs of cases one by one, and adds what failed in the study."""
    judged = quality_gate.judged if rule.metric.is_quality else _judged
    cases = []
    for case, other in pairs:
        judgement, reason = judged(case, other, rule, is_paired=is_paired)
        cases.append(
            JudgedCase(
                name=name_of(case), case=case, judgement=judgement, reason=reason
            )
        )
    return _of_study(study, rule, baseline, cases)


def _with_counts(gate: Gate, study: Study, pairs: Sequence[tuple[Case, Case]]) -> Gate:
    """Adds what was counted, exactly: what is judged, and what is only shown."""
    design = study.plan.measuring.gate
    counts, noted = judged_case.compare(pairs, () if design is None else design.counts)
    return dataclasses.replace(gate, counts=counts, noted=noted)


def _of_study(
    study: Study, rule: Rule, baseline: str, cases: Sequence[JudgedCase]
) -> Gate:
    failures = tuple(
        f"{entry.spec.backend} x{entry.spec.num_replicas}"
        f"{' of ' + entry.spec.revision if entry.spec.revision else ''}, repetition"
        f" {entry.spec.repetition_index}: {entry.state}: {entry.reason}"
        for entry in study.planned
        if not entry.is_ok
    )
    return Gate(
        metric=rule.metric,
        baseline=shared(baseline),
        delta=rule.delta,
        alpha=rule.alpha,
        cases=tuple(cases),
        twin=relay.twin_of(study),
        turns=relay.count_turns(study),
        load=None if rule.metric.is_quality else relay.load_of_study(study),
        failures=tuple(map(shared, failures)),
        num_ok=sum(entry.is_ok for entry in study.planned),
    )


def _judged(
    case: Case, other: Case, rule: Rule, *, is_paired: bool
) -> tuple[Judgement | None, str]:
    """The verdict on a figure of two studies, or why there is none."""
    assert not is_paired
    sign = 1.0 if rule.metric.is_cost else -1.0
    groups = [gate_metrics.logs(of, rule.metric) for of in (case, other)]
    costs = [[sign * log for log in group] for group in groups]
    fewest = min(map(len, costs))
    if fewest < group_sequential.FEWEST_GENERATIONS:
        return None, (
            f"{fewest} run(s) have both, a verdict needs"
            f" {group_sequential.FEWEST_GENERATIONS} or more"
        )
    factor = max(
        generations.widening(len(logs), is_stopped_on_width=of.is_stopped_on_width)
        for of, logs in zip((case, other), costs, strict=True)
    )
    change, stored = costs
    judgement = group_sequential.of_mean(
        estimates.two_groups(change, stored).widened(factor),
        delta=rule.delta,
        alpha=rule.alpha,
        method=group_sequential.OF_TWO_STUDIES,
    )
    return judgement, ""


def of_plan(study: Study) -> Gate | None:
    """Returns the gate that the plan of a study records, with its verdict.

    None where there is none, and where its baseline is not in the study.
    """
    design = study.plan.measuring.gate
    if design is None or not (study.other_revisions or study.quality_runs):
        return None
    metric = gate_metrics.metric_of_gate(design.metric, study.plan.metrics)
    rule = Rule(metric=metric, delta=design.delta, alpha=design.alpha)
    has_revision = any(entry.spec.revision for entry in study.planned)
    if not has_revision:
        return None
    return of_revisions(study, rule, baseline=design.baseline)


def has_risen(study: Study) -> bool:
    """Whether a count that is judged rose, which no further generation changes."""
    found = of_plan(study)
    return found is not None and found.has_risen


def is_decided(study: Study) -> bool:
    """Whether a look after the generations so far ends the gate.

    It ends with a clear verdict, after the last look, and where the machine disturbed
    too much for any verdict. Between two looks it goes on, unless a count rose.
    """
    design = study.plan.measuring.gate
    assert design is not None
    found = of_plan(study)
    if found is not None and found.has_risen:
        return True
    number = study.plan.repeats
    if number >= design.looks[-1] or relay.count_turns(study).is_unfit:
        return True
    if number not in design.looks:
        return False
    return (
        found is not None
        and found.paired is not None
        and found.paired.decided_after is not None
        and not found.why_unfit
    )
