"""What a gate judges: figures that repetitions compare, and counts; one case judged."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

from results import errors
from results.figures import learning_gains, scaling, trial_metrics
from results.records import measuring
from results.records.models import TrialStatus
from results.statistics import estimates, group_sequential
from results.statistics.group_sequential import FEWEST_REPETITIONS, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from results.figures.trial_metrics import TrialMetric
    from results.records.models import MetricFacts
    from results.statistics.estimates import Estimate, Mean
    from results.statistics.group_sequential import Judgement
    from results.study.cases import Case, Entry


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    name: str  # As on the command line.
    is_cost: bool  # Whether less of it is better.
    worse: str  # What a change is that makes it worse: slower, larger, or worse.
    is_quality: bool = False  # Whether it is what a quality run has learned.
    tolerance: float = 0.05  # The loss that a gate accepts unless it is told another.
    of: Callable[[Entry], float] = lambda _: math.nan  # Its value in an ok trial.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a gate judges, and how strictly."""

    metric: Metric  # A figure of trials.
    delta: float  # The loss that matters, as a ratio.
    alpha: float  # The probability that a loss of exactly ``delta`` passes.

    def __post_init__(self) -> None:
        group_sequential.check_delta(self.delta)
        group_sequential.check_alpha(self.alpha)


THROUGHPUT = Metric(
    name="throughput", is_cost=False, of=scaling.throughput_of, worse="slower"
)
EFFICIENCY = Metric(
    name="efficiency", is_cost=False, of=scaling.throughput_of, worse="less efficient"
)
"""Of a gate of two revisions only: a throughput over that of the fewest replicas."""
OF_BLOCKS = (THROUGHPUT, EFFICIENCY)
FIRST_STEP = "time_to_first_step"
METRICS = {
    metric.name: metric
    for metric in (
        THROUGHPUT,
        Metric(
            name=FIRST_STEP,
            is_cost=True,
            of=scaling.time_to_first_step_of,
            worse="slower",
        ),
        Metric(
            name="peak_memory", is_cost=True, of=scaling.peak_memory_of, worse="larger"
        ),
    )
}


def quality_metric(facts: MetricFacts) -> Metric:
    return Metric(
        name=facts.name,
        is_cost=not facts.is_higher_better,
        of=functools.partial(learning_gains.reached, metric=facts.name),
        worse="worse",
        is_quality=True,
        tolerance=facts.tolerance,
    )


def plugin_metric(metric: TrialMetric) -> Metric:
    if metric.is_higher_better is None:
        raise errors.ResultsError(
            f"metric {metric.name!r} does not say whether more of it is better, so it"
            " cannot be judged; set is_higher_better in its package"
        )
    return Metric(
        name=metric.name,
        is_cost=not metric.is_higher_better,
        of=functools.partial(trial_metrics.positive_value_of, metric),
        worse="worse",
        tolerance=metric.tolerance,
    )


def metric_of(name: str) -> Metric:
    metric = METRICS.get(name)
    if metric is not None:
        return metric
    own = trial_metrics.find(name, METRICS)
    if own is not None:
        return plugin_metric(own)
    if name == EFFICIENCY.name:
        raise errors.ResultsError(
            f"{name} of two studies cannot be judged: both sides must take turns in the"
            " same rounds; use gate --metric efficiency beside a revision of git"
        )
    raise errors.ResultsError(
        f"unknown metric {name!r}; allowed are {_known()}. What quality runs"
        " learn differs by seed, not by run, and has no such ratio: see"
        " 'Learning' in the report of a sweep with --budget, or use gate --metric"
    )


def _known(*others: str) -> str:
    return ", ".join((*METRICS, *others, *trial_metrics.names()))


def metric_of_gate(name: str, declared: Iterable[MetricFacts]) -> Metric:
    learned = {
        facts.name: quality_metric(facts) for facts in declared if facts.is_judged
    }
    known = METRICS | {EFFICIENCY.name: EFFICIENCY} | learned
    if name not in known:
        own = trial_metrics.find(name, known)
        if own is not None:
            return plugin_metric(own)
        raise errors.ResultsError(
            f"unknown metric {name!r}; allowed are {_known(EFFICIENCY.name)}, and"
            f" of what this workload learns {', '.join(learned) or 'nothing'}"
        )
    return known[name]


