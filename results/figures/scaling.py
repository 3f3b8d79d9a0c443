"""Scaling of a study: throughput, speedup and parallel efficiency per case.

Definitions, with n replicas, n_b replicas of the baseline of the same backend, global
batch size B, K measured steps and a window of W seconds from the latest start to the
latest end over processes:

- throughput            X(n) = B * K / W
- weak scaling          the per-replica batch size is that of the baseline, so B grows
- strong scaling        the global batch size is that of the baseline
- speedup (weak)        S(n) = n_b * X(n) / X(n_b), the *scaled speedup*
- speedup (strong)      S(n) = n_b * T(n_b) / T(n), T the time of one step; since B is
  the same, this is n_b * X(n) / X(n_b) as well
- parallel efficiency   E(n) = S(n) / n
- efficiency of the best  X(n) * n_b / (n * X*), with X* the highest throughput of any
  backend's baseline in the same mode: a backend that is slow on one replica flatters
  its own efficiency, but not this one

With the usual baseline of one replica n_b = 1. X is a geometric mean over repetitions;
the uncertainty of the baseline is part of the intervals of S and E.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Final

from results.statistics import estimates, generations
from results.study import cases, matching
from results.study import cases as cases_lib

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from results.records.models import ScalingMode, Turn
    from results.statistics.estimates import Estimate, Mean
    from results.study.cases import Case, Entry, Key, Study

    _Rates = Mapping[Key, Mapping[int, float]]  # by generation and round


MOST_EFFICIENT: Final = 1.10
"""Caches explain a little more than 1; more is a number that means something else."""


def is_implausible(efficiency: Estimate | None) -> bool:
    """Whether an efficiency as a whole is above what is possible."""
    low = None if efficiency is None else efficiency.low
    return low is not None and low > MOST_EFFICIENT


MOST_DISCARDED = 0.3
"""Beyond this part of the turns of two cases, their ratio says what load is left."""
MOST_OF_A_CORE = 0.5
"""What load below the limit takes of a core at most, as far as it is allowed for."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One case in one scaling mode."""

    case: Case  # Its repetitions.
    mode: ScalingMode  # Weak or strong.
    backend: str  # Backend of the case.
    num_replicas: int  # n.
    # X(n) in examples per second, or None if no repetition is ok.
    throughput: Estimate | None
    speedup: Estimate | None  # S(n), or None; ``missing_reason`` says why.
    efficiency: Estimate | None  # E(n) as a ratio (1.0 is ideal), or None.
    # The same against the fastest baseline of any backend, or None; also None for that
    # baseline itself.
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

    @property
    def trial_ids(self) -> tuple[str, ...]:
        """Trials behind the throughput."""
        return tuple(entry.trial_id for entry in self.case.shown_entries)

    @property
    def ratio_trial_ids(self) -> tuple[str, ...]:
        """Trials behind speedup and efficiencies: the baselines' too."""
        others = []
        if not (self.is_baseline or self.speedup is None):
            others.append(self.baseline)
        if self.efficiency_of_best is not None:
            others.append(self.best_baseline)
        entries = {
            entry.trial_id for case in others if case for entry in case.shown_entries
        }
        return self.trial_ids + tuple(sorted(entries - set(self.trial_ids)))


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
    """Model FLOP utilisation of one trial; 0 where it was not measured.

    Throughput times the model's floating-point operations per example, over the peak
    rate of the devices of all processes (``harness/trial/steps.py``).
    """
    result = entry.result
    peaks = [rank.peak_flops_per_sec or 0.0 for rank in result.ranks]
    if not all(peaks) or not result.flops_per_example:
        return 0.0
    return result.examples_per_sec * result.flops_per_example / math.fsum(peaks)


def values(case: Case, metric: Callable[[Entry], float]) -> Mapping[Key, float]:
    """Returns a figure of every ok trial of a case, by repetition."""
    return {entry.key: metric(entry) for entry in case.ok_entries}


