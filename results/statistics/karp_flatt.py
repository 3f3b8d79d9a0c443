"""The serial fraction that would explain a speedup (Karp and Flatt 1990).

With p = N / N_b and s = X(N) / X(N_b):  e = (1/s - 1/p) / (1 - 1/p).  It is computed at
every N without a fit. It falls with s, so the ends of the speedup's interval give those
of e. If only a serial part were lost, e would be the same at every N; if it grows, more
is lost, such as communication that grows with N.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from results import errors
from results.statistics.law_solution import Interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from results.statistics.estimates import Estimate


def serial_fraction(
    speedup: Estimate, num_replicas: int, *, baseline_num_replicas: int = 1
) -> Interval:
    """Returns the serial fraction that would explain a speedup.

    Args:
      speedup: S(N) = N_b X(N) / X(N_b), with its interval.
      num_replicas: N.
      baseline_num_replicas: N_b.

    Raises:
      ResultsError: N is not greater than N_b.
    """
    if num_replicas <= baseline_num_replicas:
        raise errors.ResultsError(
            f"the Karp-Flatt serial fraction was requested at {num_replicas} replicas "
            f"with a baseline of {baseline_num_replicas}; it compares more replicas "
            "with fewer, so the baseline has none"
        )
    p = num_replicas / baseline_num_replicas

    def fraction(value: float | None) -> float | None:
        if value is None:
            return None
        return (baseline_num_replicas / value - 1 / p) / (1 - 1 / p)

    value = fraction(speedup.value)
    assert value is not None
    return Interval(value=value, low=fraction(speedup.high), high=fraction(speedup.low))


def trend(fractions: Mapping[int, Interval]) -> str:
    """Says in one line how serial fractions change with the replicas.

    Args:
      fractions: By number of replicas.
    """
    numbers = sorted(fractions)
    if len(numbers) <= 1:
        return "one number of replicas shows no trend"
    first, last = fractions[numbers[0]], fractions[numbers[-1]]
    if first.low is None or first.high is None or last.low is None or last.high is None:
        return "without intervals no trend can be stated"
    if last.low > first.high:
        return "it grows with the replicas: more than a serial part is lost"
    if last.high < first.low:
        return "it falls with the replicas: no fixed serial part explains the loss"
    return "the intervals at the fewest and the most replicas overlap: no trend"
