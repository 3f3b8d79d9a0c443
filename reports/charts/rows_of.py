"""From rows of the tidy frame to the marks of a figure; notebook and page share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reports.charts import curves, rows, waterfall
from reports.charts.drawing import svg
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from results.study.cases import Case

MILLISECONDS: Final = 1000


def select(frame: pd.DataFrame, figure: str) -> pd.DataFrame:
    """Returns the rows of one figure."""
    found = frame[frame["figure"] == figure]
    if found.empty:
        present = ", ".join(dict.fromkeys(frame["figure"])) or "nothing"
        raise ValueError(
            f"the frame has no rows of figure {figure!r}, only of {present}: pass "
            "results.figures.frame.points_frame(study) of a study that measured it"
        )
    return found


def case_label(num_replicas: int, per_replica_batch_size: int) -> str:
    """Returns replicas times batch per replica, as short as rows need it."""
    return f"{num_replicas} {formats.TIMES} {per_replica_batch_size}"


def label_of(case: Case) -> str:
    """Returns the label of a case within the group of its backend."""
    return case_label(case.spec.num_replicas, case.spec.per_replica_batch_size)


def most_replicas(items: Sequence[rows.Row], sizes: Sequence[int]) -> list[rows.Row]:
    """Returns at most twenty rows, those of most replicas, in their own order."""
    if len(items) <= rows.MOST_ROWS:
        return list(items)
    ranked = sorted(range(len(items)), key=lambda i: (items[i].is_hollow, -sizes[i], i))
    return [items[i] for i in sorted(ranked[: rows.MOST_ROWS])]


def ratios(frame: pd.DataFrame) -> list[rows.Row]:
    """Returns the rows of a forest plot, a group per pair of backends."""
    found = select(frame, "forest")
    found = found.sort_values(["num_replicas"], kind="stable")
    pairs = list(
        dict.fromkeys(zip(found["backend"], found["other_backend"], strict=True))
    )
    items, sizes = [], []
    for first, second in pairs:
        part = found[(found["backend"] == first) & (found["other_backend"] == second)]
        for row in part.itertuples():
            modes = "" if " and " in row.mode else f", {row.mode}"
            sizes.append(int(row.num_replicas))
            items.append(
                rows.Row(
                    group=f"{first} / {second}",
                    label=f"N = {row.num_replicas}{modes}",
                    backend=first,
                    value=row.value,
                    low=_known(row.low),
                    high=_known(row.high),
                    text=formats.times(row.value),
                    is_hollow=bool(row.is_oversubscribed),
                    tip=_tip_of_ratio(row),
                )
            )
    return most_replicas(items, sizes)


def _tip_of_ratio(row: Any) -> str:
    replicas = formats.count(int(row.num_replicas), "replica")
    return svg.of_value(
        f"{row.backend} / {row.other_backend}, {row.mode} scaling, {replicas}: "
        "ratio of throughput",
        row.value,
        formats.times,
        interval=(_known(row.low), _known(row.high)),
        n=int(row.n),
    )


def parts(frame: pd.DataFrame, backend: str, num_replicas: int) -> list[waterfall.Bar]:
    """Returns the bars of one case, in ms."""
    found = select(frame, "waterfall")
    found = found[
        (found["backend"] == backend) & (found["num_replicas"] == num_replicas)
    ]
    # A case of another batch size is another case.
    first = found["per_replica_batch_size"].iloc[0]
    found = found[found["per_replica_batch_size"] == first]
    return [
        waterfall.Bar(
            label=waterfall.LABELS.get(row.quantity, row.quantity),
            value=MILLISECONDS * row.value,
            low=None if _known(row.low) is None else MILLISECONDS * row.low,
            high=None if _known(row.high) is None else MILLISECONDS * row.high,
            text=formats.significant(MILLISECONDS * row.value),
            is_total=row.kind == "whole",
        )
        for row in found.itertuples()
    ]


def cases_of_steps(frame: pd.DataFrame, phase: str) -> list[rows.Row]:
    """Returns the step times of each case in ms, a group per backend."""
    found = select(frame, "steps")
    found = found[found["phase"] == phase]
    keys = ["backend", "num_replicas", "per_replica_batch_size"]
    items, sizes = [], []
    groups: dict[Any, pd.DataFrame] = dict(iter(found.groupby(keys, sort=False)))
    backends = list(dict.fromkeys(found["backend"]))
    for key in sorted(groups, key=lambda k: (backends.index(k[0]), k[1], -k[2])):
        backend, num_replicas, batch = key
        part = groups[key]
        times = MILLISECONDS * part["value"]
        sizes.append(int(num_replicas))
        items.append(
            rows.Row(
                group=str(backend),
                label=case_label(int(num_replicas), int(batch)),
                backend=str(backend),
                dots=tuple(times),
                text=formats.seconds(float(times.median()) / MILLISECONDS),
                is_hollow=bool(part["is_oversubscribed"].iloc[0]),
            )
        )
    return most_replicas(items, sizes)


def cases_of_learning(
    frame: pd.DataFrame,
    metric: str,
    spent: str,
    failed: Mapping[tuple[Any, ...], tuple[float, ...]] | None = None,
) -> list[curves.Curve]:
    """Returns the runs of each case, with what they had spent at each evaluation."""
    found = select(frame, "learning")
    found = found[found["quantity"] == metric]
    keys = ["backend", "num_replicas", "per_replica_batch_size", "revision"]
    names = list(dict.fromkeys(zip(*(found[key] for key in keys), strict=True)))
    is_one = len({backend for backend, *_ in names}) == 1
    drawn = []
    for backend, num_replicas, batch, revision in names:
        part = found[
            (found["backend"] == backend)
            & (found["num_replicas"] == num_replicas)
            & (found["per_replica_batch_size"] == batch)
            & (found["revision"] == revision)
        ]
        label = f"N = {num_replicas}"
        if not is_one:
            label = f"{backend} {formats.TIMES}{num_replicas}"
        if revision:
            label = f"{revision[:7]}, {label}"
        runs = tuple(
            curves.CurveRun(
                spent=tuple(float(x) for x in run[spent]),
                values=tuple(run["value"]),
                lows=tuple(run["low"]),
                highs=tuple(run["high"]),
            )
            for _, run in part.groupby("trial_id", sort=False)
        )
        drawn.append(
            curves.Curve(
                label=label,
                backend=backend,
                runs=runs,
                is_hollow=bool(part["is_oversubscribed"].iloc[0]),
                failed=(failed or {}).get((backend, num_replicas, batch, revision), ()),
            )
        )
    return drawn


def _known(value: float) -> float | None:
    return value if value == value else None  # noqa: PLR0124  # not a number
