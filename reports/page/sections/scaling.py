"""Throughput, speedup and parallel efficiency against the ideal line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.charts import over_replicas
from reports.page import page
from reports.words import cells

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.charts.over_replicas import Quantity
    from reports.view.view import View

TITLE = "Scaling"
SLUG = "scaling"

SCALES = (("linear", "From zero", False), ("log", "Logarithmic", True))
"""Slug, name, and whether the axes are logarithmic; the first is shown."""


def _views(view: View) -> list[dict[str, Any]]:
    """Returns the panels of each quantity on each scale: one figure with a switch."""
    found = view.frame[view.frame["figure"] == "scaling"]
    modes = list(dict.fromkeys(found["mode"]))
    groups = over_replicas.panels_of(found)
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
        for quantity in over_replicas.QUANTITIES
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
    """Draws one panel."""
    found = view.frame[view.frame["figure"] == "scaling"]
    panel = over_replicas.panel_of_mode(
        found, quantity, mode, backends=backends, is_log=is_log
    )
    scale = ", logarithmic" if is_log else ""
    suffix = f"-{number}" if number else ""
    return over_replicas.draw(
        panel,
        slug=f"{quantity.slug}-{mode}{'-log' if is_log else ''}{suffix}",
        title=f"{quantity.name}, {mode} scaling{scale}",
    )


def render(view: View) -> Markup:
    """Renders one figure of three quantities, a panel per mode."""
    if not view.is_anything_measured or not view.study.cases:
        return page.NOTHING
    return page.render(
        "scaling",
        view=view,
        views=_views(view),
        quantities=over_replicas.QUANTITIES,
        scales=SCALES,
        csv=cells.of_rows(view.frame, "scaling"),
    )