def log_ratios(first: Case, second: Case, metric: Metric) -> list[float]:
    """Returns ln(first / second) of each repetition that has both, in order."""
    is_interleaved = first.is_interleaved and second.is_interleaved
    if is_interleaved and metric.name == THROUGHPUT.name:
        return [
            estimates.mean(rounds_of_run)
            for rounds_of_run in scaling.block_logs(first, second)
        ]
    here, there = _positive(first, metric), _positive(second, metric)
    return [math.log(here[key]) - math.log(there[key]) for key in here if key in there]


def logs(case: Case, metric: Metric) -> list[float]:
    return [math.log(value) for value in _positive(case, metric).values()]


def mean_of_two_studies(
    case: Case, here: Sequence[float], other: Case, there: Sequence[float]
) -> Mean:
    """Returns the mean difference of two groups, which no round has in common."""
    factor = max(
        estimates.widening(len(logs), is_stopped_on_width=side.is_stopped_on_width)
        for side, logs in ((case, here), (other, there))
    )
    return estimates.two_groups(here, there).widened(factor)


class Ratio(NamedTuple):
    """What a case has over the same case of another study."""

    first: Case
    second: Case
    estimate: Estimate  # With its own 95 % interval.
    # Two-sided, of the ratio 1, adjusted for all cases; None where there is one run.
    p_value: float | None


def ratios(pairs: Iterable[tuple[Case, Case]], metric: Metric) -> list[Ratio]:
    """Returns the ratios of cases of two studies: advice, since days vary."""
    means = []
    for case, other in pairs:
        here, there = logs(case, metric), logs(other, metric)
        if here and there:
            means.append((case, other, mean_of_two_studies(case, here, other, there)))
    tested = {index: mean.p_value() for index, (*_, mean) in enumerate(means)}
    p_values = estimates.holm(tested)
    method = group_sequential.OF_TWO_STUDIES
    return [
        Ratio(
            case,
            other,
            estimates.from_logs(
                mean.estimate(method, otherwise=estimates.NO_REPETITIONS)
            ),
            p_values.get(index),
        )
        for index, (case, other, mean) in enumerate(means)
    ]


def _positive(case: Case, metric: Metric) -> dict[tuple[int, int], float]:
    """Returns values by repetition; zero stands for "could not be read"."""
    values = scaling.values(case, metric.of)
    return {key: value for key, value in values.items() if value > 0}


