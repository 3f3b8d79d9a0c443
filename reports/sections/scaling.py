"""Throughput, speedup and parallel efficiency against the ideal line; laws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports import page
from reports.figures import scaling as drawing
from results import scaling_laws

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view import View

TITLE = "Scaling"
SLUG = "scaling"

LEADS = {
    "throughput": "Examples of the global batch per second, both axes logarithmic. "
    "Dotted: ideal scaling from each backend's own baseline.",
    "speedup": "Throughput relative to the backend's own baseline, both axes "
    "logarithmic. Dotted: ideal.",
    "efficiency": "Speedup divided by the number of replicas. Dotted: ideal.",
}


def render(view: View) -> Markup:
    """Renders one figure per quantity, one panel per scaling mode."""
    if not view.is_anything_measured or not view.study.cases:
        return page.NOTHING
    figures = [
        {
            "quantity": quantity,
            "lead": LEADS[quantity.slug],
            "panels": [drawing.draw(quantity, view, mode) for mode in view.study.modes],
        }
        for quantity in drawing.QUANTITIES
    ]
    laws = scaling_laws.of_points(view.points, view.study.plan.baseline_num_replicas)
    return page.render("scaling", view=view, figures=figures, laws=laws)
