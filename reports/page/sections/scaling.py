"""Throughput, speedup and parallel efficiency against the ideal line; Amdahl's law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.charts import data, quantities, references
from reports.charts import scaling as drawing
from reports.page import page
from results.figures import amdahl_fits

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View

TITLE = "Scaling"
SLUG = "scaling"

SCALES = (("linear", "From zero", False), ("log", "Logarithmic", True))
"""Slug, name, and whether the axes are logarithmic; the first is shown."""


def _views(view: View) -> list[dict[str, Any]]:
    """Returns the panels of each quantity on each scale: one figure with a switch."""
    found = view.frame[view.frame["figure"] == "scaling"]
    if found.empty:
        return []
    modes = list(dict.fromkeys(found["mode"]))
    panels = drawing.panels_of(found)
    return [
        {
            "quantity": quantity,
            "scale": scale,
            "panels": [
                drawing.draw(
                    found,
                    quantity,
                    mode,
                    backends=backends,
                    is_log=is_log,
                    suffix=f"-{number}" if number else "",
                    published=view.references,
                )
                for number, backends in enumerate(panels)
                for mode in modes
            ],
        }
        for quantity in quantities.QUANTITIES
        for scale, _, is_log in SCALES
    ]


def render(view: View) -> Markup:
    """Renders one figure of three quantities, a panel per mode, and Amdahl's law."""
    if not view.is_anything_measured or not view.study.cases:
        return page.NOTHING
    return page.render(
        "scaling",
        view=view,
        views=_views(view),
        quantities=quantities.QUANTITIES,
        scales=SCALES,
        laws=amdahl_fits.of_points(view.points),
        csv=data.of_rows(view.frame, "scaling"),
        references=view.references,
        reference_marks=references.marks(view.references),
    )
