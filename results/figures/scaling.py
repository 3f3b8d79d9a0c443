"""Scaling of a study: throughput, speedup and parallel efficiency per case.

With n replicas, n_b replicas of the baseline of the same backend, global batch size B,
K measured steps, and W seconds from the latest start to the latest end over processes:

- throughput             X(n) = B * K / W
- speedup                S(n) = n_b * X(n) / X(n_b); weak scaling keeps the batch of a
  replica as in the baseline (the scaled speedup), strong scaling the global batch
- parallel efficiency    E(n) = S(n) / n
- efficiency of the best X(n) * n_b / (n * X*), with X* the fastest baseline of any
  backend: being slow on one replica flatters E(n), and not this one

X is a geometric mean over repetitions; intervals of S and E have the baseline's
uncertainty, too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from results.figures import trial_metrics
from results.statistics import estimates
from results.study import cases as cases_lib
from results.study import equivalence

if TYPE_CHECKING:
    from results.records.models import Block, ScalingMode
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry, Key, Study


MOST_EFFICIENT: Final = 1.10
"""Caches explain a little more than 1; more is a number that means something else."""


def is_implausible(efficiency: Estimate | None) -> bool:
    """Whether an efficiency as a whole is above what is possible."""
    low = None if efficiency is None else efficiency.low
    return low is not None and low > MOST_EFFICIENT


MOST_DISCARDED = 0.3
"""Beyond this part of the blocks of two cases, their ratio says what load is left."""
MOST_OF_A_CORE = 0.5
"""What load below the limit takes of a core at most, as far as it is allowed for."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A case in one scaling mode, with its figures."""

    case: Case  # Its repetitions.
    mode: ScalingMode  # Weak or strong.
    backend: str  # Backend of the case.
    num_replicas: int  # n.
    # X(n) in examples per second, or None if no repetition is ok.
    throughput: Estimate | None
    speedup: Estimate | None  # S(n), or None; ``missing_reason`` says why.
    efficiency: Estimate | None  # E(n) as a ratio (1.0 is ideal), or None.
    # The same against the fastest baseline of any backend; None of that baseline.
    efficiency_of_best: Estimate | None
    # The case that ``efficiency_of_best`` is relative to, or None.
    best_baseline: Case | None
    # The case that S and E are relative to, or None if it is not planned.
    baseline: Case | None
    is_baseline: bool  # Whether this is the baseline itself (S = n_b by definition).
    # More replicas than cores: shown, but no evidence on scaling.
    is_oversubscribed: bool
    missing_reason: str  # Why a figure is missing; empty if none is.

    @property
    def is_crossed_out(self) -> bool:
        """Whether its replicas do not match one, so that it has no figures."""
        return bool(self.case.why_unmatched)

    def fixed(self, quantity: str) -> float | None:
        """The value of a baseline's ratio by definition; None of others."""
        if not self.is_baseline or self.throughput is None:
            return None
        if quantity == "efficiency_of_best":
            return 1.0 if self.best_baseline is self.case else None
        return {"speedup": float(self.num_replicas), "efficiency": 1.0}.get(quantity)

    def caveats(self, interval: Estimate | None) -> list[str]:
        """What one of its figures is worth, in words; nothing if it is evidence."""
        plausible = "not plausible" * is_implausible(self.efficiency)
        beyond = "oversubscribed" * self.is_oversubscribed
        texts = (plausible, interval.caveat if interval else "", beyond)
        return [text for text in texts if text]


def throughput_of(entry: Entry) -> float:
    """Examples of the global batch per second in the measured window of one trial."""
    return entry.result.examples_per_sec


def time_to_first_step_of(entry: Entry) -> float:
    """Seconds until every process has finished step 1, that is, of the slowest one."""
    return max(rank.time_to_first_step_sec for rank in entry.result.ranks)


def peak_memory_of(entry: Entry) -> int:
    """Peak memory in bytes, summed over the processes of one trial."""
    return sum(rank.peak_memory_bytes for rank in entry.result.ranks)


def flop_utilisation_of(entry: Entry) -> float:
    """Model FLOP utilisation of one trial; 0 where it was not measured."""
    result = entry.result
    peaks = [rank.peak_flops_per_sec or 0.0 for rank in result.ranks]
    if not all(peaks) or not result.flops_per_example:
        return 0.0
    return result.examples_per_sec * result.flops_per_example / math.fsum(peaks)


def values(case: Case, metric: Callable[[Entry], float]) -> dict[Key, float]:
    """Returns a figure of every ok trial of a case, by repetition."""
    return {entry.key: metric(entry) for entry in case.ok_entries}


