"""Quality against training time or data, over seeds, and after the timed steps."""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.charts import learning, rows, style, svg
from reports.page import page
from reports.words import cells, formats, ratio_table
from reports.words.ratio_table import FEWEST_SEEDS
from results.figures import learning_gains
from results.statistics import run_scores
from results.store import public, untrusted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from reports.view.view import View
    from reports.words.ratio_table import Run
    from results.records.models import MetricFacts, QualityMetric, QualityPoint
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry


_NUM_THRESHOLDS = 101


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CaseScore:
    """The results of all runs of one case."""

    case: Case  # The case.
    # Final quality of each run, infinitely bad if it failed.
    reached: tuple[float, ...]
    score: Estimate  # Aggregate of all runs.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """One metric of all cases with several runs."""

    cases: tuple[CaseScore, ...]  # The cases.
    panels: tuple[Markup, ...]  # Their performance profiles, at most seven lines each.


def collect_scores(
    runs: Sequence[Run], metrics: Mapping[str, MetricFacts]
) -> tuple[CaseScore, ...]:
    """Returns the score of every case with several runs, those that failed included.

    Strata are data sets; a study has one, so its runs differ in their seed only. Of a
    metric of unknown direction nobody knows what is worst: cases with a run that failed
    have no score.
    """
    facts = metrics.get(runs[0].points[-1][1].name)
    is_higher_better = None if facts is None else facts.is_higher_better
    by_case: dict[str, list[Run]] = {}
    for run in runs:
        by_case.setdefault(run.case.case_id, []).append(run)
    found = []
    for group in by_case.values():
        case = group[0].case
        num_failed = len(case.failed_entries)
        if len(group) + num_failed < FEWEST_SEEDS:
            continue
        if num_failed and is_higher_better is None:
            continue
        worst = -math.inf if is_higher_better else math.inf
        reached = tuple(run.points[-1][1].value for run in group)
        reached += (worst,) * num_failed
        found.append(
            CaseScore(
                case=case,
                reached=reached,
                score=run_scores.score(reached),
            )
        )
    return tuple(found)


def draw_seeds(
    number: int, name: str, runs: Sequence[Run], metrics: Mapping[str, MetricFacts]
) -> Together | None:
    """Returns table and profiles of one metric, or None without repetitions."""
    cases = collect_scores(runs, metrics)
    if not cases:
        return None
    unit = runs[0].points[-1][1].unit
    values = [v for found in cases for v in found.reached if math.isfinite(v)]
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 1.0
    levels = np.linspace(low - margin, high + margin, _NUM_THRESHOLDS).tolist()
    panels = []
    drawn = style.panels(cases, lambda found: found.case.spec.backend)
    for index, (_, chosen) in enumerate(drawn):
        profiles = [
            (
                found.case.label,
                found.case.spec.backend,
                run_scores.profile(found.reached, levels),
            )
            for found in chosen
        ]
        panel = learning.draw_profiles(
            profiles,
            slug=f"learning-{number}-profile{f'-{index}' if index else ''}",
            title=f"Fraction of runs that reached a level of {name}",
            description="; ".join(
                f"{found.case.label}: {run_scores.statistic_of(found.score.n)} "
                f"{formats.quality(found.score.value, unit)} of {found.score.n} runs"
                for found in chosen
            )
            + ".",
            x_label=f"{name} at the end",
            write=lambda value: formats.quality(value, unit),
        )
        panels.append(panel)
    return Together(cases=cases, panels=tuple(panels))


MOST_OPEN = 12
"""A table of more rows is closed at first."""
MOST_PICTURED = 8
"""Runs whose pictures are shown; the others are in the folders of their trials."""
MOST_PICTURE_BYTES = 2**24
"""Larger files are not pictures of ours, and would be embedded in the page."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A picture that a run made at one point."""

    label: str  # The run, and the point.
    url: str = ""  # The picture as a data URL; empty if it is not shown.
    why_not: str = ""  # Why it is not shown.


def pictures(view: View) -> list[tuple[Picture, ...]]:
    """Returns the first and the last picture of quality runs that made any.

    Of many runs, those of the first repetition of each case.
    """
    found: list[tuple[Picture, ...]] = []
    for case in view.study.quality_runs:
        entries = case.ok_entries
        if len(view.study.quality_runs) * len(entries) > MOST_PICTURED:
            entries = entries[:1]
        for entry in entries:
            if len(found) == MOST_PICTURED:
                return found
            points = [point for point in entry.result.curve if point.samples]
            of_run = tuple(
                picture
                for point in dict.fromkeys((*points[:1], *points[-1:]))
                if (picture := _picture(view, case, entry, point)) is not None
            )
            if of_run:
                found.append(of_run)
    return found


