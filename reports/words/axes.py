"""Decides which quality figures share an axis: those of one protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.words import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from results.records.models import MetricFacts, QualityMetric

Axis = tuple[str, str, int]

MOST_FIGURES = 20
"""Limit per section; nobody reads a page with figures of more metrics than that."""


def axis_of(metric: QualityMetric) -> Axis:
    """Returns name, protocol and, where the protocol matters, n.

    A proportion has no protocol and its expected value does not depend on n; a score
    such as FID depends on n.
    """
    return metric.name, metric.protocol, metric.num_examples if metric.protocol else 0


def titles(axes: Iterable[Axis], metrics: Mapping[str, MetricFacts]) -> dict[Axis, str]:
    """Returns a title per axis, numbered where one metric has several."""
    distinct = list(dict.fromkeys(axes))
    found = {}
    for axis in distinct:
        same = [other for other in distinct if other[0] == axis[0]]
        found[axis] = names.metric(axis[0], metrics)
        if len(same) > 1:
            found[axis] += f" (protocol {same.index(axis) + 1} of {len(same)})"
    return found


def explain(axis: Axis, all_axes: Iterable[Axis]) -> str:
    """Says how a figure was computed, and why others of its name have another axis."""
    if not axis[1]:
        return ""
    sentences = [f"Computed with: {axis[1]}; n = {axis[2]}."]
    for other in dict.fromkeys(all_axes):
        if other[0] == axis[0] and other != axis:
            ours, theirs = _parts(axis), _parts(other)
            first = "; ".join(part for part in ours if part not in theirs)
            second = "; ".join(part for part in theirs if part not in ours)
            sentences.append(
                "Not comparable with another figure of this name: here "
                f"{first or 'nothing more'}, there {second or 'nothing more'}."
            )
    return " ".join(sentences)


def _parts(axis: Axis) -> list[str]:
    return [*axis[1].split("; "), f"n = {axis[2]}"] if axis[1] else ["no protocol"]
