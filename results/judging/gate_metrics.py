"""What a gate judges: figures that repetitions compare, and counts; one case judged."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from results import errors
from results.figures import learning_gains, scaling, trial_metrics
from results.records import measuring
from results.records.models import TrialStatus
from results.statistics import estimates, group_sequential
from results.statistics.group_sequential import FEWEST_REPETITIONS, Verdict

if TYPE_CHECKING:
    from results.records.models import MetricFacts
    from results.statistics.estimates import Estimate, Mean
    from results.statistics.group_sequential import Judgement
    from results.study.cases import Case, Entry, Key


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a trial, and what a worse one is."""

    name: str  # As on the command line.
    of: Callable[[Entry], float] = lambda _: math.nan  # Its value in an ok trial.
    worse: str = "worse"  # What a change is that makes it worse, such as slower.
    is_cost: bool = True  # Whether less of it is better.
    is_quality: bool = False  # Whether it is what a quality run has learned.
    tolerance: float = 0.05  # The loss that a gate accepts unless it is told another.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a gate judges, and how strictly."""

    metric: Metric  # A figure of trials.
    delta: float  # The loss that matters, as a ratio.
    alpha: float  # The probability that a loss of exactly ``delta`` passes.

    def __post_init__(self) -> None:
        group_sequential.check_delta(self.delta)
        group_sequential.check_alpha(self.alpha)


THROUGHPUT = Metric("throughput", scaling.throughput_of, "slower", is_cost=False)
EFFICIENCY = dataclasses.replace(THROUGHPUT, name="efficiency", worse="less efficient")
"""Of a gate of two revisions only: a throughput over that of the fewest replicas."""
OF_BLOCKS = (THROUGHPUT, EFFICIENCY)
FIRST_STEP = "time_to_first_step"
METRICS: dict[str, Metric] = {
    THROUGHPUT.name: THROUGHPUT,
    FIRST_STEP: Metric(FIRST_STEP, scaling.time_to_first_step_of, "slower"),
    "peak_memory": Metric("peak_memory", scaling.peak_memory_of, "larger"),
}
"""Figures of trials by which studies are compared, by name."""


def quality_metric(facts: MetricFacts) -> Metric:
    return Metric(
        name=facts.name,
        is_cost=not facts.is_higher_better,
        of=functools.partial(learning_gains.reached, metric=facts.name),
        is_quality=True,
        tolerance=facts.tolerance,
    )


def _plugin_metric(name: str, built_in: Collection[str]) -> Metric | None:
    metric = trial_metrics.find(name, built_in)
    if metric is None:
        return None
    if metric.is_higher_better is None:
        raise errors.ResultsError(
            f"metric {metric.name!r} does not say whether more of it is better, so it"
            " cannot be judged; set is_higher_better in its package"
        )
    return Metric(
        name=metric.name,
        is_cost=not metric.is_higher_better,
        of=functools.partial(trial_metrics.positive_value_of, metric),
        tolerance=metric.tolerance,
    )


def metric_of(name: str) -> Metric:
    """Returns a metric by which two studies are compared, also of a plugin.

    Raises ResultsError for other names, which lists those there are.
    """
    metric = METRICS.get(name) or _plugin_metric(name, METRICS)
    if metric is not None:
        return metric
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
    """Returns a metric that a gate judges, also what quality runs learn.

    ``declared`` is what a workload learns, as ``Plan.metrics`` has it. Raises
    ResultsError for other names, which lists those there are.
    """
    learned = {
        facts.name: quality_metric(facts) for facts in declared if facts.is_judged
    }
    known = METRICS | {EFFICIENCY.name: EFFICIENCY} | learned
    metric = known.get(name) or _plugin_metric(name, known)
    if metric is None:
        raise errors.ResultsError(
            f"unknown metric {name!r}; allowed are {_known(EFFICIENCY.name)}, and"
            f" of what this workload learns {', '.join(learned) or 'nothing'}"
        )
    return metric


