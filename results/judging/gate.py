"""A gate: every case of a change beside the same case of its baseline, judged.

The baseline is another revision, measured in the same rounds (``paired_gate.py``), or a
stored study: then nothing cancels, what varies between days is in no interval, and the
verdict is advice. The verdict is the worst of the cases. There is none where the
machine disturbed too many blocks, or where the A/A control differs from its case: a
design that finds a difference between equal programs can find any.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from results import errors
from results.figures import conditions, learning_gains
from results.judging import gate_metrics, paired_gate
from results.judging.gate_metrics import JudgedCase, Rule, name_of, worst
from results.records.models import GateCase, GateRecord
from results.records.record_base import MAX_LINE
from results.records.texts import shared
from results.statistics import group_sequential
from results.statistics.estimates import Estimate
from results.statistics.group_sequential import Judgement, Verdict
from results.store import study_store
from results.study import case_pairs

if TYPE_CHECKING:
    from results.figures.conditions import AaControl, BlockCounts, Load
    from results.judging.gate_metrics import Metric
    from results.judging.paired_gate import Paired, Pairs
    from results.records.models import QualityMetric
    from results.store.study_store import Store
    from results.study.cases import Case, Key, Study


GATE_NAME: Final = "gate.json"
NO_VERDICT: Final = "no verdict"
VERB: Final = "gate"
_SOME_FAILED, _NOTHING_MEASURED, _UNFIT = 4, 5, 6
_CODES: Final = {
    Verdict.PASS: 0,
    Verdict.IMPROVE: 0,
    Verdict.REGRESS: 1,
    Verdict.INCONCLUSIVE: 3,
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A change that was judged, and why it has its verdict."""

    metric: Metric  # What was judged.
    baseline: str  # Its name: a revision, or a study.
    delta: float  # The slowdown that matters, as a ratio.
    alpha: float  # The probability that a slowdown of exactly ``delta`` passes.
    cases: tuple[JudgedCase, ...]  # In planned order.
    aa_control: AaControl | None = None  # The case that was measured twice.
    blocks: BlockCounts = conditions.NO_BLOCKS  # How many blocks were discarded.
    # What others used of the machine; None of what runs have learned.
    load: Load | None = None
    is_weaker: bool = False  # Whether the baseline is a stored study.
    # Whether it decides nothing: what varies between days is in no interval.
    is_advice: bool = False
    # What differs between studies although it must not; then nothing passes.
    differences: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()  # Trials that are not ok, one line each.
    num_ok: int = 0  # Trials that are.
    # How a gate of two revisions looked at its repetitions; None of others.
    paired: Paired | None = None
    # Time of steps in a row over steps of blocks; None without sustained stretches.
    sustained: Estimate | None = None
    # What is counted of each case and judged, exactly.
    counts: tuple[JudgedCase, ...] = ()
    # What is counted besides: shown where it differs, and in no verdict.
    noted: tuple[JudgedCase, ...] = ()
    # Digests of the code where both sides have the same; empty otherwise.
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
        harmless = (": discarded: ", ": missing: ")
        return not all(any(word in text for word in harmless) for text in self.failures)

    @property
    def has_risen(self) -> bool:
        """Whether a count that is judged rose, which no disturbed block changes."""
        return not (self.is_advice or self.has_failed_trials) and any(
            case.verdict is Verdict.REGRESS for case in self.counts
        )

    @property
    def why_unfit(self) -> str:
        """Why the measurement gives no verdict; empty if it does."""
        if self.blocks.is_unfit:
            return (
                f"{self.blocks.num_discarded} of {self.blocks.num_blocks} blocks are "
                f"discarded ({self.blocks.reasons[0][0]}), more than "
                f"{conditions.MOST_DISCARDED:.0%}"
            )
        if self.aa_control is not None and self.aa_control.differs:
            ratio = self.aa_control.strict
            assert ratio is not None
            return (
                f"the A/A control of {name_of(self.aa_control.case)} differs from it: "
                f"ratio {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
                f" ({ratio.confidence:.0%}) of equal programs"
            )
        return ""

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict of the cases; None if there is none of the whole."""
        if self.equal_code:
            return Verdict.PASS
        if self.has_risen:
            return Verdict.REGRESS
        if self.why_unfit or not self.cases:
            return None
        verdicts = {case.verdict or Verdict.INCONCLUSIVE for case in self.judged}
        if self.differences or (self.load is not None and self.load.num_unknown):
            verdicts.add(Verdict.INCONCLUSIVE)
        if self.paired is not None and self.paired.singles.holds:
            verdicts.add(Verdict.REGRESS)
        return worst(verdicts)

    @property
    def exit_code(self) -> int:
        """The exit code: trials that are not ok come before a verdict."""
        if self.has_risen:
            return _CODES[Verdict.REGRESS]
        is_discarded = any(": discarded: " in failure for failure in self.failures)
        if self.failures and (self.has_failed_trials or not is_discarded):
            return _SOME_FAILED if self.num_ok else _NOTHING_MEASURED
        if self.failures or self.why_unfit or self.verdict is None:
            return _UNFIT
        return _CODES[Verdict.INCONCLUSIVE if self.is_advice else self.verdict]

    @property
    def verdict_word(self) -> str:
        """The verdict as a word, also where there is none."""
        return NO_VERDICT if self.verdict is None else self.verdict.value

    @property
    def case_records(self) -> tuple[GateCase, ...]:
        """The cases as ``gate.json`` has them."""
        return tuple(map(_record_of, self.all_cases))

    def record(self, *, headline: str, notes: Iterable[str] = ()) -> GateRecord:
        """Returns what ``gate.json`` holds, with what is said of the gate in words."""
        return GateRecord(
            verdict=self.verdict_word,
            is_pass=self.exit_code == 0,
            headline=headline,
            metric=self.metric.name,
            worse=self.metric.worse,
            baseline=self.baseline[:MAX_LINE],
            delta=self.delta,
            alpha=self.alpha,
            exit_code=self.exit_code,
            unfit=self.why_unfit[:MAX_LINE],
            is_weaker=self.is_weaker,
            is_advice=self.is_advice,
            notes=tuple(notes),
            cases=self.case_records,
            failures=tuple(failure[:MAX_LINE] for failure in self.failures),
        )


def _record_of(case: JudgedCase) -> GateCase:
    judgement, verdict, count = case.judgement, case.verdict, case.count
    backend = "" if case.case is None else case.case.spec.backend
    fields: dict[str, Any] = {"verdict": NO_VERDICT, "reason": case.reason[:MAX_LINE]}
    if count is not None:
        fields = {"verdict": count.word, "slowdown": count.rise, "n": count.n}
        fields |= {"before": count.before, "after": count.after}
    elif judgement is not None and verdict is not None:
        slowdown = judgement.slowdown
        ends = {"slowdown": slowdown.value, "low": slowdown.low, "high": slowdown.high}
        fields = {
            # None beyond all numbers, where half of the runs failed.
            name: ratio - 1 if ratio is not None and math.isfinite(ratio) else None
            for name, ratio in ends.items()
        }
        fields |= {"verdict": verdict.value, "n": slowdown.n}
    return GateCase(name=case.name, backend=backend, **fields)


def write_gate(store: Store, record: GateRecord) -> None:
    store.write_listed(GATE_NAME, record)


def read_gate(store: Store) -> GateRecord | None:
    """Returns what a gate concluded, from its ``gate.json``; None if it has not.

    Raises CorruptRecordError or NewerSchemaError where it cannot be read.
    """
    path = store.root / GATE_NAME
    return store.shown(study_store.read_record(path, "gate", GateRecord))


def judge_revisions(study: Study, rule: Rule, *, baseline: str) -> Gate:
    """Judges a study that holds every case twice: of this tree, and of a revision.

    ``baseline`` is what readers call that revision. A quality metric is judged by seed,
    others in the rounds that both sides share. Raises ResultsError for an efficiency of
    a single number of replicas, and for what the runs have not learned.
    """
    is_quality = rule.metric.is_quality
    timed = (*study.cases, *study.other_revisions)
    cases = study.quality_runs if is_quality else timed
    others = {case_pairs.key_of(case): case for case in cases if case.spec.revision}
    own = [case for case in cases if not case.spec.revision]
    pairs = [(case, others[case_pairs.key_of(case)]) for case in own]
    if is_quality:
        judged = _judged(pairs, rule, is_paired=True)
        return _gate(study, pairs, rule, baseline, judged)
    design = study.plan.measuring.gate
    judged, paired = paired_gate.judge(
        pairs, rule, () if design is None else design.looks
    )
    sustained = paired_gate.sustained_over_blocks(pairs)
    more = {"paired": paired, "sustained": sustained}
    return _gate(study, pairs, rule, baseline, judged, **more)


def judge_equal_code(rule: Rule, digests: tuple[str, ...], *, baseline: str) -> Gate:
    """Returns the gate of two sides with the same code: nothing is to be measured."""
    return Gate(
        metric=rule.metric,
        baseline=baseline,
        delta=rule.delta,
        alpha=rule.alpha,
        cases=(),
        equal_code=digests,
    )


def judge_studies(study: Study, stored: Study, rule: Rule, *, baseline: str) -> Gate:
    """Judges a study against a stored one, which readers call ``baseline``.

    Nothing passes where machines, orders or budgets differ. What runs have learned gets
    a verdict, other figures are advice: what varies between days is in no interval.
    Raises ResultsError for an efficiency, and where no case is in both.
    """
    check_stored(rule, baseline)
    is_quality = rule.metric.is_quality
    pairs = case_pairs.pairs(study, stored, are_quality_runs=is_quality)
    differences = case_pairs.differences(study, stored, are_quality_runs=is_quality)
    more = {
        "is_weaker": True,
        # What runs have learned does not depend on the day.
        "is_advice": not is_quality,
        "differences": differences,
    }
    judged = _judged(pairs, rule, is_paired=False)
    return _gate(study, pairs, rule, baseline, judged, **more)


def check_stored(rule: Rule, baseline: str) -> None:
    if rule.metric is gate_metrics.EFFICIENCY:
        raise errors.ResultsError(
            f"efficiency against {baseline} cannot be judged: both sides must take"
            " turns in the same rounds; use gate --baseline with a revision of git"
        )


def _gate(
    study: Study, pairs: Pairs, rule: Rule, baseline: str, cases: Any, **more: Any
) -> Gate:
    design = study.plan.measuring.gate
    counts, noted = gate_metrics.compare(pairs, () if design is None else design.counts)
    failures = (
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
        aa_control=conditions.aa_control_of(study),
        blocks=conditions.count_blocks(study),
        load=None if rule.metric.is_quality else conditions.load_of_study(study),
        failures=tuple(map(shared, failures)),
        num_ok=sum(entry.is_ok for entry in study.planned),
        counts=counts,
        noted=noted,
        **more,
    )


def _judged(pairs: Pairs, rule: Rule, *, is_paired: bool) -> list[JudgedCase]:
    judged = []
    for case, other in pairs:
        if rule.metric.is_quality:
            found = judge_quality(case, other, rule, is_paired=is_paired)
        else:
            found = _judge_two_studies(case, other, rule)
        judged.append(JudgedCase(name_of(case), *found, case))
    return judged


def _judge_two_studies(
    case: Case, other: Case, rule: Rule
) -> tuple[Judgement | None, str]:
    """The verdict on a figure of two studies, or why there is none."""
    sign = 1.0 if rule.metric.is_cost else -1.0
    change, stored = (
        [sign * log for log in gate_metrics.logs(side, rule.metric).values()]
        for side in (case, other)
    )
    fewest, needed = min(len(change), len(stored)), group_sequential.FEWEST_REPETITIONS
    if fewest < needed:
        return None, f"{fewest} run(s) have both, a verdict needs {needed} or more"
    mean = gate_metrics.mean_of_two_studies(case, change, other, stored)
    return group_sequential.judge_mean(mean, delta=rule.delta, alpha=rule.alpha), ""


# A gate on what is learned: quality runs of a change beside its baseline's.
#
# Both sides train with the same seeds. The loss of a seed is how much worse the change
# ended, relative to the median quality q of the baseline, which is taken as known.
#
# The *median* loss over seeds is judged, by its exact interval from ordered losses (the
# sign test): with one run in five that fails, a mean loss of exactly ``delta`` passed
# in 0.31 to 0.60 of gates. The median says nothing of failures, so their share is
# judged too: a run *fails* if it ends worse than q by more than ``FAILED`` of it. Of
# the seeds for which one side alone failed, as many would be of either (McNemar,
# Psychometrika 12, 1947). Of ``alpha``, three quarters are for the median, one for
# failures. Against a stored study runs are paired in the order of their seeds.

FAILED = 0.5
OF_MEDIAN, OF_FAILURES = 0.75, 0.25
_MEDIAN = "exact interval of the median over seeds (sign test) of the loss relative to"
PAIRED = f"{_MEDIAN} the baseline's median quality, both sides with the same seeds"
UNPAIRED = f"{_MEDIAN} the baseline's median quality, of two studies"


def fewest_seeds(alpha: float) -> int:
    """Returns how many seeds a verdict needs: that all are on one side is chance."""
    return math.ceil(-math.log2(OF_MEDIAN * alpha))


def judge_quality(
    case: Case, other: Case, rule: Rule, *, is_paired: bool
) -> tuple[Judgement | None, str]:
    here, there = (_ended(side, rule.metric) for side in (case, other))
    if is_paired:
        keys = here.keys() & there.keys()
        here, there = ({key: of[key] for key in keys} for of in (here, there))
    if reason := _why_not(here, there, fewest_seeds(rule.alpha)):
        return None, reason
    sign = 1.0 if rule.metric.is_cost else -1.0
    median = statistics.median(_costs(there, sign))
    ours, theirs = (
        [cost / abs(median) for cost in _costs(side, sign)] for side in (here, there)
    )
    return judge_losses(ours, theirs, rule, is_paired=is_paired)


def judge_losses(
    ours: Sequence[float], theirs: Sequence[float], rule: Rule, *, is_paired: bool
) -> tuple[Judgement, str]:
    """Judges costs of quality runs, and says how many fail; empty if none does.

    Costs are relative to the baseline's median, less is better, and infinite of a run
    that failed: those of the change, then those of its baseline, by seed
    (``is_paired``) or in order.
    """
    # Where both failed, neither is worse.
    losses = sorted(
        0.0 if a == b else a - b for a, b in zip(ours, theirs, strict=False)
    )
    low, high = (
        _median_bounds(losses, level) for level in (OF_MEDIAN * rule.alpha, rule.alpha)
    )
    verdict = group_sequential.verdict_of(low[0], high[1], margin=rule.delta)
    p_value, failures = _failures(ours, theirs)
    if p_value <= OF_FAILURES * rule.alpha:
        verdict = Verdict.REGRESS
    slowdown = Estimate(
        value=1 + statistics.median(losses),
        low=1 + low[0],
        high=1 + high[1],
        n=len(losses),
        unit="",
        method=PAIRED if is_paired else UNPAIRED,
        confidence=1 - 2 * rule.alpha,
    )
    judgement = Judgement(
        verdict=verdict, slowdown=slowdown, delta=rule.delta, alpha=rule.alpha
    )
    return judgement, failures


def _median_bounds(ordered: Sequence[float], level: float) -> tuple[float, float]:
    """Returns bounds each of which the median is beyond with a probability of level."""
    from scipy import special

    n = len(ordered)
    ranks = [k for k in range(1, n + 1) if special.bdtr(k - 1, n, 0.5) <= level]
    if not ranks:
        return -math.inf, math.inf
    return ordered[ranks[-1] - 1], ordered[n - ranks[-1]]


def _failures(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, str]:
    """Returns how probable more failures are, were both sides equal, and their text."""
    from scipy import special

    limit = statistics.median(theirs) + FAILED
    failed = [(a > limit, b > limit) for a, b in zip(ours, theirs, strict=False)]
    more = sum(a and not b for a, b in failed)
    fewer = sum(b and not a for a, b in failed)
    p_value = float(special.bdtrc(more - 1, more + fewer, 0.5)) if more else 1.0
    if not any(map(any, failed)):
        return p_value, ""
    here, there = map(sum, zip(*failed, strict=True))
    return p_value, (
        f"{here} of {len(failed)} runs of the change fail (end worse than the"
        f" baseline's median by more than {FAILED:.0%}), {there} of the"
        f" baseline: p = {p_value:.2g} (sign test)"
    )


def _ended(case: Case, metric: Metric) -> dict[Key, QualityMetric | None]:
    """The quality of each run at its end, None of one that failed."""
    ended: dict[Key, QualityMetric | None] = {
        entry.key: learning_gains.final(entry, metric.name) for entry in case.ok_entries
    }
    return ended | {entry.key: None for entry in case.failed_entries}


def _costs(metrics: dict[Key, QualityMetric | None], sign: float) -> list[float]:
    """Costs by seed, infinite of a run that failed."""
    ordered = (metrics[key] for key in sorted(metrics))
    return [math.inf if metric is None else sign * metric.value for metric in ordered]


def _why_not(
    here: dict[Key, QualityMetric | None],
    there: dict[Key, QualityMetric | None],
    needed: int,
) -> str:
    """Why two groups of runs give no verdict; empty if they do."""
    fewest = min(len(here), len(there))
    if fewest < needed:
        return f"{fewest} seed(s) have both, a verdict needs {needed} or more"
    protocols = {
        (metric.protocol, metric.num_examples)
        for metric in (*here.values(), *there.values())
        if metric is not None
    }
    if len(protocols) > 1:
        listed = " / ".join(
            f"{protocol or 'none'} ({number} examples)"
            for protocol, number in sorted(protocols)
        )
        return f"the protocols of the metric differ, so it is not comparable: {listed}"
    ended = [metric.value for metric in there.values() if metric is not None]
    if 2 * len(ended) <= len(there):
        return "half of the baseline's runs failed or more, so there is no median"
    median = statistics.median(ended)
    if median <= 0:
        return (
            f"the baseline's median is {median:.4g}, and a loss relative to it has no"
            " meaning; train longer"
        )
    return ""


def planned_gate(study: Study) -> Gate | None:
    """Returns the gate that the plan of a study records, with its verdict."""
    design = study.plan.measuring.gate
    if design is None or not any(entry.spec.revision for entry in study.planned):
        return None
    metric = gate_metrics.metric_of_gate(design.metric, study.plan.metrics)
    rule = Rule(metric=metric, delta=design.delta, alpha=design.alpha)
    return judge_revisions(study, rule, baseline=design.baseline)


def has_risen(study: Study) -> bool:
    """Whether a count that is judged rose, which no further repetition changes."""
    gate = planned_gate(study)
    return gate is not None and gate.has_risen


def is_decided(study: Study) -> bool:
    """Whether a look after the repetitions so far ends the gate."""
    design, number = study.plan.measuring.gate, study.plan.repeats
    assert design is not None
    gate = planned_gate(study)
    if gate is not None and gate.has_risen:
        return True
    if number >= design.looks[-1] or conditions.count_blocks(study).is_unfit:
        return True
    if number not in design.looks or gate is None or gate.why_unfit:
        return False
    return gate.paired is not None and gate.paired.decided_after is not None
