"""What micro-benchmarks say: verdicts, ratios, and series over time.

The unit is the generation, a fresh process, never the round: see
``results/records/benchmark_record.py``. Two imports are two groups that were measured
at different times, so they are compared as two studies are
(``results/statistics/two_groups.py``).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from results import errors
from results.figures.relay import TurnCounts
from results.judging.gate import Gate, JudgedBenchmark
from results.judging.gate_metrics import Judged
from results.statistics import generations, judge, simultaneous, two_groups

if TYPE_CHECKING:
    from results.records.benchmark_record import Benchmarks
    from results.statistics.estimates import Estimate
    from results.statistics.simultaneous import Difference

TIME_PER_CALL: Final = Judged(name="time_per_call", is_cost=True, worse="slower")
_NO_TURNS: Final = TurnCounts(num_turns=0, num_void=0, reasons=())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRatio:
    """One ratio of two imports."""

    name: str
    difference: Difference


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRatios:
    """Ratios first / second of the time of a call, as ``compare.RatioTable`` has them.

    Attributes:
      first: Name of the numerators.
      second: Name of the denominators.
      metric: What is compared.
      rows: In the order of ``first``.
      differences: What differs although it must not, one line each.
      is_weaker: The sides were not measured in the same rounds.
      settings: None differ.
    """

    first: str
    second: str
    metric: Judged
    rows: tuple[BenchmarkRatio, ...]
    differences: tuple[str, ...]
    is_weaker: bool = True
    settings: tuple[str, ...] = ()

    @property
    def without_test(self) -> tuple[BenchmarkRatio, ...]:
        """Rows with fewer than two generations: they test nothing."""
        return tuple(row for row in self.rows if row.difference.p_value is None)


def differences(first: Benchmarks, second: Benchmarks) -> tuple[str, ...]:
    """Returns why no ratio of two imports can be judged, one line each."""
    here, there = first.machine.model_dump(), second.machine.model_dump()
    return tuple(
        f"{name}: {here[name]!r} and {there[name]!r}"
        for name in here
        if here[name] != there[name]
    )


def judge_benchmarks(
    change: Benchmarks,
    baseline: Benchmarks,
    *,
    name: str,
    delta: float = judge.DEFAULT_DELTA,
    alpha: float = judge.DEFAULT_ALPHA,
) -> Gate:
    """Judges the benchmarks of a change by the rule of ``gate``.

    Args:
      change: Its benchmarks.
      baseline: Those of the baseline.
      name: What the baseline is called.
      delta: The slowdown that matters, as a ratio.
      alpha: The accepted probability of passing a slowdown of exactly ``delta``.

    Raises:
      ResultsError: No benchmark is in both, or ``delta`` or ``alpha`` is out of range.
    """
    judge.check_delta(delta)
    judge.check_alpha(alpha)
    judged = []
    for benchmark in _shared(change, baseline):
        here, there = (_logs(of, benchmark) for of in (change, baseline))
        fewest = min(len(here), len(there))
        if fewest < judge.FEWEST_GENERATIONS:
            reason = (
                f"{fewest} generation(s), a verdict needs {judge.FEWEST_GENERATIONS} or"
                " more: processes differ, and one says nothing about by how much"
            )
            judged.append(
                JudgedBenchmark(name=benchmark, judgement=None, reason=reason)
            )
            continue
        judgement = judge.judge_groups(here, there, delta=delta, alpha=alpha)
        judged.append(JudgedBenchmark(name=benchmark, judgement=judgement))
    failures = [
        f"{benchmark} is in the baseline only" for benchmark in _left(baseline, change)
    ]
    return Gate(
        metric=TIME_PER_CALL,
        baseline=name,
        delta=delta,
        alpha=alpha,
        cases=tuple(judged),
        twin=None,
        turns=_NO_TURNS,
        is_weaker=True,
        differences=differences(change, baseline),
        failures=tuple(failures),
        num_ok=len(judged),
    )


def ratios(first: Benchmarks, second: Benchmarks) -> BenchmarkRatios:
    """Returns the ratios first / second of the benchmarks that both have.

    Raises:
      ResultsError: No benchmark is in both.
    """
    tested: dict[str, tuple[Estimate, float | None]] = {}
    for name in _shared(first, second):
        here, there = _logs(first, name), _logs(second, name)
        if min(len(here), len(there)) < two_groups.FEWEST:
            log = sum(here) / len(here) - sum(there) / len(there)
            tested[name] = (generations.over_generations([log]), None)
            continue
        shift = two_groups.shift(here, there)
        tested[name] = (shift.estimate(), shift.p_value())
    return BenchmarkRatios(
        first=first.study,
        second=second.study,
        metric=TIME_PER_CALL,
        rows=tuple(
            BenchmarkRatio(name=name, difference=difference)
            for name, difference in simultaneous.of_set(tested).items()
        ),
        differences=differences(first, second),
    )


def new_ones(change: Benchmarks, baseline: Benchmarks) -> list[str]:
    """Returns the benchmarks of a change that no baseline has: nothing to judge yet."""
    return _left(change, baseline)


def _left(first: Benchmarks, second: Benchmarks) -> list[str]:
    others = set(second.names)
    return [name for name in first.names if name not in others]


def _logs(benchmarks: Benchmarks, name: str) -> list[float]:
    return [math.log(sec) for sec in benchmarks.medians(name)]


def _shared(first: Benchmarks, second: Benchmarks) -> list[str]:
    others = set(second.names)
    found = [name for name in first.names if name in others]
    if not found:
        raise errors.ResultsError(
            f"{first.study!r} and {second.study!r} have no micro-benchmark in common;"
            f" the first has {', '.join(first.names[:3])}, the second"
            f" {', '.join(second.names[:3])}"
        )
    return found
