"""Fitted laws of throughput with their band and knee; nothing where all are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.charts import law
from reports.page import page
from results.figures import scaling_laws

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View

TITLE = "Law of scaling"
SLUG = "laws"

MOST_PANELS = 8


def render(view: View) -> Markup:
    """Renders a panel per backend and mode, and why others have none."""
    curves = scaling_laws.of_points(view.points, view.study.plan.baseline_num_replicas)
    fitted = [curve for curve in curves if curve.fits]
    if not fitted:
        return page.NOTHING
    panels = []
    for number, curve in enumerate(fitted[:MOST_PANELS]):
        measured = {
            point.num_replicas: point.throughput.value
            for point in view.points_of(curve.mode, curve.backend)
            if point.throughput is not None and not point.is_oversubscribed
        }
        panels.append(
            law.draw(
                curve.fits,
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
