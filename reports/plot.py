"""Figures of a study on axes of a notebook.

``frame`` is ``results.points_frame(study)``; what it does not have raises ValueError.
``ax`` is where to draw, None for a new figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.charts import curves, rows, style
from reports.view import series_of
from reports.words import formats

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SPENT = {
    "train_time_sec": "training time in s, without evaluations",
    "num_examples": "examples, repeated ones counted again",
    "num_environment_steps": "environment steps of all actors",
}


def _one_of(name: str, value: str, allowed: list[str]) -> str:
    if value not in allowed:
        raise ValueError(
            f"{name} {value!r} is not in the frame, which has {', '.join(allowed)}: "
            f"pass one of these as {name}"
        )
    return value


def _axes(ax: Axes | None, height: float = style.HEIGHT) -> Axes:
    """Returns axes to draw on: the caller's, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    size = (style.WIDTH / style.POINTS_PER_INCH, height / style.POINTS_PER_INCH)
    _, axes = plt.subplots(figsize=size, layout="constrained")
    axes.spines[["top", "right", "left"]].set_visible(False)
    return axes


def scaling(
    frame: pd.DataFrame,
    ax: Axes | None = None,
    *,
    quantity: str = "efficiency",
    mode: str | None = None,
    is_log: bool = False,
) -> Axes:
    """Draws efficiency, speedup or throughput over the number of replicas.

    ``mode`` is ``weak`` or ``strong``, None for the first of the frame. With
    ``is_log``, axes are logarithmic; of efficiency, only the axis of replicas.
    """
    selected = rows.select(frame, "scaling")
    modes = list(dict.fromkeys(selected["mode"]))
    chosen = modes[0] if mode is None else _one_of("mode", mode, modes)
    known = {one.slug: one for one in curves.QUANTITIES}
    what = known[_one_of("quantity", quantity, list(known))]
    axes = _axes(ax)
    backends = list(dict.fromkeys(selected["backend"]))
    panel = curves.panel_of_mode(
        selected, what, chosen, backends=backends, is_log=is_log
    )
    curves.draw_on(axes, panel, style.NOTEBOOK)
    for backend in backends:
        axes.plot(
            [],
            [],
            color=style.NOTEBOOK.color(backend),
            marker=style.MARKERS[series_of(backend)],
            linestyle=style.DASHES.get(chosen, "-"),
            label=backend,
        )
    style.write_legend(axes, -0.2)
    return axes


def forest(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draws ratios of throughput between backends, with intervals."""
    items = rows.ratios(frame)
    axes = _axes(ax, rows.size_of(items)[1])
    rows.draw_ratios(axes, items, style.NOTEBOOK)
    return axes


def waterfall(
    frame: pd.DataFrame,
    ax: Axes | None = None,
    *,
    backend: str | None = None,
    num_replicas: int | None = None,
) -> Axes:
    """Draws where the time of a step of each case with controls went.

    Of the cases of a backend and number of replicas; None for all.
    """
    bars = rows.splits(frame)
    if backend is not None:
        _one_of("backend", backend, list(dict.fromkeys(each.backend for each in bars)))
        bars = [bar for bar in bars if bar.backend == backend]
    if num_replicas is not None:
        sizes = list(dict.fromkeys(str(bar.size) for bar in bars))
        _one_of("num_replicas", str(num_replicas), sizes)
        bars = [bar for bar in bars if bar.size == num_replicas]
    axes = _axes(ax, rows.size_of(bars)[1])
    rows.draw_splits(axes, bars, style.NOTEBOOK)
    return axes


def learning(
    frame: pd.DataFrame,
    ax: Axes | None = None,
    *,
    metric: str | None = None,
    spent: str = "train_time_sec",
) -> Axes:
    """Draws quality over training: the median of the seeds of a case, and their band.

    Of at most seven cases. ``metric`` is the name of a quality metric, None for the
    first; ``spent`` one of ``SPENT``.
    """
    selected = rows.select(frame, "learning")
    metrics = list(dict.fromkeys(selected["quantity"]))
    name = metrics[0] if metric is None else _one_of("metric", metric, metrics)
    present = [key for key in SPENT if selected[key].notna().any()]
    drawn = curves.learning_curves(frame, name)
    shown = selected[selected["quantity"] == name]
    unit = shown["unit"].iloc[0]
    axes = _axes(ax)
    curves.draw_learning(
        axes,
        drawn,
        spent=_one_of("spent", spent, present),
        x_label=SPENT[spent],
        write=lambda value: formats.quality(value, unit),
        look=style.NOTEBOOK,
        y_limits=curves.learning_limits(shown),
    )
    axes.set_title(name, loc="left")
    return axes


def steps(
    frame: pd.DataFrame,
    ax: Axes | None = None,
    *,
    kind: str = "box",
    phase: str = "measure",
) -> Axes:
    """Draws the distribution of the recorded step times of each case.

    ``kind`` is ``box``, or ``ecdf`` for the share of steps that took at most so long;
    ``phase`` is ``measure`` or ``warmup``.
    """
    selected = rows.select(frame, "steps")
    phases = list(dict.fromkeys(selected["phase"]))
    items = rows.cases_of(frame, _one_of("phase", phase, phases))
    if _one_of("kind", kind, ["box", "ecdf"]) == "ecdf":
        axes = _axes(ax)
        rows.draw_shares(axes, items, style.NOTEBOOK)
        style.write_legend(axes, -0.24)
    else:
        axes = _axes(ax, rows.size_of(items)[1])
        rows.draw_boxes(
            axes, items, axis_label="time of one step, ms", look=style.NOTEBOOK
        )
    return axes
