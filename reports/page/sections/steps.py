"""Step times and their variation, time to first step, memory, counts of windows."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING, Final, NamedTuple

from reports.charts import rows, style, svg
from reports.charts import steps as charts
from reports.page import page
from reports.words import cells, formats, names
from results.figures import scaling
from results.records import measuring
from results.records.models import ScalingMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from reports.view import View
    from reports.words.formats import Write
    from results.figures.scaling import Cell
    from results.study.cases import Case

MOST_WARMUP_DOTS: Final = 30
"""Of more warmup steps of a case than this, the shortest and the longest are drawn."""
FEWEST_STEPS: Final = 5
"""Fewer steps have no distribution."""
MOST_PROCESSES: Final = 32


def _steps(case: Case, name: str = "step_time_sec") -> tuple[float, ...]:
    """Returns every step of every process of the ok trials, in seconds."""
    return tuple(
        step
        for entry in case.ok_entries
        for rank in entry.result.ranks
        for step in getattr(rank, name)
    )


def _quartiles(values: tuple[float, ...]) -> Sequence[float]:
    if len(values) == 1:
        return values * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def _warmup_row(case: Case, steps: tuple[float, ...]) -> rows.Row:
    """All warmup steps as dots, and the mean first step as the marker."""
    firsts = [
        rank.warmup_step_time_sec[0]
        for entry in case.ok_entries
        for rank in entry.result.ranks
        if rank.warmup_step_time_sec
    ]
    first = statistics.geometric_mean(firsts)
    name = f"{rows.of_case(case).name}: first step of a process"
    return rows.of_case(
        case,
        value=first,
        dots=steps if len(steps) <= MOST_WARMUP_DOTS else (min(steps), max(steps)),
        text=formats.seconds(first),
        tip=svg.of_value(name, first, formats.seconds, n=len(firsts)),
    )


def render_steps(view: View) -> Markup:
    """Renders the two distributions and their table."""
    measured = [
        (case, steps, _quartiles(steps))
        for case in view.measured_cases
        if (steps := _steps(case))
    ]
    warmup = [
        _warmup_row(case, steps)
        for case in view.measured_cases
        if (steps := _steps(case, "warmup_step_time_sec"))
    ]
    panels = []
    if measured:
        boxes = charts.cases_of(view.frame, "measure")
        described = (
            f"{case.label}: median {formats.seconds(median)}, middle half "
            f"{formats.seconds(low)} to {formats.seconds(high)}, {len(steps)} steps"
            for case, steps, (low, median, high) in measured
        )
        draw = functools.partial(
            charts.draw_boxes,
            items=boxes,
            axis_label="time of one measured step, ms",
            look=style.PAGE,
        )
        panels.append(
            svg.draw(
                rows.size_of(boxes),
                draw,
                slug="steps-measured",
                title="Measured step times per case",
                description=f"{'; '.join(described)}.",
            )
        )
    if warmup:
        drawn = rows.most_replicas(warmup)
        label = "time of one warmup step, s (logarithmic)"
        described = (f"{row.name}: first {row.text}" for row in drawn)
        panels.append(
            rows.draw_estimates(
                drawn,
                rows.Scale(label=label, is_logarithmic=True),
                slug="steps-warmup",
                title="Warmup step times per case",
                description=f"{'; '.join(described)}.",
            )
        )
    if not panels:
        return page.NOTHING
    return page.render(
        "steps",
        view=view,
        panels=panels,
        table=measured,
        num_left_out=max(0, len(measured) - rows.MOST_ROWS),
        csv=cells.of_steps(view.frame),
    )


def _ends(view: View) -> list[Case]:
    """Returns the fewest and the most replicas of each backend, not oversubscribed."""
    found = formats.grouped(
        (case.spec.backend, case)
        for case in view.measured_cases
        if len(_steps(case)) >= FEWEST_STEPS and not case.is_oversubscribed
    )
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
    return style.DASHES["weak" if ScalingMode.WEAK in case.modes else "strong"]


def _steps_row(case: Case) -> rows.Row:
    spec, times = case.spec, _steps(case)
    batch = f"batch {spec.per_replica_batch_size}"
    return rows.Row(
        label=f"{spec.backend} x{spec.num_replicas}\n{batch}",
        backend=spec.backend,
        dots=tuple(1000 * time for time in times),
        text=formats.seconds(statistics.median(times)),
    )


def _heat(view: View) -> dict[str, str] | None:
    """Returns the case with the most processes, in its first repetition."""
    found = [
        (case, entry.result.ranks, entry)
        for case in view.measured_cases
        for entry in case.ok_entries[:1]
        if 1 < len(entry.result.ranks) <= MOST_PROCESSES
    ]
    if not found:
        return None
    case, ranks, entry = max(found, key=lambda item: len(item[1]))
    times = [rank.step_time_sec for rank in ranks]
    if min(map(len, times)) < FEWEST_STEPS:
        return None
    name = f"{case.label}, {view.repetition} {entry.spec.repetition_index}"
    figure = charts.draw_processes(times, backend=case.spec.backend, name=name)
    return {"name": name, "trial_id": entry.trial_id, "figure": figure}


def render_variation(view: View) -> Markup:
    """Renders both figures; nothing where steps were not recorded."""
    cases, heat = _ends(view), _heat(view)
    if not cases and heat is None:
        return page.NOTHING
    figure = None
    if cases:
        dashes = [_dash(case, cases) for case in cases]
        figure = charts.draw_distribution([*map(_steps_row, cases)], dashes)
    return page.render("variation", view=view, figure=figure, heat=heat)


class _Panel(NamedTuple):
    """One quantity: its figure, in the unit of its axis."""

    quantity: str
    slug: str
    name: str
    unit: str
    scale: float
    write: Write


_PANELS: Final = (
    _Panel(
        *("time_to_first_step", "first-step", "Time to first step", "s", 1.0),
        formats.seconds,
    ),
    _Panel(
        *("peak_memory", "memory", "Peak memory", "GiB", float(formats.GIBIBYTE)),
        formats.gibibytes,
    ),
)


def _startup_row(case: Case, cell: Cell, panel: _Panel) -> rows.Row:
    whole = cell.estimate
    assert whole is not None
    estimate = whole.scaled(1 / panel.scale)
    return rows.of_case(
        case,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        dots=tuple(value / panel.scale for value in cell.values),
        text=panel.write(estimate.value * panel.scale),
        tip=svg.of_value(
            rows.of_case(case).name,
            whole.value,
            panel.write,
            interval=(whole.low, whole.high),
            n=whole.n,
        ),
    )


def render_startup(view: View) -> Markup:
    """Renders both quantities and one table."""
    listed = [
        (case, [scaling.of_trials(case, panel.quantity) for panel in _PANELS])
        for case in view.measured_cases
    ]
    listed = [row for row in listed if any(cell.estimate for cell in row[1])]
    if not listed:
        return page.NOTHING
    panels = []
    for index, panel in enumerate(_PANELS):
        drawn = [
            _startup_row(case, cells[index], panel)
            for case, cells in listed
            if cells[index].estimate
        ]
        if drawn:
            label = f"{panel.name.lower()}, {panel.unit}"
            panels.append(
                rows.draw_estimates(
                    rows.most_replicas(drawn),
                    rows.Scale(label=label, is_from_zero=True),
                    slug=panel.slug,
                    title=f"{panel.name} per case",
                )
            )
    return page.render(
        "startup",
        view=view,
        panels=panels,
        table=[(case, *(cell.estimate for cell in cells)) for case, cells in listed],
        num_left_out=max(0, len(listed) - rows.MOST_ROWS),
        is_first_step_missing=any(cells[0].estimate is None for _, cells in listed),
    )


class CaseCounts(NamedTuple):
    """One figure of one case: a value per trial."""

    case: Case  # The case.
    values: tuple[float, ...]  # Of each ok trial that has the figure.
    unit: str  # Of the values.
    trial_ids: tuple[str, ...]  # The trials.
    is_exact: bool  # Whether it is a count, which is written with all its digits.

    def text(self, value: float) -> str:
        """Writes one of its values, or their mean."""
        if self.is_exact and value.is_integer():
            return formats.whole(int(value))
        return formats.without_unit(value, self.unit)

    @property
    def mean(self) -> float:
        """Arithmetic mean over trials."""
        return statistics.fmean(self.values)


def collect_counts(view: View) -> dict[str, list[CaseCounts]]:
    """Returns the counts of every measured case, by name."""
    found: list[tuple[str, CaseCounts]] = []
    for case in view.measured_cases:
        by_name = formats.grouped(
            (metric.name, (entry.trial_id, metric))
            for entry in case.ok_entries
            for metric in entry.result.window_metrics
        )
        for name, trials in by_name.items():
            trial_ids, metrics = zip(*trials, strict=True)
            counts = CaseCounts(
                case=case,
                values=tuple(metric.value for metric in metrics),
                unit=metrics[0].unit,
                trial_ids=trial_ids,
                is_exact=metrics[0].method == measuring.EXACT,
            )
            found.append((name, counts))
    return formats.grouped(found)


def render_counts(view: View) -> Markup:
    """Renders one table: a row per figure, a column per case."""
    counts = collect_counts(view)
    if not counts:
        return page.NOTHING
    shown = [
        {
            "name": names.metric(name, view.study.metrics),
            # Empty for shares, which are percentages.
            "unit": "" if of[0].unit in formats.RATIO_UNITS else of[0].unit,
            # Cases without the figure are missing.
            "cells": {found.case.case_id: found for found in of},
        }
        for name, of in counts.items()
    ]
    columns = {of.case.case_id: of for cases in counts.values() for of in cases}
    return page.render("counts", view=view, rows=shown, columns=[*columns.values()])
