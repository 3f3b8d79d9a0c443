"""The findings in words, before any figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports import page, verdict

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view import View

TITLE = "Verdict"
SLUG = "verdict"


def render(view: View) -> Markup:
    """Renders the verdict."""
    return page.render("verdict", view=view, verdict=verdict.judge(view))
