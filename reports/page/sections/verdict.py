"""The first screen: the verdict, how far to trust it, and one figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.charts import hero
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
    shown = hero.lines(view)
    return page.render(
        "verdict",
        view=view,
        brief=brief.judge(view),
        marks=marks.of_view(view),
        figure=figure,
        modes=list(dict.fromkeys(line.mode.value for line in shown)),
        num_left_out=max(len(shown) - hero.MOST_LINES, 0),
        has_ceiling=bool(hero.ceilings(view)),
        is_oversubscribed=any(
            point.is_oversubscribed for line in shown for point in line.points
        ),
    )
