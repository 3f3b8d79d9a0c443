"""Several comparisons at once: which differences hold when all are looked at.

Each interval covers the truth in 95 % of studies by itself. Of twenty, one is expected
to miss, so a difference that is picked out of a set needs stronger evidence. Holm's
procedure (Scandinavian Journal of Statistics 6, 1979) keeps the probability of even one
false difference at ``alpha``, whatever the dependence between the comparisons: the
smallest of m p-values is multiplied by m, the next by m - 1, and so on, and no adjusted
value is below the one before it.

An interval may therefore exclude 1 where the difference does not hold within the set.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from results import errors
from results.statistics import estimates, generations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from results.statistics.estimates import Estimate, Mean

DEFAULT_ALPHA = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One comparison of a set."""

    ratio: Estimate  # With its own 95 % interval.
    # Two-sided, of the ratio 1, adjusted for the set; None for fewer than two
    # generations, which test nothing and do not count in the set.
    p_value: float | None
    holds: bool  # Whether the ratio differs from 1 when all comparisons are looked at.


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Returns p-values adjusted for their number, in the order given."""
    for value in p_values:
        if not 0 <= value <= 1:
            raise errors.ResultsError(
                f"p_values holds {value!r}, all must be from 0 to 1"
            )
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = values.size - np.arange(values.size)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return tuple(adjusted.tolist())


def differences(
    means: Mapping[str, Mean],
    *,
    method: str = generations.OVER_GENERATIONS,
    alpha: float = DEFAULT_ALPHA,
) -> dict[str, Difference]:
    """Each comparison with its interval, and whether it holds within the set."""
    if not 0 < alpha < 1:
        raise errors.ResultsError(
            f"alpha is {alpha!r}, must be more than 0 and less than 1: the accepted "
            "probability of a false difference in the set, such as 0.05"
        )
    single = {
        name: value
        for name, mean in means.items()
        if (value := mean.p_value()) is not None
    }
    adjusted = dict(zip(single, holm(list(single.values())), strict=True))
    return {
        name: Difference(
            ratio=estimates.from_logs(
                mean.estimate(method, otherwise=generations.NO_GENERATIONS)
            ),
            p_value=adjusted.get(name),
            holds=adjusted.get(name, 1.0) < alpha,
        )
        for name, mean in means.items()
    }