def estimate(
    case: Case, metric: Callable[[Entry], float], *, unit: str
) -> Estimate | None:
    entries = case.shown_entries
    if not entries:
        return None
    if metric is throughput_of and case.is_interleaved:
        results = [entry.result for entry in entries]
        rates = [result.rates or result.rates_beside_load for result in results]
        logs = [[*map(math.log, of_rounds.values())] for of_rounds in rates]
        mean = _from_repetitions(case, logs, unit=unit)
    else:
        mean = estimates.geometric_mean([*map(metric, entries)], unit=unit)
    is_rate = metric in (throughput_of, flop_utilisation_of)
    return _beside_load(mean) if is_rate and not entries[0].is_ok else mean


def _beside_load(mean: Estimate) -> Estimate:
    """Returns an estimate from blocks of which each was disturbed: it shows nothing."""
    method = f"{mean.method}; every block was disturbed"
    return dataclasses.replace(
        mean, method=method, is_conclusive=False, is_disturbed=True
    )


def _from_repetitions(
    case: Case, logs: Sequence[Sequence[float]], *, unit: str = ""
) -> Estimate:
    """Estimates a figure from the logarithms of each repetition's rounds."""
    if len(logs) == 1:
        return estimates.these_processes_only(logs[0], unit=unit)
    return estimates.over_rounds(
        logs, unit=unit, is_stopped_on_width=case.is_stopped_on_width
    )


def paired(first: Case, second: Case) -> list[tuple[Entry, Entry]]:
    """Returns the ok trials of two cases that are of one repetition."""
    there = {entry.key: entry for entry in second.ok_entries}
    return [(e, there[e.key]) for e in first.ok_entries if e.key in there]


def block_logs(first: Case, second: Case) -> list[tuple[float, ...]]:
    both = [
        (here.result.rates, there.result.rates) for here, there in paired(first, second)
    ]
    return [logs for rates in both if (logs := estimates.log_ratios(*rates))]


def _logs_beside_load(first: Case, second: Case) -> list[tuple[float, ...]]:
    there = {e.key: e.result.rates_beside_load for e in second.measured_entries}
    here = {e.key: e.result.rates_beside_load for e in first.measured_entries}
    both = [(here[key], there[key]) for key in here if key in there]
    return [logs for rates in both if (logs := estimates.log_ratios(*rates))]


def throughput_ratio(first: Case, second: Case) -> Estimate | None:
    """Estimates the throughput of a case over that of another.

    Rounds or repetitions that both have are paired. None where one side has no trial
    that is ok, or where no round has a valid block of both.
    """
    if first.is_interleaved and second.is_interleaved:
        if logs := block_logs(first, second):
            return _with_load_left(_from_repetitions(first, logs), first, second)
        logs = _logs_beside_load(first, second)
        return _beside_load(_from_repetitions(first, logs)) if logs else None
    here, there = (values(case, throughput_of) for case in (first, second))
    return estimates.ratio(here, there) if here and there else None


def _with_load_left(ratio: Estimate, first: Case, second: Case) -> Estimate:
    """Returns a ratio whose interval holds what load below the limit may have done.

    Where many blocks are discarded, load is just below the limit in many that are left.
    If all of it was on one core, a step took longer by as much, so the rate of a quiet
    machine may be higher by that: the upper end is further up for the first case, and
    the lower one further down for the second (``tests/validation``).
    """
    blocks = [
        t for case in (first, second) for e in case.measured_entries for t in _rounds(e)
    ]
    num_discarded = sum(not block.is_valid for block in blocks)
    if num_discarded <= MOST_DISCARDED * len(blocks) or ratio.low is None:
        return ratio
    assert ratio.high is not None
    return dataclasses.replace(
        ratio,
        low=ratio.low / _load_left(second, first),
        high=ratio.high * _load_left(first, second),
        method=f"{ratio.method}; with the load that is left",
    )


def _load_left(case: Case, other: Case) -> float:
    """Returns by which factor load slowed the blocks that are compared, at most."""
    logs = []
    for entry, beside in paired(case, other):
        compared = beside.result.rates.keys()
        num_cores = entry.spec.num_replicas * entry.spec.cores_per_replica
        if entry.env is not None:
            num_cores = len(set(itertools.chain(*entry.env.placement.cpusets)))
        lost = [
            -math.log1p(-min(block.others * num_cores, MOST_OF_A_CORE))
            for block in _rounds(entry)
            if block.is_valid and block.round_index in compared
        ]
        if lost:
            logs.append(estimates.mean(lost))
    return math.exp(estimates.mean(logs))


