"""A timeline in numbers: what a file that ``Replicator.timeline`` wrote says.

A pipeline has tasks: the forward or the backward pass of one stage for a micro-batch.
Its *bubble* is the part of the time in which devices have no task: if all take equally
long, (K - 1) / (M + K - 1) for K stages and M micro-batches (Huang et al. 2019, 2.3).
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from typing import TYPE_CHECKING, Any

from results.records.timeline_record import Span, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Spans = Sequence[tuple[float, float]]

_MICRO = 1e6
_TASK = re.compile(r"stage_(\d{1,4})_([FB])(\d{1,4})")
_LANE = re.compile(r" \(\d+\)$")
_KINDS = ("compute", "collective", "wait")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One pass of a micro-batch through a stage.

    Attributes:
      stage: The stage, from 0.
      is_forward: Whether it is the forward pass.
      microbatch: The micro-batch, from 0.
      begin_sec: When it began.
      end_sec: When it ended.
    """

    stage: int
    is_forward: bool
    microbatch: int
    begin_sec: float
    end_sec: float

    @property
    def name(self) -> str:
        """Direction and micro-batch, such as F3."""
        return f"{'F' if self.is_forward else 'B'}{self.microbatch}"

    @property
    def length_sec(self) -> float:
        """How long it took."""
        return self.end_sec - self.begin_sec


def tasks(timeline: Timeline) -> dict[str, list[Task]]:
    """Returns the tasks of each replica of a pipeline, in the order of their begin.

    Replicas are named by worker and replica; the result is empty without a pipeline.
    """
    found: dict[str, list[Task]] = {}
    for span in timeline.spans:
        task = task_of(span)
        if task is not None:
            replica = timeline.rows[span.row].partition(" on ")[0]
            found.setdefault(replica, []).append(task)
    return {
        name: sorted(of, key=lambda task: (task.begin_sec, task.stage))
        for name, of in found.items()
    }


def task_of(span: Span) -> Task | None:
    """Returns the task that a span is; None of another one."""
    match = _TASK.fullmatch(span.name)
    if not match or span.kind != "compute":
        return None
    return Task(
        stage=int(match[1]),
        is_forward=match[2] == "F",
        microbatch=int(match[3]),
        begin_sec=span.begin_sec,
        end_sec=max(span.begin_sec, span.end_sec),
    )


def covered_sec(spans: Iterable[tuple[float, float]]) -> float:
    """Returns how long at least one of several times lasts."""
    return _length(_merged(spans))


def idle_share(of: Sequence[Task]) -> float:
    """Returns the part of the time in which a device has no task, the mean over them.

    The time is that from the begin of the first task to the end of the last one.
    """
    begin = min(task.begin_sec for task in of)
    whole = max(task.end_sec for task in of) - begin
    stages = {task.stage for task in of}
    busy = [
        covered_sec((t.begin_sec, t.end_sec) for t in of if t.stage == stage)
        for stage in stages
    ]
    return 1 - statistics.fmean(busy) / whole if whole > 0 else 0.0


def planned(of: Sequence[Task]) -> list[Task]:
    """Returns the same tasks, all equally long, in their order on each device.

    A task begins when its device is free and the task of the neighbouring stage that it
    needs has ended. Together they take as long as what was measured; a task whose input
    is not among them waits for nothing.
    """
    free: dict[int, int] = {}
    ended: dict[tuple[int, bool, int], int] = {}
    units: list[tuple[Task, int]] = []
    left = {
        stage: [task for task in of if task.stage == stage]
        for stage in sorted({task.stage for task in of})
    }
    known = {(task.stage, task.is_forward, task.microbatch) for task in of}
    while any(left.values()):
        is_stuck = True
        for stage, own in left.items():
            while own:
                task = own[0]
                before = stage - 1 if task.is_forward else stage + 1
                needed = (before, task.is_forward, task.microbatch)
                if needed in known and needed not in ended:
                    break
                begin = max(free.get(stage, 0), ended.get(needed, 0))
                free[stage] = begin + 1
                ended[stage, task.is_forward, task.microbatch] = begin + 1
                units.append((own.pop(0), begin))
                is_stuck = False
        if is_stuck:
            return []  # of a file that no pipeline has written
    start = min(task.begin_sec for task in of)
    unit = (max(task.end_sec for task in of) - start) / max(free.values())
    return [
        dataclasses.replace(
            task, begin_sec=start + begin * unit, end_sec=start + (begin + 1) * unit
        )
        for task, begin in units
    ]


def record(document: Mapping[str, Any], case_id: str, recorded_at: str) -> Timeline:
    """Returns what a study keeps of a trace: its last step, on the clock of worker 0.

    Args:
      document: The trace.
      case_id: Of the case that ran.
      recorded_at: When, RFC 3339.
    """
    names = {
        (event["pid"], event["tid"]): _LANE.sub("", event["args"]["name"])
        for event in document["traceEvents"]
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    last = max(event["args"]["step"] for event in events)
    own = [event for event in events if event["args"]["step"] == last]
    start = min(event["ts"] for event in own)
    num_workers = len({event["pid"] for event in own})
    found = [event for event in own if event["cat"] in _KINDS]

    def row_of(event: Mapping[str, Any]) -> str:
        worker = f"worker {event['pid']}, " if num_workers > 1 else ""
        return f"{worker}{names[event['pid'], event['tid']]}"

    rows = sorted({row_of(event) for event in found})
    of_all = summary(document)
    return Timeline(
        case_id=case_id,
        recorded_at=recorded_at,
        step_sec=max(event["dur"] for event in own if event["cat"] == "step") / _MICRO,
        cost=of_all["cost"],
        clock_bound_sec=of_all["clock_bound_sec"],
        communication_share=of_all["communication_share"],
        rows=tuple(rows),
        spans=tuple(
            Span(
                row=rows.index(row_of(event)),
                name=event["name"],
                kind=event["cat"],
                begin_sec=max(event["ts"] - start, 0.0) / _MICRO,
                end_sec=max(event["ts"] - start + event["dur"], 0.0) / _MICRO,
            )
            for event in found
        ),
    )


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
    return _merged((event["ts"], event["ts"] + event["dur"]) for event in events)


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
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
