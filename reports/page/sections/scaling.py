"""Throughput, speedup and parallel efficiency against the ideal line; Amdahl's law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.charts import data, over_replicas, quantities, references, replica_panel
from reports.page import page
from results.figures import amdahl_fits
from results.records.models import ScalingMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from reports.charts.quantities import Quantity
    from reports.view.view import View
    from results.figures.amdahl_fits import AmdahlFit

TITLE = "Scaling"
SLUG = "scaling"

MOST_WITHOUT_LAW = 2
SCALES = (("linear", "From zero", False), ("log", "Logarithmic", True))
"""Slug, name, and whether the axes are logarithmic; the first is shown."""


def _views(view: View) -> list[dict[str, Any]]:
    """Returns the panels of each quantity on each scale: one figure with a switch."""
    found = view.frame[view.frame["figure"] == "scaling"]
    modes = list(dict.fromkeys(found["mode"]))
    groups = replica_panel.panels_of(found)
    return [
        {
            "quantity": quantity,
            "scale": scale,
            "panels": [
                _draw(view, quantity, mode, group, is_log=is_log, number=number)
                for number, group in enumerate(groups)
                for mode in modes
            ],
        }
        for quantity in quantities.QUANTITIES
        for scale, _, is_log in SCALES
        if groups
    ]


def _draw(
    view: View,
    quantity: Quantity,
    mode: str,
    backends: list[str],
    *,
    is_log: bool,
    number: int,
) -> Markup:
    """Draws one panel, with published figures beside measured efficiency."""
    found = view.frame[view.frame["figure"] == "scaling"]
    panel = replica_panel.panel_of_mode(
        found, quantity, mode, backends=backends, is_log=is_log
    )
    published = view.references if quantity is quantities.EFFICIENCY else ()
    shown = published, ScalingMode(mode), panel.sizes
    scale = ", logarithmic" if is_log else ""
    suffix = f"-{number}" if number else ""
    return over_replicas.draw(
        panel,
        slug=f"{quantity.slug}-{mode}{'-log' if is_log else ''}{suffix}",
        title=f"{quantity.name}, {mode} scaling{scale}",
        more=references.describe(*shown),
        draw_more=lambda axes: references.draw(axes, *shown),
    )


def _laws(view: View) -> Sequence[AmdahlFit]:
    """Returns what was fitted, or not; nothing of two sizes, which have no law."""
    sizes = {point.num_replicas for point in view.points}
    return amdahl_fits.of_points(view.points) if len(sizes) > MOST_WITHOUT_LAW else ()


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
        laws=_laws(view),
        csv=data.of_rows(view.frame, "scaling"),
        references=view.references,
        reference_marks=references.marks(view.references),
    )
