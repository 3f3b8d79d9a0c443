"""Definitions, formulas and statistics of all numbers in the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.page import page
from reports.words import marks, names, next_step
from results.figures import load, relay
from results.records.models import Order
from results.statistics import repetitions

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View

TITLE = "Method"
SLUG = "method"


def render(view: View) -> Markup:
    """Renders the method."""
    planned = view.study.planned
    return page.render(
        "method",
        view=view,
        command=next_step.command_of_study(view.study.plan),
        spec=planned[0].spec if planned else None,
        commits=", ".join(sorted(next_step.commits_of(view.study.cases))),
        names=names,
        is_relay=view.study.plan.measuring.order is Order.RELAY,
        marks=marks,
        load=load,
        relay=relay,
        statistics=repetitions,
    )
