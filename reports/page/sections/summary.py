"""All figures of merit in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.page import page
from reports.words import next_step
from results.figures import table

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View

TITLE = "Summary"
SLUG = "summary"


def render(view: View) -> Markup:
    """Renders the table of points."""
    if not any(point.throughput for point in view.points):
        return page.NOTHING
    return page.render(
        "summary",
        view=view,
        rows=[(point, table.ratios(point)) for point in view.points],
        reproduce=next_step,
    )
