"""Comparison of backends: throughput ratios with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports import formats, page, verdict
from reports.figures import rows
from reports.view import modes_text

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view import View
    from results.scaling import Comparison

TITLE = "Backends compared"
SLUG = "backends"


def _row(view: View, comparison: Comparison) -> rows.Row:
    spec, ratio = comparison.first.spec, comparison.ratio
    assert ratio is not None
    replicas = formats.count(spec.num_replicas, "replica")
    return rows.Row(
        label=f"{spec.backend} / {comparison.second.spec.backend}, {replicas}, "
        f"{modes_text(comparison.modes)}",
        series=view.series(spec.backend),
        value=ratio.value,
        low=ratio.low,
        high=ratio.high,
        text=formats.times(ratio.value),
        is_hollow=comparison.is_oversubscribed,
    )


def render(view: View) -> Markup:
    """Renders the forest plot and its description."""
    measured = [item for item in view.comparisons if item.ratio is not None]
    texts = [(item, verdict.compare_text(item)) for item in view.comparisons]
    if not measured:
        return page.NOTHING
    figure = rows.draw_estimates(
        [_row(view, item) for item in measured],
        slug="forest",
        title="Throughput ratios of backends",
        description=" ".join(verdict.compare_text(item) for item in measured),
        axis_label="ratio of throughput (1 = equally fast)",
        reference=1.0,
    )
    return page.render("backends", view=view, figure=figure, texts=texts)
