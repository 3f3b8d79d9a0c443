"""Amdahl's law of every curve of a study that has enough numbers of replicas.

Each curve is one backend in one scaling mode. Oversubscribed cases are no evidence on
scaling, so no fit uses them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from results import errors
from results.figures import scaling
from results.statistics import amdahl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.figures.scaling import Point
    from results.records.models import ScalingMode
    from results.statistics.amdahl import Fit


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AmdahlFit:
    """What Amdahl's law says about one curve.

    Attributes:
      backend: Backend of the curve.
      mode: Its scaling mode.
      fit: The law; None where it is refused.
      refusal: Why there is none, in one line; empty if there is.
    """

    backend: str
    mode: ScalingMode
    fit: Fit | None
    refusal: str


def of_points(points: Sequence[Point]) -> list[AmdahlFit]:
    """Returns the fit of every curve that has a speedup, in the order of the points.

    Args:
      points: Those of ``scaling.points``.
    """
    curves: dict[tuple[ScalingMode, str], list[Point]] = {}
    for point in points:
        if point.throughput is not None and not point.is_oversubscribed:
            curves.setdefault((point.mode, point.backend), []).append(point)
    found = []
    for (mode, backend), of_curve in curves.items():
        if all(point.speedup is None for point in of_curve):
            continue
        fit, refusal = None, ""
        try:
            fit = amdahl.fit(
                {
                    point.num_replicas: list(
                        scaling.values(point.case, scaling.throughput_of).values()
                    )
                    for point in of_curve
                }
            )
        except errors.ResultsError as error:
            refusal = str(error)
        found.append(AmdahlFit(backend=backend, mode=mode, fit=fit, refusal=refusal))
    return found
