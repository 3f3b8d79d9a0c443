"""The figure of the first screen: efficiency over replicas, both scaling modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reports.charts import over_replicas
from reports.charts.drawing import svg
from reports.charts.over_replicas import Panel, ReplicaCurve
from reports.charts.quantities import EFFICIENCY

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup

    from reports.view.view import View

_KINDS: Final = ("estimate", "repetition", "ceiling")


def _rows(view: View) -> pd.DataFrame:
    rows = view.frame[view.frame["figure"] == "scaling"]
    return rows[rows["quantity"].eq(EFFICIENCY.slug) & rows["kind"].isin(_KINDS)]


def curves(view: View) -> list[ReplicaCurve]:
    """Returns the lines with a value beside the baseline's, in planned order."""
    rows = _rows(view)
    has_several = len(view.study.backends) > 1
    found = []
    for backend in view.study.backends:
        for mode in (mode.value for mode in view.study.modes):
            part = rows[(rows["backend"] == backend) & (rows["mode"] == mode)]
            estimates = part[part["kind"] == "estimate"]
            if (~estimates["is_baseline"]).any():
                found.append(
                    ReplicaCurve(
                        rows=over_replicas.rows_of(part),
                        name=f"{backend}, {mode}",
                        series=view.series(backend),
                        dash=svg.dash_of_line(mode),
                        label=f"{backend}\n{mode}" if has_several else mode,
                    )
                )
    return found


def draw(view: View) -> Markup | None:
    """Draws at most ``replica_panel.MOST_LINES`` lines; None without any."""
    shown = curves(view)[: over_replicas.MOST_LINES]
    if not shown:
        return None
    sizes = {int(row.num_replicas) for curve in shown for row in curve.rows}
    panel = Panel(
        quantity=EFFICIENCY,
        curves=tuple(shown),
        sizes=tuple(sorted(sizes)),
        y_limits=over_replicas.y_limits(_rows(view), EFFICIENCY),
        is_from_zero=False,
    )
    title = "Parallel efficiency by number of replicas"
    return over_replicas.draw(panel, slug="hero", title=title)