def _rounds(entry: Entry) -> list[Block]:
    return [block for block in entry.result.blocks if not block.is_sustained]


def hidden_by_slow_blocks(first: Case, second: Case) -> float | None:
    """Returns by which part slow blocks, hidden in a mean of logs, lower a ratio."""
    if not (first.is_interleaved and second.is_interleaved):
        return None
    hidden = []
    for here, there in paired(first, second):
        sides = here.result.rates, there.result.rates
        if rounds := sides[0].keys() & sides[1].keys():
            one, other = (math.fsum(1 / side[r] for r in rounds) for side in sides)
            logs = estimates.log_ratios(*sides)
            hidden.append(estimates.mean(logs) + math.log(one / other))
    return -math.expm1(-estimates.mean(hidden)) if hidden else None


def points(study: Study) -> tuple[Point, ...]:
    """Returns one point per mode, backend and number of replicas, in that order.

    Raises ResultsError for a plan with two cases for one point, or whose cases do not
    keep fixed what their scaling mode keeps fixed.
    """
    index = cases_lib.by_mode_and_size(study)
    baseline_n = study.plan.baseline_num_replicas
    baselines: dict[ScalingMode, list[Case]] = {}
    for (_, mode, size), case in index.items():
        if size == baseline_n and case.ok_entries:
            baselines.setdefault(mode, []).append(case)
    best = {mode: max(cases, key=_rate) for mode, cases in baselines.items()}
    modes, backends = study.modes, study.backends
    keys = sorted((modes.index(m), backends.index(b), n) for b, m, n in index)
    return tuple(
        _point(study, index[backend, mode, size], mode, baseline, best.get(mode))
        for mode, backend, size in ((modes[m], backends[b], n) for m, b, n in keys)
        for baseline in [index.get((backend, mode, baseline_n))]
    )


def _rate(case: Case) -> float:
    rate = estimate(case, throughput_of, unit="")
    return 0.0 if rate is None else rate.value


def _point(
    study: Study,
    case: Case,
    mode: ScalingMode,
    baseline: Case | None,
    best: Case | None,
) -> Point:
    size, baseline_n = case.spec.num_replicas, study.plan.baseline_num_replicas
    throughput = estimate(case, throughput_of, unit=f"{study.example_unit}/s")
    relative = of_best = None
    if best is not None and best is not case and case.ok_entries:
        of_best = throughput_ratio(case, best)
    reason = ""
    if throughput is None:
        reason = case.why_unmatched or "no trial of this case is ok"
    elif size == baseline_n:
        reason = "this is the baseline"
    elif baseline is None or not baseline.shown_entries:
        which = "is planned" if baseline is None else "is ok"
        reason = f"no trial of the baseline (n = {baseline_n}) {which}"
    else:
        cases_lib.check_mode(case, baseline, mode)
        relative = throughput_ratio(case, baseline)
        if relative is None:
            reason = "no round has a valid block of this case and of its baseline"
    efficiency, efficiency_of_best = (
        None if ratio is None else ratio.scaled(baseline_n / size)
        for ratio in (relative, of_best)
    )
    return Point(
        case=case,
        mode=mode,
        backend=case.spec.backend,
        num_replicas=size,
        throughput=throughput,
        speedup=None if relative is None else relative.scaled(baseline_n),
        efficiency=efficiency,
        efficiency_of_best=efficiency_of_best,
        best_baseline=best,
        baseline=baseline,
        is_baseline=size == baseline_n,
        is_oversubscribed=case.is_oversubscribed,
        missing_reason=reason,
    )


# Every output is a projection of these figures and of the tidy frame (``frame.py``).

RATIOS: Final = ("throughput", "speedup", "efficiency", "efficiency_of_best")
"""Quantities of a point, in the order of every output."""
OF_CASES: Final = ("time_to_first_step", "peak_memory", "flop_utilisation")
"""Quantities of a case, which are the same in every scaling mode."""
_OF_TRIALS: Final[Mapping[str, tuple[Callable[[Entry], float], str]]] = {
    "throughput": (throughput_of, ""),  # the unit is that of the workload
    "time_to_first_step": (time_to_first_step_of, "s"),
    "peak_memory": (peak_memory_of, "bytes"),
    "flop_utilisation": (flop_utilisation_of, ""),
}
"""Quantities that each trial has by itself: what reads them, and their unit."""
_NONE_OK: Final = "no trial of this case is ok"
_NOT_READ: Final = "not recorded in every trial"
_NOT_POSITIVE: Final = "not in every trial a number above zero"


