"""The findings in words, each with its interval, and the limits of the study."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.page import page
from reports.words import verdict

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View

TITLE = "Findings"
SLUG = "findings"


def render(view: View) -> Markup:
    """Renders every finding with its trials, then what limits them."""
    return page.render("findings", view=view, verdict=verdict.judge(view))
