"""The first screen or a gate, scaling, findings, summary, comparison, method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.charts import over_replicas, rows, style
from reports.page import page
from reports.words import brief, cells, marks, names, next_step, verdict
from results.figures import relay, scaling
from results.statistics import estimates

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.charts.over_replicas import Quantity
    from reports.view import View


def render_verdict(view: View) -> Markup:
    """Renders the verdict in words, the marks and the figure; of a gate, its own."""
    judged = brief.of_view(view)
    if judged is not None:
        return page.render(
            "gate",
            view=view,
            gate=judged,
            figure=None if judged.record is None else rows.draw_gate(judged.record),
            change=brief.change,
            marks=marks.of_view(view),
        )
    curves = over_replicas.curves_of_first_screen(view)
    drawn = [row for curve in curves for row in curve.rows]
    return page.render(
        "verdict",
        view=view,
        brief=brief.judge(view),
        columns=brief.columns(view),
        marks=marks.of_view(view),
        figure=over_replicas.draw_first_screen(view),
        modes={row.mode for row in drawn},
        num_left_out=max(len(curves) - style.MOST_LINES, 0),
        has_ceiling=any(row.kind == "ceiling" for row in drawn),
        is_oversubscribed=any(row.is_oversubscribed for row in drawn),
    )


def render_findings(view: View) -> Markup:
    """Renders every finding with its trials, then what limits them."""
    return page.render(
        "findings",
        view=view,
        findings=verdict.findings(view),
        limits=[*verdict.limits(view)],
    )


def render_summary(view: View) -> Markup:
    """Renders the table of points."""
    if not any(point.throughput for point in view.points):
        return page.NOTHING
    return page.render(
        "summary",
        view=view,
        rows=[(point, scaling.ratios(point)) for point in view.points],
        reproduce=next_step,
    )


def render_backends(view: View) -> Markup:
    """Renders the forest plot and its description."""
    measured = [item for item in view.comparisons if item.ratio is not None]
    texts = [(item, verdict.compare_text(item)) for item in view.comparisons]
    if not measured:
        return page.NOTHING
    drawn = rows.ratios(view.frame)
    figure = rows.draw_estimates(
        drawn,
        rows.RATIOS,
        slug="forest",
        title="Throughput ratios of backends",
        description=" ".join(verdict.compare_text(item) for item in measured),
    )
    return page.render(
        "backends",
        view=view,
        figure=figure,
        texts=texts,
        num_left_out=len(measured) - len(drawn),
        csv=cells.of_rows(view.frame, "forest"),
    )


def render_method(view: View) -> Markup:
    """Renders the method."""
    planned = view.study.planned
    return page.render(
        "method",
        view=view,
        command=next_step.command_of_study(view.study.plan),
        spec=planned[0].spec if planned else None,
        commits=", ".join(sorted(next_step.commits_of(view.study.cases))),
        names=names,
        is_relay=view.is_relay,
        marks=marks,
        load=relay,
        relay=relay,
        statistics=estimates,
    )


SCALES = (("linear", "From zero", False), ("log", "Logarithmic", True))
"""Slug, name, and whether the axes are logarithmic; the first is shown."""


def _views(view: View) -> list[dict[str, Any]]:
    """Returns the panels of each quantity on each scale: one figure with a switch."""
    found = view.frame[view.frame["figure"] == "scaling"]
    groups = over_replicas.panels_of(found)

    def draw(quantity: Quantity, mode: str, number: int, *, is_log: bool) -> Markup:
        panel = over_replicas.panel_of_mode(
            found, quantity, mode, backends=groups[number], is_log=is_log
        )
        suffix = f"-{number}" if number else ""
        return over_replicas.draw(
            panel,
            slug=f"{quantity.slug}-{mode}{'-log' * is_log}{suffix}",
            title=f"{quantity.name}, {mode} scaling{', logarithmic' * is_log}",
        )

    return [
        {
            "quantity": quantity,
            "scale": scale,
            "panels": [
                draw(quantity, mode, number, is_log=is_log)
                for number in range(len(groups))
                for mode in dict.fromkeys(found["mode"])
            ],
        }
        for quantity in over_replicas.QUANTITIES
        for scale, _, is_log in SCALES
        if groups
    ]


def render_scaling(view: View) -> Markup:
    """Renders one figure of three quantities, a panel per mode."""
    if not view.is_anything_measured or not view.study.cases:
        return page.NOTHING
    return page.render(
        "scaling",
        view=view,
        views=_views(view),
        quantities=over_replicas.QUANTITIES,
        scales=SCALES,
        csv=cells.of_rows(view.frame, "scaling"),
    )
