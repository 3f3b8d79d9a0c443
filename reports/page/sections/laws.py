"""Amdahl's law of throughput with its band; nothing where all fits are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.charts import law
from reports.page import page
from results.figures import amdahl_fits

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View

TITLE = "Amdahl's law"
SLUG = "laws"

MOST_PANELS = 8


def render(view: View) -> Markup:
    """Renders a panel per backend and mode, and why others have none."""
    curves = amdahl_fits.of_points(view.points)
    fitted = [(curve, curve.fit) for curve in curves if curve.fit is not None]
    if not fitted:
        return page.NOTHING
    panels = []
    for number, (curve, fit) in enumerate(fitted[:MOST_PANELS]):
        measured = {
            point.num_replicas: point.throughput.value
            for point in view.points_of(curve.mode, curve.backend)
            if point.throughput is not None and not point.is_oversubscribed
        }
        panels.append(
            law.draw(
                fit,
                measured,
                series=view.series(curve.backend),
                name=f"{curve.backend}, {curve.mode.value}",
                unit=view.rate_unit,
                slug=f"law-{number}",
            )
        )
    return page.render(
        "laws",
        view=view,
        panels=panels,
        num_left_out=len(fitted) - len(panels),
        refused=[curve for curve in curves if curve.refusal],
    )
