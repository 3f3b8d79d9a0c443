"""Figures that can be compared between generations, and their log ratios.

A *generation* is one repetition: fresh processes of every case. In a relay, a
throughput is compared turn by turn within rounds; every other figure exists once per
process, so it is compared process by process.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from results import errors, scaling

if TYPE_CHECKING:
    from collections.abc import Callable

    from results.study import Case, Entry


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A figure of a trial.

    Attributes:
      name: As on the command line.
      is_cost: Whether less of it is better.
      of: Its value in a trial that is ok.
      worse: What a change is that makes it worse: slower, or larger.
    """

    name: str
    is_cost: bool
    of: Callable[[Entry], float]
    worse: str


THROUGHPUT = Metric(
    name="throughput", is_cost=False, of=scaling.throughput_of, worse="slower"
)
METRICS = {
    metric.name: metric
    for metric in (
        THROUGHPUT,
        Metric(
            name="time_to_first_step",
            is_cost=True,
            of=scaling.time_to_first_step_of,
            worse="slower",
        ),
        Metric(
            name="peak_memory", is_cost=True, of=scaling.peak_memory_of, worse="larger"
        ),
    )
}
QUALITY_METRICS = ("top_1", "fid", "return", "inception_score")


def metric_of(name: str) -> Metric:
    """Returns a metric by its name.

    Raises:
      ResultsError: It is unknown, or is judged by another rule.
    """
    metric = METRICS.get(name)
    if metric is not None:
        return metric
    allowed = ", ".join(METRICS)
    if name in QUALITY_METRICS:
        raise errors.ResultsError(
            f"metric {name!r} is a figure of quality runs, which this gate does not"
            f" judge: they differ by seed, not by generation; allowed are {allowed};"
            " see 'Learning' in the report of a sweep with --budget"
        )
    raise errors.ResultsError(f"unknown metric {name!r}; allowed are {allowed}")


def log_ratios(first: Case, second: Case, metric: Metric) -> list[float]:
    """Returns ln(first / second) of each generation that has both, in order."""
    if metric.name == THROUGHPUT.name and first.is_in_relay and second.is_in_relay:
        turns = scaling.turn_logs(first, second)
        return [math.fsum(of) / len(of) for of in turns]
    here, there = _positive(first, metric), _positive(second, metric)
    return [math.log(here[key]) - math.log(there[key]) for key in here if key in there]


def logs(case: Case, metric: Metric) -> list[float]:
    """Returns ln(value) of each generation, for two groups that are not paired."""
    return [math.log(value) for value in _positive(case, metric).values()]


def _positive(case: Case, metric: Metric) -> dict[tuple[int, int], float]:
    """Returns values by repetition; zero stands for "could not be read"."""
    found = scaling.values(case, metric.of)
    return {key: value for key, value in found.items() if value > 0}