def estimate(
    case: Case, metric: Callable[[Entry], float], *, unit: str
) -> Estimate | None:
    """Estimates a figure of a case, or None if no trial is ok."""
    entries = case.shown_entries
    if not entries:
        return None
    is_rate = metric in (throughput_of, flop_utilisation_of)
    is_disturbed = is_rate and not entries[0].is_ok
    if metric is throughput_of and case.is_in_relay:
        rates = [
            entry.result.rates or entry.result.rates_beside_load for entry in entries
        ]
        logs = [[math.log(rate) for rate in of.values()] for of in rates]
        found = _from_generations(case, logs, unit=unit)
    else:
        found = estimates.geometric_mean([*map(metric, entries)], unit=unit)
    return _beside_load(found) if is_disturbed else found


def _beside_load(found: Estimate) -> Estimate:
    """Returns an estimate from turns of which each was disturbed: it shows nothing."""
    return dataclasses.replace(
        found,
        method=f"{found.method}; every block was disturbed",
        is_conclusive=False,
        is_disturbed=True,
    )


def _from_generations(
    case: Case, logs: Sequence[Sequence[float]], *, unit: str = ""
) -> Estimate:
    """Estimates a figure from the logarithms of each generation's rounds."""
    if len(logs) == 1:
        return generations.these_processes_only(logs[0], unit=unit)
    return generations.over_rounds(
        logs, unit=unit, is_stopped_on_width=case.is_stopped_on_width
    )


def turn_logs(first: Case, second: Case) -> list[tuple[float, ...]]:
    """Returns ln(X(first) / X(second)) of each round, by generation that has both."""
    here, there = (
        {entry.key: entry.result.rates for entry in case.ok_entries}
        for case in (first, second)
    )
    return _logs_of_both(here, there)


def throughput_ratio(first: Case, second: Case) -> Estimate | None:
    """Estimates X(first) / X(second), or None if one side has no ok trial.

    In a relay, turns of the same round are compared; None if no round has both. Where
    every one of them was disturbed, the ratio is what it was beside that load.
    """
    if first.is_in_relay and second.is_in_relay:
        if logs := turn_logs(first, second):
            found = _from_generations(first, logs)
            return _with_load_left(found, first, second)
        logs = _logs_beside_load(first, second)
        return _beside_load(_from_generations(first, logs)) if logs else None
    numerator = values(first, throughput_of)
    denominator = values(second, throughput_of)
    if not numerator or not denominator:
        return None
    return estimates.ratio(dict(numerator), dict(denominator))


def _logs_beside_load(first: Case, second: Case) -> list[tuple[float, ...]]:
    here, there = (
        {entry.key: entry.result.rates_beside_load for entry in case.measured_entries}
        for case in (first, second)
    )
    return _logs_of_both(here, there)


def _logs_of_both(here: _Rates, there: _Rates) -> list[tuple[float, ...]]:
    """Returns the logarithms of ratios in each generation with rounds of both."""
    logs = [
        generations.log_ratios(here[key], there[key]) for key in here if key in there
    ]
    return [of for of in logs if of]


def _with_load_left(found: Estimate, first: Case, second: Case) -> Estimate:
    """Returns a ratio whose interval holds what load below the limit may have done.

    Where many turns are discarded, load is just below the limit in many that are left.
    If all of it was on one core, a step took longer by as much, so the rate of a quiet
    machine may be higher by that: the upper end is further up for the first case, and
    the lower one further down for the second (``tests/validation``).
    """
    turns = [
        t for of in (first, second) for e in of.measured_entries for t in _rounds(e)
    ]
    num_discarded = sum(not turn.is_valid for turn in turns)
    if num_discarded <= MOST_DISCARDED * len(turns) or found.low is None:
        return found
    assert found.high is not None
    return dataclasses.replace(
        found,
        low=found.low / _load_left(second, first),
        high=found.high * _load_left(first, second),
        method=f"{found.method}; with the load that is left",
    )


def _load_left(case: Case, other: Case) -> float:
    """Returns by which factor load slowed the turns that are compared, at most."""
    there = {entry.key: entry.result.rates.keys() for entry in other.ok_entries}
    logs = []
    for entry in case.ok_entries:
        lost = [
            -math.log1p(-min(turn.others * _num_cores(entry), MOST_OF_A_CORE))
            for turn in _rounds(entry)
            if turn.is_valid and turn.round_index in there.get(entry.key, ())
        ]
        if lost:
            logs.append(generations.mean(lost))
    return math.exp(generations.mean(logs))


