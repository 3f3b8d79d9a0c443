"""Steps, memory and start of each case, processes over steps, counts of windows."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from reports.charts import rows, style, svg
from reports.page import page
from reports.words import formats, names
from results.figures import scaling
from results.records import measuring

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view import View
    from results.study.cases import Case

FEWEST_STEPS: Final = 5
"""Fewer steps of a process have no pattern."""
MOST_PROCESSES: Final = 32


def render_steps(view: View) -> Markup:
    step_rows = view.frame[view.frame["figure"] == "steps"]
    of_cases = step_rows[step_rows["phase"] == "measure"].groupby("case", sort=False)[
        "value"
    ]
    steps = {label: times.to_numpy() for label, times in of_cases}
    # The first step of a process is traced.
    is_first = (step_rows["phase"] == "warmup") & (step_rows["step_index"] == 0)
    firsts = step_rows[is_first].groupby("case")["value"].agg(statistics.geometric_mean)
    table: list[dict[str, Any]] = [
        {
            "case": case,
            "steps": steps.get(case.label),
            "quartiles": None,
            "warmup": firsts.get(case.label),
            "start": scaling.case_cell(case, "time_to_first_step").estimate,
            "memory": scaling.case_cell(case, "peak_memory").estimate,
        }
        for case in view.measured_cases
    ]
    measured = [row for row in table if row["steps"] is not None]
    if not measured and not any(row["memory"] or row["start"] for row in table):
        return page.NOTHING
    for row in measured:
        row["quartiles"] = np.quantile(row["steps"], (0.25, 0.5, 0.75)).tolist()
    figure = None
    if measured:
        boxes = rows.cases_of(view.frame, "measure")
        described = (
            f"{row['case'].label}: median {formats.seconds(middle)}, middle half"
            f" {formats.seconds(low)} to {formats.seconds(high)}"
            for row in measured
            for low, middle, high in (row["quartiles"],)
        )
        draw = functools.partial(
            rows.draw_boxes,
            items=boxes,
            axis_label="time of one measured step, ms",
            look=style.PAGE,
        )
        figure = svg.draw(
            rows.size_of(boxes),
            draw,
            slug="steps-measured",
            title="Measured step times per case",
            description=f"{'; '.join(described)}.",
        )
    return page.render(
        "steps",
        view=view,
        figure=figure,
        heat=_heat(view),
        table=table,
        num_left_out=max(0, len(measured) - rows.MOST_ROWS),
        has_start=any(row["start"] for row in table),
    )


def _heat(view: View) -> dict[str, Any] | None:
    """Returns the case with the most processes, in its first repetition."""
    candidates = [
        (case, entry.result.ranks, entry)
        for case in view.measured_cases
        for entry in case.ok_entries[:1]
        if 1 < len(entry.result.ranks) <= MOST_PROCESSES
    ]
    if not candidates:
        return None
    case, ranks, entry = max(candidates, key=lambda item: len(item[1]))
    times = [rank.step_time_sec for rank in ranks]
    if min(map(len, times)) < FEWEST_STEPS:
        return None
    name = f"{case.label}, {view.repetition} {entry.spec.repetition_index}"
    figure = rows.draw_processes(times, backend=case.spec.backend, name=name)
    return {"name": name, "figure": figure}


class CaseCounts(NamedTuple):
    case: Case  # The case.
    values: tuple[float, ...]  # Of each ok trial that has the figure.
    unit: str  # Of the values.
    is_exact: bool  # Whether it is a count, which is written with all its digits.

    def text(self, value: float) -> str:
        if self.is_exact and value.is_integer():
            return formats.whole(int(value))
        is_ratio = self.unit in formats.RATIO_UNITS  # a percentage keeps its sign
        return formats.quality(value, self.unit if is_ratio else "1")

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)


def collect_counts(view: View) -> dict[str, list[CaseCounts]]:
    counts: list[tuple[str, CaseCounts]] = []
    for case in view.measured_cases:
        by_name = formats.grouped(
            (metric.name, metric)
            for entry in case.ok_entries
            for metric in entry.result.window_metrics
        )
        for name, metrics in by_name.items():
            values = tuple(metric.value for metric in metrics)
            is_exact = metrics[0].method == measuring.EXACT
            counts.append((name, CaseCounts(case, values, metrics[0].unit, is_exact)))
    return formats.grouped(counts)


def render_counts(view: View) -> Markup:
    counts = collect_counts(view)
    if not counts:
        return page.NOTHING
    shown = [
        {
            "name": names.metric(name, view.study.metrics),
            # Empty for shares, which are percentages.
            "unit": ""
            if counts_of_cases[0].unit in formats.RATIO_UNITS
            else counts_of_cases[0].unit,
            # Cases without the figure are missing.
            "cells": {
                case_counts.case.case_id: case_counts for case_counts in counts_of_cases
            },
        }
        for name, counts_of_cases in counts.items()
    ]
    columns = {
        counts_of_cases.case.case_id: counts_of_cases.case
        for cases in counts.values()
        for counts_of_cases in cases
    }
    return page.render("counts", view=view, rows=shown, columns=[*columns.values()])
