"""Which backend is faster: ratios of throughput, all else equal.

Each ratio has its own 95 % interval. Of six equal backends, one of their fifteen ratios
excludes 1 in most studies. So a difference is claimed only where it holds among all
ratios of the study, by Holm's procedure (``results/statistics/generations.py``).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

from results.figures import scaling
from results.statistics import estimates, generations
from results.study import agreement
from results.study import cases as cases_lib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from results.records.models import ScalingMode
    from results.statistics.estimates import Estimate, Mean
    from results.study.cases import Case, Study


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


def of_study(study: Study) -> tuple[Comparison, ...]:
    """Returns every pair of backends that ran under equal conditions.

    A case that serves both modes is compared once. Pairs are in planned order: the
    backend named first is the numerator. Pairs whose losses show that they do not
    compute the same are left out (``results/study/agreement.py``). Oversubscribed pairs
    are no evidence, and are not among those that are tested together.
    """
    broken = {pair.case_ids for pair in agreement.of_study(study).broken}
    cases = {case.case_id: case for case in study.cases}
    found = [
        Comparison(
            first=cases[first],
            second=cases[second],
            modes=modes,
            ratio=scaling.throughput_ratio(cases[first], cases[second]),
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
        return generations.mean_of_rounds(scaling.turn_logs(first, second))
    here, there = (
        {
            key: math.log(value)
            for key, value in scaling.values(case, scaling.throughput_of).items()
        }
        for case in (first, second)
    )
    if here.keys() == there.keys():
        return estimates.one_group([here[key] - there[key] for key in here])
    return estimates.two_groups(list(here.values()), list(there.values()))