def _rounds(entry: Entry) -> list[Turn]:
    return [turn for turn in entry.result.turns if not turn.is_sustained]


def _num_cores(entry: Entry) -> int:
    """Returns how many cores the load of a turn is a fraction of."""
    assert entry.trial is not None
    if entry.trial.env is None:
        return entry.spec.num_replicas * entry.spec.cores_per_replica
    return len({core for of in entry.trial.env.placement.cpusets for core in of})


def hidden_by_slow_turns(first: Case, second: Case) -> float | None:
    """Returns by which part the ratio of total times is below ``throughput_ratio``.

    That one is of typical turns: a mean of logarithms. Where some turns of the first
    case take several times as long, fewer examples per hour come of it. Negative where
    the second case has them; None without turns that both have.
    """
    if not (first.is_in_relay and second.is_in_relay):
        return None
    there = {entry.key: entry.result.rates for entry in second.ok_entries}
    found = []
    for entry in first.ok_entries:
        here, other = entry.result.rates, there.get(entry.key, {})
        rounds = here.keys() & other.keys()
        if rounds:
            times = [
                math.fsum(1 / of[index] for index in rounds) for of in (here, other)
            ]
            logs = generations.log_ratios(here, other)
            found.append(generations.mean(logs) + math.log(times[0] / times[1]))
    return -math.expm1(-generations.mean(found)) if found else None


def _best_baselines(
    index: Mapping[tuple[str, ScalingMode, int], Case], baseline_n: int
) -> dict[ScalingMode, Case]:
    """Returns the baseline of each mode with the highest throughput."""
    best: dict[ScalingMode, tuple[float, Case]] = {}
    for (_, mode, num_replicas), case in index.items():
        if num_replicas == baseline_n and case.ok_entries:
            found = estimate(case, throughput_of, unit="")
            assert found is not None
            if mode not in best or found.value > best[mode][0]:
                best[mode] = found.value, case
    return {mode: case for mode, (_, case) in best.items()}


def _of_best(case: Case, best: Case | None, baseline_n: int) -> Estimate | None:
    if best is None or best is case or not case.ok_entries:
        return None
    relative = throughput_ratio(case, best)
    if relative is None:
        return None
    return relative.scaled(baseline_n / case.spec.num_replicas)


def _point(
    case: Case,
    mode: ScalingMode,
    baseline: Case | None,
    best: Case | None,
    unit: str,
    baseline_n: int,
) -> Point:
    throughput = estimate(case, throughput_of, unit=f"{unit}/s")
    is_baseline = case.spec.num_replicas == baseline_n
    speedup = efficiency = None
    reason = ""
    if throughput is None:
        reason = case.why_unmatched or "no trial of this case is ok"
    elif is_baseline:
        reason = "this is the baseline"
    elif baseline is None or not baseline.shown_entries:
        which = "is planned" if baseline is None else "is ok"
        reason = f"no trial of the baseline (n = {baseline_n}) {which}"
    else:
        cases.check_mode(case, baseline, mode)
        relative = throughput_ratio(case, baseline)
        if relative is None:
            reason = "no round has a valid block of this case and of its baseline"
        else:
            speedup = relative.scaled(baseline_n)
            efficiency = relative.scaled(baseline_n / case.spec.num_replicas)
    return Point(
        case=case,
        mode=mode,
        backend=case.spec.backend,
        num_replicas=case.spec.num_replicas,
        throughput=throughput,
        speedup=speedup,
        efficiency=efficiency,
        efficiency_of_best=_of_best(case, best, baseline_n),
        best_baseline=best,
        baseline=baseline,
        is_baseline=is_baseline,
        is_oversubscribed=case.is_oversubscribed,
        missing_reason=reason,
    )


def points(study: Study) -> tuple[Point, ...]:
    """Returns one point per mode, backend and number of replicas, in that order.

    Modes and backends come in planned order, replicas ascending.
    """
    index = cases.by_mode_and_size(study)
    baseline_n = study.plan.baseline_num_replicas
    best = _best_baselines(index, baseline_n)
    modes, backends = study.modes, study.backends
    keys = sorted(
        index, key=lambda key: (modes.index(key[1]), backends.index(key[0]), key[2])
    )
    return tuple(
        _point(
            index[key],
            key[1],
            index.get((key[0], key[1], baseline_n)),
            best.get(key[1]),
            study.example_unit,
            baseline_n,
        )
        for key in keys
    )