WORST_FIRST = (Verdict.REGRESS, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.IMPROVE)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=WORST_FIRST.index)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JudgedCase:
    name: str  # Backend, replicas and scaling modes; or the name of a micro-benchmark.
    # The verdict on the metric; None where either side has fewer than two repetitions.
    judgement: Judgement | None
    # Why there is no verdict; of runs that were trained, how many failed.
    reason: str = ""
    case: Case | None = None  # The case; None of a micro-benchmark.
    # Verdicts on what else was measured of the case, by what it is.
    others: Mapping[str, Judgement] = dataclasses.field(default_factory=dict)
    # A count of both sides, of a case that is one; it has no judgement.
    count: Count | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The worst of its verdicts; None where there is none."""
        if self.count is not None:
            return self.count.verdict
        if self.judgement is None:
            return None
        verdicts = {each.verdict for each in (self.judgement, *self.others.values())}
        # What cannot pass by itself is inconclusive, and only ever a regression.
        if not verdicts & {Verdict.REGRESS, Verdict.INCONCLUSIVE}:
            return self.judgement.verdict
        return worst(verdicts)


def name_of(case: Case) -> str:
    modes = "+".join(mode.value for mode in case.modes)
    return f"{case.spec.backend} x{case.spec.num_replicas}, {modes}"


# Within a side a count has no spread, so any difference between sides is the code's.

ROSE, FELL = "rose", "fell"
"""What a count did that nobody asked to judge."""
_COUNTED = (TrialStatus.OK.value, TrialStatus.DISCARDED.value)
_SMALL = 5e-4  # below it, one digit would say 0.0 %


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    name: str  # What was counted.
    before: float  # Of the baseline.
    after: float  # Of the change.
    n: int  # Runs of the side that has fewer.
    # Whether somebody said that it matters; otherwise it is shown only.
    is_judged: bool = True

    @property
    def is_equal(self) -> bool:
        return self.before == self.after

    @property
    def verdict(self) -> Verdict:
        """Any rise is a regression: it is in the code, and not in the machine."""
        if self.is_equal or not self.is_judged:
            return Verdict.PASS
        return Verdict.REGRESS if self.after > self.before else Verdict.IMPROVE

    @property
    def word(self) -> str:
        """Its verdict; of one that is only shown, what it did."""
        if self.is_judged or self.is_equal:
            return self.verdict.value
        return ROSE if self.after > self.before else FELL

    @property
    def rise(self) -> float | None:
        """As a share of what it was; None from 0."""
        return self.after / self.before - 1 if self.before else None


def compare(
    pairs: Sequence[tuple[Case, Case]], names: Collection[str]
) -> tuple[tuple[JudgedCase, ...], tuple[JudgedCase, ...]]:
    """Returns the counts of all cases: what is judged, and what is only shown."""
    judged: list[JudgedCase] = []
    noted: list[JudgedCase] = []
    for case, other in pairs:
        program = case.spec.program
        units = measuring.UNITS if program is None else program.count_names
        for name in units:
            is_judged = program is not None or name in names
            if not is_judged and not _values(case, name):
                continue
            count, reason = count_of(case, other, name, is_judged=is_judged)
            (judged if is_judged else noted).append(
                JudgedCase(
                    name=f"{name_of(case)}: {measuring.step_count_words(name)}",
                    case=case,
                    judgement=None,
                    reason=reason,
                    count=count,
                )
            )
    return tuple(judged), tuple(noted)


def count_of(
    case: Case, other: Case, name: str, *, is_judged: bool = True
) -> tuple[Count | None, str]:
    sides = {"this tree": _values(case, name), "the baseline": _values(other, name)}
    for side, values in sides.items():
        if not values:
            return None, f"no run of {side} has it"
    fewest = min(map(len, sides.values()))
    # Of a step nobody has to believe the program: what counts it was looked at.
    if fewest < FEWEST_REPETITIONS and name not in measuring.UNITS:
        return None, (
            f"{fewest} run(s) of a side have it, and {FEWEST_REPETITIONS} show whether"
            " it is the same in each"
        )
    for side, values in sides.items():
        low, high = min(values), max(values)
        if low != high:
            return None, (
                f"it varies between runs of {side}, from {low:.15g} to {high:.15g}, so"
                " it is no count"
                + "; leave its --count out, or print what is the same in each run"
                * is_judged
            )
    (after, *_), (before, *_) = sides.values()
    return Count(
        name=name, before=before, after=after, n=fewest, is_judged=is_judged
    ), ""


def share_text(before: float, after: float) -> str:
    """Writes a change as a share of what it was: ``+3.0 %``; ``-`` from 0."""
    if not before:
        return "-"
    share = after / before - 1
    if share and abs(share) < _SMALL:
        return f"{100 * share:+.2g} %"
    return f"{100 * share:+.1f} %"


def exact_text(before: float, after: float) -> str:
    """Writes a count of both sides, such as ``exact: 1024 to 1056``."""
    if before == after:
        return f"exact: {after:.15g}"
    return f"exact: {before:.15g} to {after:.15g}"


def _values(case: Case, name: str) -> list[float]:
    """Values of a count in its trials, discarded ones too: load changes no count."""
    results = [
        entry.trial.result
        for entry in case.entries
        if entry.state in _COUNTED and entry.trial is not None
    ]
    return [
        metric.value
        for result in results
        if result is not None
        for metric in result.window_metrics
        if metric.name == name
    ]