class Cell(NamedTuple):
    estimate: Estimate | None  # Value, interval, n and unit; None without any.
    why_not: str = ""  # Why there is no estimate; empty if there is one.


def case_cell(case: Case, quantity: str) -> Cell:
    """Returns a quantity of a case; zero stands for "could not be read"."""
    entries, why_not = case.shown_entries, _NOT_READ
    if quantity in _OF_TRIALS:
        read, unit = _OF_TRIALS[quantity]
    else:
        own = trial_metrics.find(quantity, _OF_TRIALS)
        assert own is not None, quantity
        read, unit = functools.partial(trial_metrics.positive_value_of, own), own.unit
        why_not = _NOT_POSITIVE
    if not entries:
        return Cell(None, _NONE_OK)
    if min(map(read, entries)) <= 0:
        return Cell(None, why_not)
    if quantity == "throughput":
        unit = f"{entries[0].result.example_unit}/s"
    return Cell(estimate(case, read, unit=unit))


# Of six equal backends, one of fifteen 95 % intervals excludes 1 in most studies, so a
# difference is claimed only where it holds among all ratios of the study (Holm).
class Comparison(NamedTuple):
    """Throughput of one backend over another, all else equal."""

    first: Case  # Case of the numerator.
    second: Case  # Case of the denominator.
    modes: tuple[ScalingMode, ...]  # Scaling modes that have both cases.
    ratio: Estimate | None  # X(first) / X(second), or None if one side has no ok trial.
    is_oversubscribed: bool  # Whether either side is.
    # Ratios of the study that are tested together, this one included.
    num_compared: int = 1
    holds: bool = False  # Whether the ratio differs from 1 among all of them.

    def over(self, backend: str) -> tuple[str, Estimate | None]:
        """Returns the other backend, and the ratio of this one over it."""
        first, second = self.first.spec.backend, self.second.spec.backend
        if backend == first:
            return second, self.ratio
        return first, None if self.ratio is None else self.ratio.inverse


def compare_backends(study: Study) -> tuple[Comparison, ...]:
    """Returns every pair of backends that ran under equal conditions.

    A pair whose losses show that both do not compute the same is left out.
    """
    broken = {pair.case_ids for pair in equivalence.agreements_of(study).broken}
    cases = {case.case_id: case for case in study.cases}
    modes_of: dict[tuple[str, str], list[ScalingMode]] = {}
    index = cases_lib.by_mode_and_size(study)
    sizes = sorted({size for _, _, size in index})
    for size, mode in itertools.product(sizes, study.modes):
        keys = [(backend, mode, size) for backend in study.backends]
        present = [index[key].case_id for key in keys if key in index]
        for pair in itertools.combinations(present, 2):
            modes_of.setdefault(pair, []).append(mode)
    pairs = [
        (cases[first], cases[second], tuple(modes))
        for (first, second), modes in modes_of.items()
        if (first, second) not in broken
    ]
    comparisons = [
        Comparison(
            first=first,
            second=second,
            modes=modes,
            ratio=throughput_ratio(first, second),
            is_oversubscribed=first.is_oversubscribed or second.is_oversubscribed,
        )
        for first, second, modes in pairs
    ]
    fair = (pair for pair in enumerate(comparisons) if not pair[1].is_oversubscribed)
    adjusted = estimates.holm({number: _p_value(item) for number, item in fair})
    return tuple(
        item._replace(
            num_compared=max(len(adjusted), 1),
            holds=adjusted.get(index, 1.0) < estimates.DEFAULT_ALPHA
            # Of a busy machine, the interval is wider than the test knows.
            and item.ratio is not None
            and item.ratio.excludes(1.0),
        )
        for index, item in enumerate(comparisons)
    )


def _p_value(item: Comparison) -> float | None:
    """Returns the two-sided p-value of the ratio 1; None without a spread."""
    ratio, first, second = item.ratio, item.first, item.second
    if ratio is None or not ratio.has_interval or not ratio.is_conclusive:
        return None
    if first.is_interleaved and second.is_interleaved:
        mean = estimates.mean_of_rounds(block_logs(first, second))
    else:
        here, there = (values(case, throughput_of) for case in (first, second))
        mean = estimates.mean_log_ratio(here, there)
    factor = estimates.widening(mean.n, is_stopped_on_width=first.is_stopped_on_width)
    return mean.widened(factor).p_value()
