"""Quality against training time or data, over seeds, and after the timed steps."""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reports import output_file
from reports.charts import curves as charts
from reports.charts import style, svg
from reports.page import page
from reports.words import formats, names
from results.figures import learning_gains
from results.statistics import run_scores
from results.store import public, untrusted

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup

    from reports.view import View
    from results.records.models import MetricFacts, QualityMetric, QualityPoint
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry

    Axis = tuple[str, str, int]

FEWEST_SEEDS: Final = 2
"""Runs of a case that are told apart, and aggregated."""
MOST_FIGURES: Final = 20
"""Limit per section; nobody reads a page with figures of more metrics than that."""
MOST_OPEN: Final = 12
"""A table of more rows is closed at first."""
MOST_PICTURED: Final = 8
"""Runs whose pictures are shown; the others are in the folders of their trials."""
MOST_PICTURE_BYTES: Final = 2**24
"""Larger files are not pictures of ours, and would be embedded in the page."""


def axis_of(metric: QualityMetric) -> Axis:
    """Returns name, protocol, and n where it matters, as for FID."""
    return metric.name, metric.protocol, metric.num_examples if metric.protocol else 0


def titles(axes: Iterable[Axis], metrics: Mapping[str, MetricFacts]) -> dict[Axis, str]:
    """Returns a title per axis, numbered where one metric has several."""
    distinct = list(dict.fromkeys(axes))
    texts = {}
    for axis in distinct:
        same = [other for other in distinct if other[0] == axis[0]]
        texts[axis] = names.metric(axis[0], metrics)
        if len(same) > 1:
            texts[axis] += f" (protocol {same.index(axis) + 1} of {len(same)})"
    return texts


def explain(axis: Axis, all_axes: Iterable[Axis]) -> str:
    """Says how a figure was computed, and why others of its name have another axis."""
    if not axis[1]:
        return ""

    def parts(each: Axis) -> list[str]:
        return [*each[1].split("; "), f"n = {each[2]}"] if each[1] else ["no protocol"]

    sentences = [f"Computed with: {axis[1]}; n = {axis[2]}."]
    for other in dict.fromkeys(all_axes):
        if other[0] == axis[0] and other != axis:
            ours, theirs = parts(axis), parts(other)
            first = "; ".join(part for part in ours if part not in theirs)
            second = "; ".join(part for part in theirs if part not in ours)
            sentences.append(
                "Not comparable with another figure of this name: here "
                f"{first or 'nothing more'}, there {second or 'nothing more'}."
            )
    return " ".join(sentences)


def _name_run(case: Case, repetition_index: int) -> str:
    if len(case.entries) < FEWEST_SEEDS:
        return case.label
    return f"{case.label}, repetition {repetition_index}"


def by_axis(view: View) -> dict[Axis, pd.DataFrame]:
    """Returns the evaluations of quality runs, rows of the tidy frame."""
    rows = view.frame[view.frame["figure"] == "learning"]
    n = rows["n"].where(rows["protocol"] != "", 0)
    keys = [rows["quantity"], rows["protocol"], n]
    groups: dict[Any, pd.DataFrame] = dict(iter(rows.groupby(keys, sort=False)))
    return groups


def _runs(view: View, rows: pd.DataFrame) -> list[Any]:
    """Returns the last evaluation of each run, with the name of the run."""
    cases = {case.label: case for case in view.study.quality_runs}
    last = rows.groupby("trial_id", sort=False).tail(1)
    both = zip(last["case"], last["repetition_index"], strict=True)
    names = [_name_run(cases[label], index) for label, index in both]
    return [*last.assign(name=names).itertuples()]


class CaseScore(NamedTuple):
    case: Case  # The case.
    # Final quality of each run, infinitely bad if it failed.
    reached: tuple[float, ...]
    score: Estimate  # Aggregate of all runs.


def _failed(view: View, metric: str) -> dict[str, tuple[float, ...]]:
    """Returns what runs that failed reached, by case; none of an unknown direction."""
    facts = view.study.metrics.get(metric)
    if facts is None or facts.is_higher_better is None:
        return {}
    worst = -math.inf if facts.is_higher_better else math.inf
    return {
        case.label: (worst,) * len(case.failed_entries)
        for case in view.study.quality_runs
    }


def collect_scores(view: View, runs: Sequence[Any]) -> list[CaseScore]:
    """Returns the score of every case with several runs, those that failed included."""
    failed = _failed(view, runs[0].quantity)
    values = formats.grouped((run.case, run.value) for run in runs)
    scores = []
    for case in view.study.quality_runs:
        ended = values.get(case.label, [])
        reached = (*ended, *failed.get(case.label, ()))
        num_runs = len(ended) + len(case.failed_entries)
        if ended and FEWEST_SEEDS <= num_runs == len(reached):
            scores.append(CaseScore(case, reached, run_scores.score(reached)))
    return scores


class Picture(NamedTuple):
    label: str  # The run, and the point.
    url: str = ""  # The picture as a data URL; empty if it is not shown.
    why_not: str = ""  # Why it is not shown.


