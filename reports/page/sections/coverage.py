"""Every trial with its status: what ran, what failed and why."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from reports.page import page
from results.figures import table

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View
    from results.study.cases import Entry

TITLE = "Coverage and failures"
SLUG = "coverage"


def _row(entry: Entry) -> dict[str, Any]:
    status = entry.trial.status if entry.trial is not None else None
    row: dict[str, Any] = {
        "entry": entry,
        "status": status,
        "failure": status.failure if status is not None else None,
    }
    if entry.is_ok:
        row["throughput"] = table.of_trial(entry, "throughput")
        row["first_step"] = table.of_trial(entry, "time_to_first_step")
        row["step"] = statistics.median(
            step for rank in entry.result.ranks for step in rank.step_time_sec
        )
    return row


def render(view: View) -> Markup:
    """Renders the coverage table, the failures, and the table of all trials."""
    rows = [_row(entry) for entry in view.study.entries]
    problems = [(problem.label, problem.reason) for problem in view.study.problems]
    return page.render(
        "coverage",
        view=view,
        rows=rows,
        failures=[row for row in rows if not row["entry"].is_ok],
        problems=problems,
    )
