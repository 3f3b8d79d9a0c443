"""Learning: quality against training time or data, per quality run and over seeds."""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

from reports.charts import learning, style, svg
from reports.page import page
from reports.page.sections import seeds
from reports.words import axes, cells, formats, ratio_table
from results.figures import learning_gains
from results.store import public, untrusted

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View
    from reports.words.ratio_table import Run
    from results.records.models import QualityPoint
    from results.study.cases import Case, Entry

TITLE = "Learning"
SLUG = "learning"
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
    view: View, number: int, name: str, runs: tuple[Run, ...], axis: axes.Axis
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


def render(view: View) -> Markup:
    """Renders two or three panels per metric, a table of the runs, and all seeds."""
    if not view.study.quality_runs:
        return page.NOTHING
    everything = ratio_table.collect_quality_runs(view)
    found = dict(list(everything.items())[: axes.MOST_FIGURES])
    all_axes = [axes.axis_of(runs[0].points[0][1]) for runs in found.values()]
    figures = [
        (
            name,
            _draw(view, number, name, runs, axis),
            runs,
            axes.explain(axis, all_axes),
            seeds.draw(number, name, runs, view.study.metrics),
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
