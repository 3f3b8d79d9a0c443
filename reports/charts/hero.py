"""The figure of the first screen: efficiency over replicas, both scaling modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reports.charts import over_replicas, replica_panel
from reports.charts.drawing import look
from reports.charts.quantities import EFFICIENCY
from reports.charts.replica_panel import Panel, ReplicaCurve

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
                        rows=replica_panel.rows_of(part),
                        name=f"{backend}, {mode}",
                        series=view.series(backend),
                        dash=look.dash(mode),
                        label=f"{backend}\n{mode}" if has_several else mode,
                    )
                )
    return found


def draw(view: View) -> Markup | None:
    """Draws at most ``replica_panel.MOST_LINES`` lines; None without any."""
    shown = curves(view)[: replica_panel.MOST_LINES]
    if not shown:
        return None
    sizes = {int(row.num_replicas) for curve in shown for row in curve.rows}
    panel = Panel(
        quantity=EFFICIENCY,
        curves=tuple(shown),
        sizes=tuple(sorted(sizes)),
        y_limits=replica_panel.y_limits(_rows(view), EFFICIENCY),
        is_from_zero=False,
    )
    title = "Parallel efficiency by number of replicas"
    return over_replicas.draw(panel, slug="hero", title=title)