def _picture(
    view: View, case: Case, entry: Entry, point: QualityPoint
) -> Picture | None:
    path = view.store.trial_dir(entry.trial_id) / (point.samples or "")
    label = (
        f"{ratio_table.name_run(case, entry)}, after "
        f"{formats.whole(point.num_examples)} {view.study.example_unit}"
    )
    try:
        content = untrusted.read_bytes(path, max_bytes=MOST_PICTURE_BYTES)
    except untrusted.DamagedFileError as error:
        return Picture(label=label, why_not=str(error))
    if content is None:
        return None
    drawn = public.picture(content)
    if drawn is None:
        return Picture(label=label, why_not="it is not a PNG picture")
    text = base64.b64encode(drawn).decode("ascii")
    return Picture(label=label, url=f"data:image/png;base64,{text}")


def _without(curve: learning.Curve, heading: str) -> learning.Curve:
    """Returns a curve whose label does not repeat the heading."""
    if not heading:
        return curve
    return dataclasses.replace(curve, label=curve.label.replace(f"{heading} ", ""))


def _draw(
    view: View, number: int, name: str, runs: tuple[Run, ...], axis: ratio_table.Axis
) -> list[Markup]:
    unit = runs[0].points[0][1].unit
    ends = [
        f"{ratio_table.name_run(run.case, run.entry)}: "
        f"{formats.quality(run.points[-1][1].value, unit)} after "
        f"{formats.whole(run.points[-1][0].num_examples)} {view.study.example_unit}"
        for run in runs
    ]
    spendings = [
        ("time", "train_time_sec", "training time in s, without evaluations"),
        (
            "examples",
            "num_examples",
            f"{view.study.example_unit}, repeated ones counted again",
        ),
    ]
    if all(point.num_environment_steps for run in runs for point, _ in run.points):
        label = "environment steps of all actors"
        spendings.append(("environment-steps", "num_environment_steps", label))
    metric, protocol, num_examples = axis
    rows = view.frame[view.frame["figure"] == "learning"]
    rows = rows[(rows["quantity"] == metric) & (rows["protocol"] == protocol)]
    if protocol:
        rows = rows[rows["n"] == num_examples]
    y_limits = style.linear(
        rows["value"].tolist(), [*rows["low"].dropna(), *rows["high"].dropna()]
    )
    failed = _failed(view, metric)
    curves = learning.curves_of(rows, metric, failed)
    panels = style.panels(curves, lambda curve: curve.backend)
    if len(panels) > 1:
        spendings = spendings[:1]
    return [
        svg.draw(
            (style.WIDTH, style.HEIGHT),
            functools.partial(
                learning.draw_on,
                curves=[_without(curve, heading) for curve in lines],
                spent=column,
                x_label=label,
                write=functools.partial(formats.quality, unit=unit),
                look=style.PAGE,
                y_limits=y_limits,
                heading=heading,
            ),
            slug=f"learning-{number}-{slug}{f'-{index}' if index else ''}",
            title=f"{name} against {slug}",
            description="; ".join(ends) + ".",
        )
        for slug, column, label in spendings
        for index, (heading, lines) in enumerate(panels)
    ]


def _failed(view: View, metric: str) -> dict[tuple[Any, ...], tuple[float, ...]]:
    """Returns infinitely bad quality for each run of a case that failed."""
    facts = view.study.metrics.get(metric)
    if facts is None or facts.is_higher_better is None:
        return {}
    worst = -math.inf if facts.is_higher_better else math.inf
    found = {}
    for case in view.study.quality_runs:
        spec = case.spec
        key = spec.backend, spec.num_replicas, spec.per_replica_batch_size
        found[(*key, spec.revision)] = (worst,) * len(case.failed_entries)
    return found