def pictures(view: View) -> list[tuple[Picture, ...]]:
    """Returns the first and last picture of quality runs; of many, of one each."""
    rows_of_pictures: list[tuple[Picture, ...]] = []
    for case in view.study.quality_runs:
        entries = case.ok_entries
        if len(view.study.quality_runs) * len(entries) > MOST_PICTURED:
            entries = entries[:1]
        for entry in entries:
            points = [point for point in entry.result.curve if point.samples]
            of_run = tuple(
                picture
                for point in dict.fromkeys((*points[:1], *points[-1:]))
                if (picture := _picture(view, case, entry, point)) is not None
            )
            rows_of_pictures += [of_run] if of_run else []
            if len(rows_of_pictures) == MOST_PICTURED:
                return rows_of_pictures
    return rows_of_pictures


def _picture(
    view: View, case: Case, entry: Entry, point: QualityPoint
) -> Picture | None:
    path = view.store.trial_dir(entry.trial_id) / (point.samples or "")
    seen = _seen(view, point.num_examples)
    label = f"{_name_run(case, entry.spec.repetition_index)}, after {seen}"
    try:
        content = untrusted.read_bytes(path, max_bytes=MOST_PICTURE_BYTES)
    except untrusted.DamagedFileError as error:
        return Picture(label, why_not=str(error))
    if content is None:
        return None
    drawn = public.picture(content)
    if drawn is None:
        return Picture(label, why_not="it is not a PNG picture")
    text = base64.b64encode(drawn).decode("ascii")
    return Picture(label, url=f"data:image/png;base64,{text}")


def _seen(view: View, num_examples: int) -> str:
    return f"{formats.whole(num_examples)} {view.study.example_unit}"


def _draw(
    view: View, number: int, name: str, rows: pd.DataFrame, runs: Sequence[Any]
) -> list[Markup]:
    write = functools.partial(formats.quality, unit=runs[0].unit)
    ends = (
        f"{run.name}: {write(run.value)} after {_seen(view, run.num_examples)}"
        for run in runs
    )
    description = f"{'; '.join(ends)}."
    examples = f"{view.study.example_unit}, repeated ones counted again"
    spendings = [
        ("time", "train_time_sec", "training time in s, without evaluations"),
        ("examples", "num_examples", examples),
    ]
    if rows["num_environment_steps"].fillna(0).all():
        label = "environment steps of all actors"
        spendings.append(("environment-steps", "num_environment_steps", label))
    metric = runs[0].quantity
    y_limits = charts.learning_limits(rows)
    curves = charts.learning_curves(rows, metric, _failed(view, metric))
    panels = style.panels(curves, lambda curve: curve.backend)
    if len(panels) > 1:
        spendings = spendings[:1]
        # A label does not repeat the heading.
        panels = [
            (
                heading,
                [
                    dataclasses.replace(
                        each, label=each.label.replace(f"{heading} ", "")
                    )
                    for each in lines
                ],
            )
            for heading, lines in panels
        ]
    return [
        svg.draw(
            (style.WIDTH, style.HEIGHT),
            functools.partial(
                charts.draw_learning,
                curves=lines,
                spent=column,
                x_label=label,
                write=write,
                look=style.PAGE,
                y_limits=y_limits,
                heading=heading,
            ),
            slug=f"learning-{number}-{slug}{f'-{index}' if index else ''}",
            title=f"{name} against {slug}",
            description=description,
        )
        for slug, column, label in spendings
        for index, (heading, lines) in enumerate(panels)
    ]


def render_learning(view: View) -> Markup:
    if not view.study.quality_runs:
        return page.NOTHING
    everything = by_axis(view)
    shown = [*everything.items()][:MOST_FIGURES]
    named = titles(everything, view.study.metrics)
    figures = []
    for number, (axis, rows) in enumerate(shown):
        runs = _runs(view, rows)
        figures.append(
            (
                named[axis],
                _draw(view, number, named[axis], rows, runs),
                runs,
                explain(axis, [other for other, _ in shown]),
                collect_scores(view, runs),
                learning_gains.metric_gains(axis[0], view.study),
            )
        )
    return page.render(
        "learning",
        view=view,
        figures=figures,
        num_left_out=len(everything) - len(shown),
        planned=view.study.quality_runs,
        pictures=pictures(view),
        most_open=MOST_OPEN,
        most_pictured=MOST_PICTURED,
        csv=output_file.csv_link(view.frame, "learning"),
    )


def render_quality(view: View) -> Markup:
    scores = [
        (axis, (case, trials))
        for case in view.measured_cases
        for axis, trials in formats.grouped(
            (axis_of(metric), (entry, metric))
            for entry in case.ok_entries
            for metric in entry.result.quality
        ).items()
    ]
    if not scores:
        return page.NOTHING
    by_axis = formats.grouped(scores)
    by_title = titles(by_axis, view.study.metrics)
    shown = [*by_axis.items()][:MOST_FIGURES]
    entries = [entry for case in view.measured_cases for entry in case.ok_entries]
    numbers = {
        each.spec.num_warmup_steps + each.result.num_measured_steps for each in entries
    }
    return page.render(
        "quality",
        view=view,
        tables=[
            (by_title[axis], cases, explain(axis, by_axis)) for axis, cases in shown
        ],
        num_left_out=len(by_axis) - len(shown),
        steps=sorted(numbers),
    )
