"""The first screen of a study or a gate, all cases, where time goes, the method."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from reports import output_file
from reports.charts import bars, curves, rows, style, svg
from reports.page import page
from reports.words import brief, caveats, formats, judgement, names
from results.figures import conditions, scaling
from results.statistics import estimates

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view import View
    from reports.words.brief import Row
    from reports.words.formats import Write
    from reports.words.judgement import GateView
    from results.figures.lost_time import Explained, Part
    from results.records.models import GateCase
    from results.statistics.estimates import Estimate

FEW_SIZES: Final = 2
"""Of no more, bars in the table are drawn, and no lines over replicas."""
MOST_LIMITS: Final = 12


def _lines(view: View) -> list[curves.Curve]:
    """Returns the lines over replicas of the first screen; none over few sizes."""
    is_few = len({point.num_replicas for point in view.points}) <= FEW_SIZES
    return [] if is_few else curves.curves_of_first_screen(view)


def render_verdict(view: View) -> Markup:
    """Renders the answer, the table, one chart, cautions and what is next."""
    gate, all_caveats = judgement.gate_view(view), caveats.caveats_of(view)
    judged = brief.verdict(view)
    shown: dict[str, Any] = {"view": view, "brief": judged, "gate": gate}
    # The grade of a program's evidence is shown however good it is.
    always = "Evidence" if view.study.program is not None else ""
    shown["worst"] = caveats.worst(all_caveats).value
    shown["fine"] = [
        caveat
        for caveat in all_caveats
        if caveat.level is caveats.Level.OK and caveat.name != always
    ]
    shown["cautions"] = [
        caveat for caveat in all_caveats if caveat not in shown["fine"]
    ]
    if gate is not None:
        return page.render("verdict", **shown, cases=_gate_rows(gate))
    lines = _lines(view)
    drawn = [row for line in lines for row in line.rows]
    return page.render(
        "verdict",
        **shown,
        table=_table(view, judged.rows),
        columns=brief.columns(view),
        figure=curves.draw_first_screen(view) if lines else None,
        split=None if lines else _time_figure(view),
        modes={row.mode for row in drawn},
        num_left_out=max(len(lines) - style.MOST_LINES, 0),
        is_oversubscribed=any(row.is_oversubscribed for row in drawn),
    )


def _table(view: View, rows: Sequence[Row]) -> list[tuple[Row, Markup | str]]:
    """Returns each row with the bar of its efficiency."""
    known = [row.point.efficiency.value for row in rows if row.point.efficiency]
    target = view.study.plan.measuring.efficiency_target
    top = max(1.0, *known) if known else 1.0
    frame = view.frame
    ceilings = frame[frame["kind"].eq("ceiling") & frame["quantity"].eq("efficiency")]
    rows_and_bars: list[tuple[Row, Markup | str]] = []
    for row in rows:
        point, bar = row.point, ""
        if point.efficiency is not None:
            same = ceilings[
                ceilings["backend"].eq(point.backend)
                & ceilings["mode"].eq(point.mode.value)
                & ceilings["num_replicas"].eq(point.num_replicas)
            ]
            bar = bars.from_zero(
                point.efficiency.value,
                (point.efficiency.low, point.efficiency.high),
                top=1.02 * top,
                series=view.series(point.backend),
                is_hollow=point.is_oversubscribed,
                lines=[1.0, *same["value"], *([] if target is None else [target])],
            )
        rows_and_bars.append((row, bar))
    return rows_and_bars


def _gate_rows(gate: GateView) -> list[tuple[GateCase, str, Markup | str]]:
    """Returns each case of a gate with its change in words and as a bar."""
    record = gate.record
    if record is None:
        return []
    known = [case for case in record.cases if case.slowdown is not None]
    known = [case for case in known if case.after is None]
    numbers = [
        number for case in known for number in (case.slowdown, case.low, case.high)
    ]
    spread = [abs(number) for number in numbers if number is not None]
    reach = 1.1 * max([*spread, record.delta])

    def bar(case: GateCase) -> Markup | str:
        if case not in known or case.slowdown is None:
            return ""
        return bars.between(
            case.slowdown,
            (case.low, case.high),
            (-reach, reach),
            lines=[record.delta],
            is_marked=case.verdict == "regress",
        )

    return [(case, judgement.change(case), bar(case)) for case in record.cases]


def render_sizes(view: View) -> Markup:
    """Renders the table of all cases, where the first screen has not all of them."""
    rows = brief.table(view, view.points)
    if len(rows) <= brief.MOST_ROWS:
        return page.NOTHING
    return page.render(
        "sizes", view=view, table=_table(view, rows), columns=brief.columns(view)
    )


FINEST_SHARE: Final = 0.001
"""Of a step: an interval that is narrower is shown as one number."""
_GIGA: Final = 1e9

_INPUT: Final = {
    "input-bound": "faster replicas would wait for their batches",
    "not input-bound": "its batches arrive before they are needed",
    "inconclusive": "whether it is input-bound is inconclusive",
}


def _ms(value_sec: float) -> str:
    return formats.significant(1000 * value_sec)


def input_texts(view: View) -> list[str]:
    """Says what the input pipelines of each case take alone, where that is known."""
    texts = []
    for item in view.losses:
        bound = None if item.lost is None else item.lost.input_bound
        if bound is not None:
            sec, part = bound.input_sec, bound.fraction
            alone = formats.with_interval(sec.value, sec.low, sec.high, _ms)
            share = formats.with_interval(
                part.value, part.low, part.high, formats.percent
            )
            texts.append(
                f"{item.case.label} is {bound.verdict}: its input pipelines alone take"
                f" {alone} ms, {share} of the step; {_INPUT[bound.verdict]}."
            )
    return texts


def _tip(part: Any) -> str:
    name = f"{part.case}: {names.PARTS[part.quantity][0]}"
    return svg.row_tip(name, part, _ms, "ms per step")


def _time_figure(view: View) -> Markup | None:
    """Draws the steps of all cases on one axis; None where nothing is known."""
    waterfall = view.frame[view.frame["figure"] == "waterfall"]
    if waterfall.empty:
        return None
    order = view.study.backends
    split = sorted(
        rows.splits(waterfall, _tip), key=lambda each: order.index(each.backend)
    )
    described = (
        f"{each.name}: {each.text}, of which "
        + ", ".join(
            f"{names.PARTS[name][0]} {formats.significant(value)}"
            for name, value, _ in each.parts
        )
        for each in split
    )
    bars = rows.most_replicas(split)
    drawing = svg.draw(
        rows.size_of(bars),
        functools.partial(rows.draw_splits, rows=bars, look=style.PAGE),
        slug="lost-time",
        title="Where the time of a step went",
        description=f"{'; '.join(described)}.",
    )
    drawn = dict.fromkeys(name for bar in bars for name, _, _ in bar.parts)
    legend = [
        (names.PARTS[name][0], rows.PART_SERIES.get(name))
        for name in drawn
        if name not in rows.WHOLE
    ]
    return page.render("split", figure=drawing, legend=legend)


def render_time(view: View) -> Markup:
    """Renders the figure, unless the first screen has it, and all parts as shares."""
    is_here = bool(_lines(view)) or judgement.gate_view(view) is not None
    split = formats.grouped(
        (item.has_controls, item) for item in view.losses if item.lost is not None
    )
    tables = [(items[0].lost.parts, items) for items in split.values()]
    reasons = [
        f"{item.case.label} is not compared: {item.reason}."
        for item in view.losses
        if item.lost is None and item.has_controls
    ]
    if not tables and not reasons:
        return page.NOTHING
    return page.render(
        "lost_time",
        view=view,
        figure=_time_figure(view) if is_here else None,
        tables=tables,
        reasons=[*reasons, *_missing(tables)],
        inputs=input_texts(view),
        parts_by_name=names.PARTS,
        utilisation=_utilisation(view),
        write_share=_write_share,
        ms=_ms,
    )


def _missing(tables: Sequence[tuple[Sequence[Part], list[Explained]]]) -> list[str]:
    """Says why cases have no value of a part, a line for each reason."""
    whys = formats.grouped(
        (f"{names.PARTS[part.name][0]}: {part.reason}", item.case.label)
        for _, items in tables
        for item in items
        if item.lost is not None
        for part in item.lost.parts
        if part.reason
    )
    return [
        f"{why} ({', '.join(dict.fromkeys(labels))})." for why, labels in whys.items()
    ]


def _write_share(share: Estimate) -> Write:
    """Returns what writes a share, with digits that tell the ends of its interval."""
    if share.low is None or share.high is None or share.high - share.low < FINEST_SHARE:
        return formats.percent
    return formats.telling(share, formats.percent)


def _utilisation(view: View) -> dict[str, Any] | None:
    """Returns what cases reach of the rate of matrix products on the same devices."""
    shown = []
    peaks: list[float] = []
    for case in view.measured_cases:
        estimate = scaling.case_cell(case, "flop_utilisation").estimate
        if estimate is None:
            continue
        spec = case.spec
        figure = formats.estimate(estimate, formats.percent)
        size, batch = spec.num_replicas, spec.per_replica_batch_size
        shown.append((spec.backend, size, batch, figure, estimate.n))
        peaks += [
            sum(rank.peak_flops_per_sec or 0.0 for rank in entry.result.ranks)
            / (size * _GIGA)
            for entry in case.ok_entries
        ]
    if not shown:
        return None
    ends = [*map(formats.significant, (min(peaks), max(peaks)))]
    return {"peak": formats.span(ends), "rows": shown}


def render_method(view: View) -> Markup:
    planned = view.study.planned
    return page.render(
        "method",
        view=view,
        limits=[*caveats.limits(view)],
        most_limits=MOST_LIMITS,
        command=brief.command_of_study(view.study.plan),
        spec=planned[0].spec if planned else None,
        commits=names.commits_text(view.study.cases),
        csv=output_file.csv_link(view.frame, "scaling"),
        names=names,
        is_interleaved=view.is_interleaved,
        caveats=caveats,
        conditions=conditions,
        statistics=estimates,
    )
