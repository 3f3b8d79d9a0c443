"""Whether the input pipelines explain the time of a step: the control ``input_only``.

With T the mean time of a step, and f = T(input_only) / T(case) in every generation:

- *input-bound*: the interval of f is at or above 0.9. The pipelines alone take almost
  the whole step, so faster replicas, or faster communication, would wait for batches.
- *not input-bound*: the interval is below 0.9.
- otherwise inconclusive, as it is with one generation.

Pipelines run beside the step, so what they take alone is a lower limit of it, and not a
part that others add up to. On CPUs the control has the cores to itself: a step can wait
for its input without being input-bound by this rule, and the part ``input``
(``results/figures/lost_time.py``) shows that.

It explains a loss where T(input_only) is above T(one replica) as well: the pipelines
alone take longer than the step that N replicas are compared with.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results.statistics import estimates

if TYPE_CHECKING:
    import numpy as np

    from results.statistics.estimates import Estimate

METHOD = "Student's t of differences of step times over generations"
ONE_GENERATION = "no interval: one generation tells nothing about other processes"
FRACTION = 0.9
"""Least fraction of a step that the pipelines of an input-bound step take alone."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InputBound:
    """What the input pipelines of a case take alone."""

    input_sec: Estimate  # Seconds per step of the pipelines alone.
    fraction: Estimate  # Of the step of the case.
    excess_sec: Estimate  # What they take longer than the step of one replica.
    verdict: str  # ``input-bound``, ``not input-bound`` or ``inconclusive``.
    # Whether it is input-bound, and the pipelines alone take longer than the step of
    # one replica.
    explains_loss: bool


def over_generations(values: np.ndarray, unit: str = "") -> Estimate:
    """Returns the mean over generations with the interval of Student's t."""
    mean = estimates.one_group(values)
    return mean.estimate(METHOD, otherwise=ONE_GENERATION, unit=unit)


def judge(case: np.ndarray, baseline: np.ndarray, input_only: np.ndarray) -> InputBound:
    """Says whether a case is input-bound."""
    fraction = over_generations(input_only / case)
    excess = over_generations(input_only - baseline, "s")
    verdict = "inconclusive"
    if fraction.low is not None and fraction.low >= FRACTION:
        verdict = "input-bound"
    elif fraction.high is not None and fraction.high < FRACTION:
        verdict = "not input-bound"
    return InputBound(
        input_sec=over_generations(input_only, "s"),
        fraction=fraction,
        excess_sec=excess,
        verdict=verdict,
        explains_loss=(
            verdict == "input-bound" and excess.low is not None and excess.low > 0
        ),
    )
