"""How steps vary: their distribution, and step time by process and step."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

from reports.charts import rows, steps, style
from reports.page import page
from reports.page.sections.steps import measured_steps
from reports.words import formats
from results.records.models import ScalingMode

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View
    from results.study.cases import Case

TITLE = "Variation of steps"
SLUG = "variation"

FEWEST_STEPS = 5
"""Fewer steps have no distribution."""
MOST_PROCESSES = 32


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """Step times of the processes of one trial."""

    name: str  # Case and repetition.
    trial_id: str  # The trial.
    figure: Markup  # The heat map.


def _ends(view: View) -> list[Case]:
    """Returns the fewest and the most replicas of each backend, not oversubscribed."""
    found: dict[str, list[Case]] = {}
    for case in view.measured_cases:
        enough = len(measured_steps(case)) >= FEWEST_STEPS
        if enough and not case.is_oversubscribed:
            found.setdefault(case.spec.backend, []).append(case)
    chosen = []
    for cases in found.values():
        most = cases[-1].spec.num_replicas
        # At the most replicas, a case for each scaling mode.
        ends = [cases[0], *(c for c in cases if c.spec.num_replicas == most)]
        chosen += list({case.case_id: case for case in ends}.values())
    return chosen[: style.MOST_LINES]


def _dash(case: Case, cases: list[Case]) -> str:
    """Returns the dash of a mode, or dots for what both modes are compared with."""
    if case.spec.num_replicas == min(other.spec.num_replicas for other in cases):
        return ":"
    is_weak = ScalingMode.WEAK in case.modes
    return style.DASHES["weak" if is_weak else "strong"]


def _row(case: Case) -> rows.Row:
    spec, times = case.spec, measured_steps(case)
    batch = f"batch {spec.per_replica_batch_size}"
    return rows.Row(
        label=f"{spec.backend} x{spec.num_replicas}\n{batch}",
        backend=spec.backend,
        dots=tuple(1000 * time for time in times),
        text=formats.seconds(statistics.median(times)),
    )


def _heat(view: View) -> Heat | None:
    """Returns the case with the most processes, in its first repetition."""
    cases = [
        case
        for case in view.measured_cases
        if 1 < len(case.ok_entries[0].result.ranks) <= MOST_PROCESSES
    ]
    if not cases:
        return None
    case = max(cases, key=lambda case: len(case.ok_entries[0].result.ranks))
    entry = case.ok_entries[0]
    times = [rank.step_time_sec for rank in entry.result.ranks]
    if min(len(of) for of in times) < FEWEST_STEPS:
        return None
    name = f"{case.label}, {view.repetition} {entry.spec.repetition_index}"
    figure = steps.draw_processes(times, backend=case.spec.backend, name=name)
    return Heat(name=name, trial_id=entry.trial_id, figure=figure)


def render(view: View) -> Markup:
    """Renders both figures; nothing where steps were not recorded."""
    cases = _ends(view)
    of_processes = _heat(view)
    if not cases and of_processes is None:
        return page.NOTHING
    figure = None
    if cases:
        drawn = [_row(case) for case in cases]
        dashes = [_dash(case, cases) for case in cases]
        figure = steps.draw_distribution(drawn, dashes)
    return page.render("variation", view=view, figure=figure, heat=of_processes)
