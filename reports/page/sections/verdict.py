"""The first screen: the verdict, how far to trust it, and one figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from reports.charts import hero, over_replicas
from reports.page import page
from reports.words import brief, marks

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View

TITLE = "Verdict"
SLUG = "verdict"


def render(view: View) -> Markup:
    """Renders the verdict in words, the marks and the figure."""
    figure = hero.draw(view)
    curves = hero.curves(view)
    rows = pd.concat([view.frame.head(0), *(curve.rows for curve in curves)])
    return page.render(
        "verdict",
        view=view,
        brief=brief.judge(view),
        marks=marks.of_view(view),
        figure=figure,
        modes=set(rows["mode"]),
        num_left_out=max(len(curves) - over_replicas.MOST_LINES, 0),
        has_ceiling=rows["kind"].eq("ceiling").any(),
        is_oversubscribed=rows["is_oversubscribed"].any(),
    )
