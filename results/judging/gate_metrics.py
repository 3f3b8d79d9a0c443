"""Figures that can be compared between repetitions, and their log ratios.

A *repetition* is one repetition: fresh processes of every case. In an interleaved
study, a throughput is compared block by block within rounds; every other figure exists
once per process, so it is compared process by process. What was learned is judged by
the facts that its workload declares, which plans record.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

from results import errors
from results.figures import learning_gains, scaling, trial_metrics
from results.statistics import estimates, group_sequential, repetitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from results.figures.trial_metrics import TrialMetric
    from results.records.models import MetricFacts
    from results.statistics.estimates import Estimate, Mean
    from results.study.cases import Case, Entry


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A figure that can be judged."""

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


def of_quality(facts: MetricFacts) -> Metric:
    """Returns a metric of what was learned; ``quality_gate`` judges it."""
    return Metric(
        name=facts.name,
        is_cost=not facts.is_higher_better,
        of=functools.partial(learning_gains.reached, metric=facts.name),
        worse="worse",
        is_quality=True,
        tolerance=facts.tolerance,
    )


def of_plugin(found: TrialMetric) -> Metric:
    """Returns a metric of a package of others."""
    if found.is_higher_better is None:
        raise errors.ResultsError(
            f"metric {found.name!r} does not say whether more of it is better, so it"
            " cannot be judged; set is_higher_better in its package"
        )
    return Metric(
        name=found.name,
        is_cost=not found.is_higher_better,
        of=functools.partial(trial_metrics.positive_value_of, found),
        worse="worse",
        tolerance=found.tolerance,
    )


def metric_of(name: str) -> Metric:
    """Returns a metric of speed, memory or a plugin by its name."""
    metric = METRICS.get(name)
    if metric is not None:
        return metric
    own = trial_metrics.find(name, METRICS)
    if own is not None:
        return of_plugin(own)
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
    """Returns a metric that a gate judges, of speed, memory or quality."""
    learned = {facts.name: of_quality(facts) for facts in declared if facts.is_judged}
    known = METRICS | {EFFICIENCY.name: EFFICIENCY} | learned
    if name not in known:
        own = trial_metrics.find(name, known)
        if own is not None:
            return of_plugin(own)
        raise errors.ResultsError(
            f"unknown metric {name!r}; allowed are {_known(EFFICIENCY.name)}, and"
            f" of what this workload learns {', '.join(learned) or 'nothing'}"
        )
    return known[name]


def log_ratios(first: Case, second: Case, metric: Metric) -> list[float]:
    """Returns ln(first / second) of each repetition that has both, in order."""
    is_interleaved = first.is_interleaved and second.is_interleaved
    if is_interleaved and metric.name == THROUGHPUT.name:
        return [repetitions.mean(of) for of in scaling.block_logs(first, second)]
    here, there = _positive(first, metric), _positive(second, metric)
    return [math.log(here[key]) - math.log(there[key]) for key in here if key in there]


def logs(case: Case, metric: Metric) -> list[float]:
    """Returns ln(value) of each repetition, for two groups that are not paired."""
    return [math.log(value) for value in _positive(case, metric).values()]


def mean_of_two_studies(
    case: Case, here: Sequence[float], other: Case, there: Sequence[float]
) -> Mean:
    """Returns the mean difference of two groups, which no round has in common."""
    factor = max(
        repetitions.widening(len(logs), is_stopped_on_width=of.is_stopped_on_width)
        for of, logs in ((case, here), (other, there))
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
    tested = {place: mean.p_value() for place, (*_, mean) in enumerate(means)}
    p_values = repetitions.holm(tested)
    method = group_sequential.OF_TWO_STUDIES
    return [
        Ratio(
            case,
            other,
            estimates.from_logs(
                mean.estimate(method, otherwise=repetitions.NO_REPETITIONS)
            ),
            p_values.get(place),
        )
        for place, (case, other, mean) in enumerate(means)
    ]


def _positive(case: Case, metric: Metric) -> dict[tuple[int, int], float]:
    """Returns values by repetition; zero stands for "could not be read"."""
    found = scaling.values(case, metric.of)
    return {key: value for key, value in found.items() if value > 0}
