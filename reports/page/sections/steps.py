"""Step times and their variation, time to first step, memory, counts of windows."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from typing import TYPE_CHECKING, Final

from reports.charts import rows, style, svg
from reports.charts import steps as charts
from reports.page import page
from reports.words import cells, formats, names
from results.figures import scaling
from results.records import measuring
from results.records.models import ScalingMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from markupsafe import Markup

    from reports.view.view import View
    from results.figures.scaling import Cell
    from results.records.models import MetricFacts, QualityMetric
    from results.study.cases import Case


MOST_WARMUP_DOTS = 30
"""Of more warmup steps of a case than this, the shortest and the longest are drawn."""


def measured_steps(case: Case) -> tuple[float, ...]:
    """Returns every measured step of every process of the ok trials, in seconds."""
    return tuple(
        step
        for entry in case.ok_entries
        for rank in entry.result.ranks
        for step in rank.step_time_sec
    )


def warmup_steps(case: Case) -> tuple[float, ...]:
    """Returns every warmup step of every process of the ok trials, in seconds."""
    return tuple(
        step
        for entry in case.ok_entries
        for rank in entry.result.ranks
        for step in rank.warmup_step_time_sec
    )


def quartiles(values: tuple[float, ...]) -> tuple[float, float, float]:
    """Returns lower quartile, median and upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def _describe(cases: list[tuple[Case, tuple[float, ...]]]) -> str:
    parts = []
    for case, values in cases:
        low, median, high = quartiles(values)
        parts.append(
            f"{case.label}: median {formats.seconds(median)}, middle half "
            f"{formats.seconds(low)} to {formats.seconds(high)}, {len(values)} steps"
        )
    return "; ".join(parts) + "."


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
    if not view.study.cases:
        return page.NOTHING
    cases = [(c, measured_steps(c), warmup_steps(c)) for c in view.measured_cases]
    measured = [(case, steps) for case, steps, _ in cases if steps]
    warmup = [(case, steps) for case, _, steps in cases if steps]
    panels = []
    if measured:
        boxes = charts.cases_of(view.frame, "measure")
        panels.append(
            svg.draw(
                rows.size_of(boxes),
                functools.partial(
                    charts.draw_boxes,
                    items=boxes,
                    axis_label="time of one measured step, ms",
                    look=style.PAGE,
                ),
                slug="steps-measured",
                title="Measured step times per case",
                description=_describe(measured),
            )
        )
    if warmup:
        drawn = rows.most_replicas([_warmup_row(case, steps) for case, steps in warmup])
        panels.append(
            rows.draw_estimates(
                drawn,
                rows.Scale(
                    label="time of one warmup step, s (logarithmic)",
                    is_logarithmic=True,
                ),
                slug="steps-warmup",
                title="Warmup step times per case",
                description="; ".join(f"{row.name}: first {row.text}" for row in drawn)
                + ".",
            )
        )
    if not panels:
        return page.NOTHING
    table = [(case, steps, quartiles(steps)) for case, steps in measured]
    return page.render(
        "steps",
        view=view,
        panels=panels,
        table=table,
        num_left_out=max(0, len(measured) - rows.MOST_ROWS),
        csv=cells.of_steps(view.frame),
    )


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


def _steps_row(case: Case) -> rows.Row:
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
    figure = charts.draw_processes(times, backend=case.spec.backend, name=name)
    return Heat(name=name, trial_id=entry.trial_id, figure=figure)


def render_variation(view: View) -> Markup:
    """Renders both figures; nothing where steps were not recorded."""
    cases = _ends(view)
    of_processes = _heat(view)
    if not cases and of_processes is None:
        return page.NOTHING
    figure = None
    if cases:
        drawn = [_steps_row(case) for case in cases]
        dashes = [_dash(case, cases) for case in cases]
        figure = charts.draw_distribution(drawn, dashes)
    return page.render("variation", view=view, figure=figure, heat=of_processes)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """One quantity: its figure, in the unit of its axis."""

    quantity: str
    slug: str
    name: str
    unit: str
    scale: float
    write: Callable[[float], str]