def render_learning(view: View) -> Markup:
    """Renders two or three panels per metric, a table of the runs, and all seeds."""
    if not view.study.quality_runs:
        return page.NOTHING
    everything = ratio_table.collect_quality_runs(view)
    found = dict(list(everything.items())[: ratio_table.MOST_FIGURES])
    all_axes = [ratio_table.axis_of(runs[0].points[0][1]) for runs in found.values()]
    figures = [
        (
            name,
            _draw(view, number, name, runs, axis),
            runs,
            ratio_table.explain(axis, all_axes),
            draw_seeds(number, name, runs, view.study.metrics),
            learning_gains.of_metric(runs[0].points[-1][1].name, view.study),
        )
        for number, (axis, (name, runs)) in enumerate(
            zip(all_axes, found.items(), strict=True)
        )
    ]
    return page.render(
        "learning",
        view=view,
        figures=figures,
        num_left_out=len(everything) - len(found),
        planned=view.study.quality_runs,
        pictures=pictures(view),
        name_run=ratio_table.name_run,
        most_open=MOST_OPEN,
        most_pictured=MOST_PICTURED,
        csv=cells.of_rows(view.frame, "learning"),
    )


MOST_TRIALS = 300
"""Of more trials, the table has a row per case in place of a row per trial."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CaseQuality:
    """One metric of one case: a figure and an interval per trial."""

    case: Case  # The case.
    # Each ok trial that has the metric, with it.
    trials: tuple[tuple[Entry, QualityMetric], ...]

    @property
    def mean(self) -> float:
        """Arithmetic mean over trials."""
        return statistics.fmean(metric.value for _, metric in self.trials)

    @property
    def trial_ids(self) -> tuple[str, ...]:
        """Trials behind the mean."""
        return tuple(entry.trial_id for entry, _ in self.trials)


def collect_quality(view: View) -> dict[str, tuple[CaseQuality, ...]]:
    """Returns the quality of every measured case, by title of the axis.

    The title is the name of the metric, unless figures of that name have
    several protocols: each then has its own axis.
    """
    names = ratio_table.titles(
        (
            ratio_table.axis_of(metric)
            for case in view.measured_cases
            for entry in case.ok_entries
            for metric in entry.result.quality
        ),
        view.study.metrics,
    )
    found: dict[str, tuple[CaseQuality, ...]] = {}
    for axis, title in names.items():
        cases = (
            CaseQuality(
                case=case,
                trials=tuple(
                    (entry, metric)
                    for entry in case.ok_entries
                    for metric in entry.result.quality
                    if ratio_table.axis_of(metric) == axis
                ),
            )
            for case in view.measured_cases
        )
        found[title] = tuple(quality for quality in cases if quality.trials)
    return found


def _tip(quality: CaseQuality, unit: str) -> str:
    """Says that the line spans the intervals of single trials: it is no interval."""
    low = min(metric.low for _, metric in quality.trials)
    high = max(metric.high for _, metric in quality.trials)
    return (
        f"{rows.of_case(quality.case).name}: "
        f"{formats.quality(quality.mean, unit)}, mean of trials; their 95 % intervals "
        f"span {formats.quality(low, unit)} to {formats.quality(high, unit)}, "
        f"n = {len(quality.trials)}"
    )


def _draw_quality(view: View, name: str, cases: tuple[CaseQuality, ...]) -> Markup:
    unit = cases[0].trials[0][1].unit
    drawn = [
        rows.of_case(
            quality.case,
            value=quality.mean,
            low=min(metric.low for _, metric in quality.trials),
            high=max(metric.high for _, metric in quality.trials),
            dots=tuple(metric.value for _, metric in quality.trials),
            text=formats.quality(quality.mean, unit),
            tip=_tip(quality, unit),
        )
        for quality in cases
    ]
    return rows.draw_estimates(
        rows.most_replicas(drawn),
        rows.Scale(label=name, is_percent=unit in formats.RATIO_UNITS),
        slug=f"quality-{list(collect_quality(view)).index(name)}",
        title=f"{name} per case",
    )


def render_quality(view: View) -> Markup:
    """Renders one figure per metric, with each trial's own interval below."""
    everything = collect_quality(view)
    if not everything:
        return page.NOTHING
    found = dict(list(everything.items())[: ratio_table.MOST_FIGURES])
    all_axes = [ratio_table.axis_of(cases[0].trials[0][1]) for cases in found.values()]
    figures = [
        (
            name,
            _draw_quality(view, name, cases),
            cases,
            ratio_table.explain(axis, all_axes),
        )
        for axis, (name, cases) in zip(all_axes, found.items(), strict=True)
    ]
    steps = sorted(
        {
            entry.spec.num_warmup_steps + entry.result.num_measured_steps
            for cases in found.values()
            for quality in cases
            for entry, _ in quality.trials
        }
    )
    return page.render(
        "quality",
        view=view,
        figures=figures,
        num_left_out=len(everything) - len(found),
        steps=steps,
        most_rows=rows.MOST_ROWS,
        most_trials=MOST_TRIALS,
    )
