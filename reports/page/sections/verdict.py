"""The first screen: the verdict, how far to trust it, and one figure; or a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.charts import over_replicas, rows, style
from reports.page import page
from reports.words import brief, marks

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View

TITLE = "Verdict"
SLUG = "verdict"


def render(view: View) -> Markup:
    """Renders the verdict in words, the marks and the figure; of a gate, its own."""
    judged = brief.of_view(view)
    if judged is not None:
        return page.render(
            "gate",
            view=view,
            gate=judged,
            figure=None if judged.record is None else rows.draw_gate(judged.record),
            change=brief.change,
            marks=marks.of_view(view),
        )
    curves = over_replicas.curves_of_first_screen(view)
    drawn = [row for curve in curves for row in curve.rows]
    return page.render(
        "verdict",
        view=view,
        brief=brief.judge(view),
        columns=brief.columns(view),
        marks=marks.of_view(view),
        figure=over_replicas.draw_first_screen(view),
        modes={row.mode for row in drawn},
        num_left_out=max(len(curves) - style.MOST_LINES, 0),
        has_ceiling=any(row.kind == "ceiling" for row in drawn),
        is_oversubscribed=any(row.is_oversubscribed for row in drawn),
    )