_PANELS: Final = (
    _Scale(
        quantity="time_to_first_step",
        slug="first-step",
        name="Time to first step",
        unit="s",
        scale=1.0,
        write=formats.seconds,
    ),
    _Scale(
        quantity="peak_memory",
        slug="memory",
        name="Peak memory",
        unit="GiB",
        scale=float(formats.GIBIBYTE),
        write=formats.gibibytes,
    ),
)


def _startup_row(case: Case, cell: Cell, panel: _Scale) -> rows.Row:
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


def _draw_startup(panel: _Scale, found: list[tuple[Case, Cell]]) -> Markup:
    return rows.draw_estimates(
        rows.most_replicas([_startup_row(case, cell, panel) for case, cell in found]),
        rows.Scale(label=f"{panel.name.lower()}, {panel.unit}", is_from_zero=True),
        slug=panel.slug,
        title=f"{panel.name} per case",
    )


def render_startup(view: View) -> Markup:
    """Renders both quantities and one table."""
    listed: list[tuple[Case, list[Cell]]] = []
    for case in view.measured_cases:
        cells = [scaling.of_trials(case, panel.quantity) for panel in _PANELS]
        if any(cell.estimate for cell in cells):
            listed.append((case, cells))
    if not listed:
        return page.NOTHING
    columns = [
        [(case, cells[index]) for case, cells in listed if cells[index].estimate]
        for index in range(len(_PANELS))
    ]
    return page.render(
        "startup",
        view=view,
        panels=[
            _draw_startup(panel, column)
            for panel, column in zip(_PANELS, columns, strict=True)
            if column
        ],
        table=[(case, *(cell.estimate for cell in cells)) for case, cells in listed],
        num_left_out=max(0, len(listed) - rows.MOST_ROWS),
        is_first_step_missing=any(cells[0].estimate is None for _, cells in listed),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CaseCounts:
    """One figure of one case: a value per trial."""

    case: Case  # The case.
    values: tuple[float, ...]  # Of each ok trial that has the figure.
    unit: str  # Of the values.
    trial_ids: tuple[str, ...]  # The trials.
    # Whether it is a count, which is written with all its digits.
    is_exact: bool = False

    def text(self, value: float) -> str:
        """Writes one of its values, or their mean."""
        if self.is_exact and value.is_integer():
            return formats.whole(int(value))
        return formats.without_unit(value, self.unit)

    @property
    def mean(self) -> float:
        """Arithmetic mean over trials."""
        return statistics.fmean(self.values)


def collect_counts(view: View) -> dict[str, tuple[CaseCounts, ...]]:
    """Returns the counts of every measured case, by name."""
    found: dict[str, list[CaseCounts]] = {}
    for case in view.measured_cases:
        by_name: dict[str, list[tuple[str, QualityMetric]]] = {}
        for entry in case.ok_entries:
            for metric in entry.result.window_metrics:
                by_name.setdefault(metric.name, []).append((entry.trial_id, metric))
        for name, trials in by_name.items():
            found.setdefault(name, []).append(
                CaseCounts(
                    case=case,
                    values=tuple(metric.value for _, metric in trials),
                    unit=trials[0][1].unit,
                    trial_ids=tuple(trial_id for trial_id, _ in trials),
                    is_exact=trials[0][1].method == measuring.EXACT,
                )
            )
    return {name: tuple(cases) for name, cases in found.items()}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CountRow:
    """One figure of all cases."""

    name: str  # Of the figure, in words.
    unit: str  # Of its values; empty for shares, which are percentages.
    cells: dict[str, CaseCounts]  # By case id; cases without the figure are missing.


def tabulate(
    counts: dict[str, tuple[CaseCounts, ...]], metrics: Mapping[str, MetricFacts]
) -> list[CountRow]:
    """Returns a row per figure."""
    return [
        CountRow(
            name=names.metric(name, metrics),
            unit="" if cases[0].unit in formats.RATIO_UNITS else cases[0].unit,
            cells={found.case.case_id: found for found in cases},
        )
        for name, cases in counts.items()
    ]


def render_counts(view: View) -> Markup:
    """Renders one table: a row per figure, a column per case."""
    counts = collect_counts(view)
    if not counts:
        return page.NOTHING
    columns = {
        found.case.case_id: found for cases in counts.values() for found in cases
    }
    return page.render(
        "counts",
        view=view,
        rows=tabulate(counts, view.study.metrics),
        columns=list(columns.values()),
    )