# Each ratio has its own 95 % interval. Of six equal backends, one of their fifteen
# ratios excludes 1 in most studies. So a difference is claimed only where it holds
# among all ratios of the study, by Holm's procedure
# (``results/statistics/generations.py``).


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Throughput of one backend over another, all else equal."""

    first: Case  # Case of the numerator.
    second: Case  # Case of the denominator.
    modes: tuple[ScalingMode, ...]  # Scaling modes that have both cases.
    ratio: Estimate | None  # X(first) / X(second), or None if one side has no ok trial.
    is_oversubscribed: bool  # Whether either side is.
    # Ratios of the study that are tested together, this one included.
    num_compared: int = 1
    holds: bool = False  # Whether the ratio differs from 1 among all of them.

    @property
    def trial_ids(self) -> tuple[str, ...]:
        """Trials behind the ratio."""
        entries = (*self.first.shown_entries, *self.second.shown_entries)
        return tuple(entry.trial_id for entry in entries)


def compare_backends(study: Study) -> tuple[Comparison, ...]:
    """Returns every pair of backends that ran under equal conditions.

    A case that serves both modes is compared once. Pairs are in planned order: the
    backend named first is the numerator. Pairs whose losses show that they do not
    compute the same are left out (``results/study/matching.py``). Oversubscribed pairs
    are no evidence, and are not among those that are tested together.
    """
    broken = {pair.case_ids for pair in matching.agreements_of(study).broken}
    cases = {case.case_id: case for case in study.cases}
    found = [
        Comparison(
            first=cases[first],
            second=cases[second],
            modes=modes,
            ratio=throughput_ratio(cases[first], cases[second]),
            is_oversubscribed=(
                cases[first].is_oversubscribed or cases[second].is_oversubscribed
            ),
        )
        for (first, second), modes in _pairs(study).items()
        if (first, second) not in broken
    ]
    p_values = {
        index: p_value
        for index, item in enumerate(found)
        if not item.is_oversubscribed and (p_value := _p_value(item)) is not None
    }
    adjusted = dict(
        zip(p_values, generations.holm(list(p_values.values())), strict=True)
    )
    return tuple(
        dataclasses.replace(
            item,
            num_compared=max(len(p_values), 1),
            holds=adjusted.get(index, 1.0) < generations.DEFAULT_ALPHA
            # Of a busy machine, the interval is wider than the test knows.
            and item.ratio is not None
            and item.ratio.excludes(1.0),
        )
        for index, item in enumerate(found)
    )


def _pairs(study: Study) -> Mapping[tuple[str, str], tuple[ScalingMode, ...]]:
    """Returns the modes of each pair of cases, by their ids."""
    index = cases_lib.by_mode_and_size(study)
    found: dict[tuple[str, str], list[ScalingMode]] = {}
    sizes = sorted({key[2] for key in index})
    for num_replicas, mode in itertools.product(sizes, study.modes):
        present = [
            index[backend, mode, num_replicas]
            for backend in study.backends
            if (backend, mode, num_replicas) in index
        ]
        for first, second in itertools.combinations(present, 2):
            found.setdefault((first.case_id, second.case_id), []).append(mode)
    return {pair: tuple(modes) for pair, modes in found.items()}


def _p_value(item: Comparison) -> float | None:
    """Returns the two-sided p-value of the ratio 1; None without a spread."""
    if item.ratio is None or not item.ratio.has_interval:
        return None
    if not item.ratio.is_conclusive:
        return None
    mean = _mean(item.first, item.second)
    factor = generations.widening(
        mean.n, is_stopped_on_width=item.first.is_stopped_on_width
    )
    return mean.widened(factor).p_value()


def _mean(first: Case, second: Case) -> Mean:
    if first.is_in_relay and second.is_in_relay:
        return generations.mean_of_rounds(turn_logs(first, second))
    here, there = (
        {key: math.log(value) for key, value in values(case, throughput_of).items()}
        for case in (first, second)
    )
    if here.keys() == there.keys():
        return estimates.one_group([here[key] - there[key] for key in here])
    return estimates.two_groups(list(here.values()), list(there.values()))
