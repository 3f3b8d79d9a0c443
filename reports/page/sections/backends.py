"""Comparison of backends: throughput ratios with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.charts import rows
from reports.page import page
from reports.words import cells, verdict

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View

TITLE = "Backends compared"
SLUG = "backends"


def render(view: View) -> Markup:
    """Renders the forest plot and its description."""
    measured = [item for item in view.comparisons if item.ratio is not None]
    texts = [(item, verdict.compare_text(item)) for item in view.comparisons]
    if not measured:
        return page.NOTHING
    drawn = rows.ratios(view.frame)
    figure = rows.draw_estimates(
        drawn,
        rows.Scale(
            label="ratio of throughput (1: equally fast)",
            reference=1.0,
            is_logarithmic=True,
        ),
        slug="forest",
        title="Throughput ratios of backends",
        description=" ".join(verdict.compare_text(item) for item in measured),
    )
    return page.render(
        "backends",
        view=view,
        figure=figure,
        texts=texts,
        num_left_out=len(measured) - len(drawn),
        csv=cells.of_rows(view.frame, "forest"),
    )
