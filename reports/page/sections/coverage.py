"""Every trial with its status, and the machines and software that they ran on."""

from __future__ import annotations

import collections
import statistics
from typing import TYPE_CHECKING, Any

from reports.page import page
from reports.words import trust, utilisation
from results.figures import scaling

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View
    from results.records.models import Environment
    from results.study.cases import Entry


def _row(entry: Entry) -> dict[str, Any]:
    status = entry.trial.status if entry.trial is not None else None
    row: dict[str, Any] = {
        "entry": entry,
        "status": status,
        "failure": status.failure if status is not None else None,
    }
    if entry.is_ok:
        row["throughput"] = scaling.of_trial(entry, "throughput")
        row["first_step"] = scaling.of_trial(entry, "time_to_first_step")
        row["step"] = statistics.median(
            step for rank in entry.result.ranks for step in rank.step_time_sec
        )
    return row


def render_coverage(view: View) -> Markup:
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


def render_machine(view: View) -> Markup:
    """Renders the facts of each environment; warns if there are several."""
    trials: dict[str, list[str]] = collections.defaultdict(list)
    records: dict[str, list[Environment]] = collections.defaultdict(list)
    entries: dict[str, list[Entry]] = collections.defaultdict(list)
    for entry in view.study.planned:
        if entry.trial is not None and entry.trial.env is not None:
            trials[entry.trial.env.fingerprint].append(entry.trial_id)
            records[entry.trial.env.fingerprint].append(entry.trial.env)
            entries[entry.trial.env.fingerprint].append(entry)
    machines = [
        {
            "fingerprint": fingerprint,
            "env": environments[0],
            "trial_ids": trials[fingerprint],
            "drift": trust.of_entries(view, entries[fingerprint]),
            # Trials have different numbers of them.
            "gpus": max((env.gpus for env in environments), key=len),
            "gpu_uses": utilisation.while_measured(environments),
            "gpu_sharing": utilisation.sharing(environments),
            "gpu_products": utilisation.products(environments),
            "gpu_energy": utilisation.energy(entries[fingerprint]),
            "loads": [
                env.load_average_before
                for env in environments
                if env.load_average_before is not None
            ],
            "foreign": [
                env.foreign_cpu_fraction
                for env in environments
                if env.foreign_cpu_fraction is not None
            ],
            "stolen": [
                env.stolen_cpu_fraction
                for env in environments
                if env.stolen_cpu_fraction is not None
            ],
        }
        for fingerprint, environments in records.items()
    ]
    return page.render("machine", view=view, machines=machines)
