"""The laws of a study: serial fractions at every N, and fits where there are enough N.

Each curve is one backend in one scaling mode. Oversubscribed cases are no evidence on
scaling, so no law uses them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results import errors
from results.figures import scaling
from results.statistics import karp_flatt, laws
from results.statistics.law_solution import LAWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.figures.scaling import Point
    from results.records.models import ScalingMode
    from results.statistics.law_solution import Interval
    from results.statistics.laws import Fit


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CurveLaws:
    """What the laws say about one curve.

    Attributes:
      backend: Backend of the curve.
      mode: Its scaling mode.
      fractions: Karp-Flatt serial fraction, by number of replicas with a speedup.
      points: The points of these, by number of replicas.
      trend: How the fractions change with the replicas, in one line.
      fits: Fitted laws; empty where they are refused.
      refusal: Why there are none, in one line; empty if there are.
    """

    backend: str
    mode: ScalingMode
    fractions: dict[int, Interval]
    points: dict[int, Point]
    trend: str
    fits: tuple[Fit, ...]
    refusal: str


def of_points(points: Sequence[Point], baseline_num_replicas: int) -> list[CurveLaws]:
    """Returns the laws of every curve that has a speedup, in the order of the points.

    Args:
      points: Those of ``scaling.points``.
      baseline_num_replicas: N_b.
    """
    curves: dict[tuple[ScalingMode, str], list[Point]] = {}
    for point in points:
        if point.throughput is not None and not point.is_oversubscribed:
            curves.setdefault((point.mode, point.backend), []).append(point)
    found = []
    for (mode, backend), of_curve in curves.items():
        with_speedup = {
            point.num_replicas: point for point in of_curve if point.speedup is not None
        }
        if not with_speedup:
            continue
        fractions = {
            n: karp_flatt.serial_fraction(
                point.speedup, n, baseline_num_replicas=baseline_num_replicas
            )
            for n, point in with_speedup.items()
            if point.speedup is not None
        }
        fits, refusal = _fit(of_curve)
        found.append(
            CurveLaws(
                backend=backend,
                mode=mode,
                fractions=fractions,
                points=with_speedup,
                trend=karp_flatt.trend(fractions),
                fits=fits,
                refusal=refusal,
            )
        )
    return found


def _fit(points: Sequence[Point]) -> tuple[tuple[Fit, ...], str]:
    throughputs = {
        point.num_replicas: list(
            scaling.values(point.case, scaling.throughput_of).values()
        )
        for point in points
    }
    try:
        return tuple(laws.fit(law, throughputs) for law in LAWS), ""
    except errors.ResultsError as error:
        return (), str(error)
