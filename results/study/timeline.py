"""A timeline in numbers: what a file that ``Replicator.timeline`` wrote says."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Spans = Sequence[tuple[float, float]]

_MICRO = 1e6


def summary(document: Mapping[str, Any]) -> dict[str, float]:
    """Returns means over the recorded steps and the replicas, in seconds.

    ``communication_sec`` is the time in which a collective of a replica's process works
    or waits for another replica, and the replica computes nothing: what the control
    ``nosync`` would not have. ``communication_share`` is its part of the step.

    Args:
      document: The trace.
    """
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in events if event["cat"] == "step"]
    exposed = []
    for step in steps:
        own = [
            event
            for event in events
            if event["pid"] == step["pid"]
            and event["args"]["step"] == step["args"]["step"]
        ]
        sums = _union(e for e in own if e["cat"] == "collective" or "of" in e["args"])
        by_row: dict[str, list[Any]] = {}
        for event in own:
            if event["cat"] == "compute":
                by_row.setdefault(event["args"]["replica"], []).append(event)
        exposed += [
            _length(sums) - _length(_common(sums, _union(row)))
            for row in by_row.values()
        ]
    length = statistics.fmean(step["dur"] for step in steps)
    communication = statistics.fmean(exposed)
    other = document["otherData"]
    return {
        "num_steps": len({step["args"]["step"] for step in steps}),
        "step_sec": length / _MICRO,
        "communication_sec": communication / _MICRO,
        "communication_share": communication / length,
        "cost": max(other["cost"]),
        "clock_bound_sec": max(clock["bound_sec"] for clock in other["clocks"]),
    }


def _union(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Returns the times that are in any of these, without overlap."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _common(one: Spans, other: Spans) -> list[tuple[float, float]]:
    pairs = ((max(a[0], b[0]), min(a[1], b[1])) for a in one for b in other)
    return [(begin, end) for begin, end in pairs if begin < end]


def _length(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans)
