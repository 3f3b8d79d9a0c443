"""Learning: quality against training time or data, per quality run and over seeds."""

from __future__ import annotations

import base64
import dataclasses
from typing import TYPE_CHECKING

from reports import axes, formats, page
from reports.figures import curves
from reports.sections import seeds
from results import learning_gains

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup

    from reports.view import View
    from results.records import QualityMetric, QualityPoint
    from results.study import Case, Entry

TITLE = "Learning"
SLUG = "learning"
MOST_PICTURE_BYTES = 2**24
"""Larger files are not pictures of ours, and would be embedded in the page."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One metric of one quality run.

    Attributes:
      case: The case.
      entry: The trial.
      points: Each evaluation with the metric.
    """

    case: Case
    entry: Entry
    points: tuple[tuple[QualityPoint, QualityMetric], ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """The quantity on the x axis."""

    slug: str
    label: str
    of: Callable[[QualityPoint], float]


def collect(view: View) -> dict[str, tuple[Run, ...]]:
    """Returns the quality runs that are ok, by title of the axis; see ``quality``."""
    found: dict[axes.Axis, list[Run]] = {}
    for case in view.study.quality_runs:
        for entry in case.ok_entries:
            by_axis: dict[axes.Axis, list[tuple[QualityPoint, QualityMetric]]] = {}
            for point in entry.result.curve:
                for metric in point.quality:
                    by_axis.setdefault(axes.axis_of(metric), []).append((point, metric))
            for axis, points in by_axis.items():
                run = Run(case=case, entry=entry, points=tuple(points))
                found.setdefault(axis, []).append(run)
    names = axes.titles(found)
    return {names[axis]: tuple(runs) for axis, runs in found.items()}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A picture that a run made at one point.

    Attributes:
      label: The run, and the point.
      url: The picture as a data URL.
    """

    label: str
    url: str


def pictures(view: View) -> list[tuple[Picture, ...]]:
    """Returns the first and the last picture of each quality run that made any."""
    found = []
    for case in view.study.quality_runs:
        for entry in case.ok_entries:
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
    if not path.is_file() or path.stat().st_size > MOST_PICTURE_BYTES:
        return None
    content = base64.b64encode(path.read_bytes()).decode("ascii")
    return Picture(
        label=f"{seeds.name_run(case, entry)}, after "
        f"{formats.whole(point.num_examples)} {view.study.example_unit}",
        url=f"data:image/png;base64,{content}",
    )


def _curve(view: View, run: Run, spent: Spent, *, is_first: bool) -> curves.Curve:
    spec = run.case.spec
    return curves.Curve(
        label=f"{spec.backend} x{spec.num_replicas}" if is_first else "",
        series=view.series(spec.backend),
        spent=tuple(spent.of(point) for point, _ in run.points),
        values=tuple(metric.value for _, metric in run.points),
        lows=tuple(metric.low for _, metric in run.points),
        highs=tuple(metric.high for _, metric in run.points),
        is_hollow=run.case.is_oversubscribed,
    )


def _draw(view: View, number: int, name: str, runs: tuple[Run, ...]) -> list[Markup]:
    unit = runs[0].points[0][1].unit
    ends = [
        f"{seeds.name_run(run.case, run.entry)}: "
        f"{formats.quality(run.points[-1][1].value, unit)} after "
        f"{formats.whole(run.points[-1][0].num_examples)} {view.study.example_unit}"
        for run in runs
    ]
    spendings = [
        Spent(
            slug="time",
            label="training time in s, without evaluations",
            of=lambda point: point.train_time_sec,
        ),
        Spent(
            slug="examples",
            label=f"{view.study.example_unit}, repeated ones counted again",
            of=lambda point: point.num_examples,
        ),
    ]
    if all(point.num_environment_steps for run in runs for point, _ in run.points):
        spendings.append(
            Spent(
                slug="environment-steps",
                label="environment steps of all actors",
                of=lambda point: point.num_environment_steps or 0,
            )
        )
    cases = [run.case.case_id for run in runs]
    return [
        curves.draw(
            [
                _curve(view, run, spent, is_first=cases.index(cases[i]) == i)
                for i, run in enumerate(runs)
            ],
            slug=f"learning-{number}-{spent.slug}",
            title=f"{name} against {spent.slug}",
            description="; ".join(ends) + ".",
            x_label=spent.label,
            write=lambda value: formats.quality(value, unit),
        )
        for spent in spendings
    ]


def render(view: View) -> Markup:
    """Renders two or three panels per metric, a table of the runs, and all seeds."""
    if not view.study.quality_runs:
        return page.NOTHING
    everything = collect(view)
    found = dict(list(everything.items())[: axes.MOST_FIGURES])
    all_axes = [axes.axis_of(runs[0].points[0][1]) for runs in found.values()]
    figures = [
        (
            name,
            _draw(view, number, name, runs),
            runs,
            axes.explain(axis, all_axes),
            seeds.draw(view, number, name, runs),
            learning_gains.of_metric(
                runs[0].points[-1][1].name, view.study.quality_runs
            ),
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
        name_run=seeds.name_run,
    )