def log_ratios(first: Case, second: Case, metric: Metric) -> list[float]:
    """Returns ln(first / second) of each repetition that has both, in order."""
    is_interleaved = first.is_interleaved and second.is_interleaved
    if is_interleaved and metric.name == THROUGHPUT.name:
        return [*map(estimates.mean, scaling.block_logs(first, second))]
    here, there = logs(first, metric), logs(second, metric)
    return [here[key] - there[key] for key in here if key in there]


def logs(case: Case, metric: Metric) -> dict[Key, float]:
    """Returns logarithms by repetition; zero stands for "could not be read"."""
    values = scaling.values(case, metric.of).items()
    return {key: math.log(value) for key, value in values if value > 0}


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
        here, there = ([*logs(side, metric).values()] for side in (case, other))
        if here and there:
            means.append((case, other, mean_of_two_studies(case, here, other, there)))
    tested = {index: mean.p_value() for index, (*_, mean) in enumerate(means)}
    p_values = estimates.holm(tested)
    method, otherwise = group_sequential.OF_TWO_STUDIES, estimates.NO_REPETITIONS
    return [
        Ratio(case, other, estimates.from_logs(estimate), p_values.get(index))
        for index, (case, other, mean) in enumerate(means)
        for estimate in [mean.estimate(method, otherwise=otherwise)]
    ]


WORST_FIRST = (Verdict.REGRESS, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.IMPROVE)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=WORST_FIRST.index)


@dataclasses.dataclass(frozen=True, slots=True)
class JudgedCase:
    """A case beside the same case of its baseline."""

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


@dataclasses.dataclass(frozen=True, slots=True)
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
        for name in measuring.UNITS if program is None else program.count_names:
            is_judged = program is not None or name in names
            if not is_judged and not _values(case, name):
                continue
            count, reason = count_of(case, other, name, is_judged=is_judged)
            named = f"{name_of(case)}: {measuring.step_count_words(name)}"
            counted = JudgedCase(named, None, reason, case, count=count)
            (judged if is_judged else noted).append(counted)
    return tuple(judged), tuple(noted)


def count_of(
    case: Case, other: Case, name: str, *, is_judged: bool = True
) -> tuple[Count | None, str]:
    sides = {"this tree": _values(case, name), "the baseline": _values(other, name)}
    fewest = min(map(len, sides.values()))
    for side, values in sides.items():
        if not values:
            return None, f"no run of {side} has it"
    # Of a step nobody has to believe the program: what counts it was looked at.
    if fewest < FEWEST_REPETITIONS and name not in measuring.UNITS:
        return None, (
            f"{fewest} run(s) of a side have it, and {FEWEST_REPETITIONS} show whether"
            " it is the same in each"
        )
    advice = "; leave its --count out, or print what is the same in each run"
    for side, values in sides.items():
        low, high = min(values), max(values)
        if low != high:
            return None, (
                f"it varies between runs of {side}, from {low:.15g} to {high:.15g}, so"
                f" it is no count{advice * is_judged}"
            )
    (after, *_), (before, *_) = sides.values()
    return Count(name, before, after, fewest, is_judged), ""


def share_text(before: float, after: float) -> str:
    """Writes a change as a share of what it was: ``+3.0 %``; ``-`` from 0."""
    if not before:
        return "-"
    share = after / before - 1
    digits = "+.2g" if share and abs(share) < _SMALL else "+.1f"
    return f"{100 * share:{digits}} %"


def exact_text(before: float, after: float) -> str:
    """Writes a count of both sides, such as ``exact: 1024 to 1056``."""
    both = f"{before:.15g} to " if before != after else ""
    return f"exact: {both}{after:.15g}"


def _values(case: Case, name: str) -> list[float]:
    """Values of a count in its trials, discarded ones too: load changes no count."""
    return [
        metric.value
        for entry in case.entries
        if entry.state in _COUNTED and entry.trial and entry.trial.result
        for metric in entry.trial.result.window_metrics
        if metric.name == name
    ]
