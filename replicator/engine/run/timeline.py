"""Timeline: where the time of some steps went, as a file in Chrome's trace format.

Horovod's timeline (Sergeev and Del Balso 2018) for a linked step: rows of replicas on
their devices, the buckets of collectives, the wait for input and for stragglers. Marks
hold up what they date, so a step with them is a second function, beside that which is
trained with.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import time
from typing import TYPE_CHECKING, Any

from replicator.engine.run import clocks
from replicator.engine.run.marks import COLLECTIVE, COMPUTE, spans
from replicator.step.stage_names import TASK

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from replicator.engine.run.clocks import Clock
    from replicator.engine.run.program import Program

_MICRO = 1e6
_SAME_SEC = 2e-6  # two marks of one moment are read one after the other
_KINDS = 2  # of steps: without marks and with
_INPUT = "waiting for input"
_STRAGGLER = "waiting for a replica"
_OTHER_WORKER = "waiting for a worker"


class Timeline:
    """Steps that are being recorded.

    Steps with and without marks take turns, so that the file says what marks cost.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        num_steps: int,
        *,
        worker: int,
        gather: Callable[[bytes], list[bytes]],
    ) -> None:
        """Prepares recording.

        Args:
          path: Of the file that worker 0 writes.
          num_steps: Steps to record.
          worker: Index of this process among all workers.
          gather: ``Replicator.gather_bytes``.
        """
        self._path = pathlib.Path(path)
        self._num_steps = num_steps
        self._worker = worker
        self._gather = gather
        self._events: list[dict[str, Any]] = []
        self._plain: list[float] = []
        self._timed: list[float] = []
        # A program may have several steps, which take turns.
        self._num_started: dict[Program, int] = {}

    @property
    def is_over(self) -> bool:
        """Whether all steps are recorded."""
        return len(self._timed) >= self._num_steps

    def run(
        self, program: Program, source: Any, num_steps: int, *, may_end: bool
    ) -> Any:
        """Runs steps, one by one, and records some; see ``Program.run``."""
        if not program.has_parts:  # such as a sum of what steps have returned
            return program.run(source, num_steps, may_end=may_end)
        outputs = None
        for left in range(num_steps, 0, -1):
            if self.is_over:
                return program.run(source, left, may_end=may_end)
            outputs = self._step(program, source, may_end=may_end)
        return outputs

    def _step(self, program: Program, source: Any, *, may_end: bool) -> Any:
        count = self._num_started.get(program, 0)
        self._num_started[program] = count + 1
        is_timed = count % 2 == 1
        is_first = count < _KINDS  # which is also traced
        begin = time.time()
        if not is_timed:
            outputs = program.run(source, 1, may_end=may_end)
            program.wait(outputs)
            if not is_first:
                self._plain.append(time.time() - begin)
            return outputs
        outputs, marks, times = program.run_timed(source, may_end=may_end)
        end = time.time()
        if not is_first:
            self._timed.append(end - begin)
            self._events += events_of(
                spans(marks, times),
                (begin, end),
                program.facts(),
                step=len(self._timed),
            )
        return outputs

    def write(self) -> None:
        """Aligns the clocks of all workers, and writes the file on worker 0."""
        found = clocks.compare(self._gather)
        cost = statistics.median(self._timed) / statistics.median(self._plain)
        own = json.dumps({"events": self._events, "cost": cost}).encode()
        by_worker = [json.loads(text) for text in self._gather(own)]
        if self._worker == 0:
            text = json.dumps(
                document(
                    [w["events"] for w in by_worker],
                    found,
                    [w["cost"] for w in by_worker],
                )
            )
            self._path.write_text(text, encoding="utf-8")


def events_of(
    measured: Iterable[Any],
    around: tuple[float, float],
    facts: Mapping[str, Mapping[str, Any]],
    *,
    step: int,
) -> list[dict[str, Any]]:
    """Returns what one step did: rows, names, and times in seconds.

    Args:
      measured: Of ``marks.spans``.
      around: When the step was started, and when it had ended.
      facts: By collective, what the plan says of it.
      step: Its number.
    """
    found: list[dict[str, Any]] = []
    ready: dict[str, float] = {}

    def add(row: str, name: str, start: float, end: float, **args: Any) -> None:
        args = {"step": step, **args}
        found.append({"row": row, "name": name, "begin": start, "end": end, **args})

    for part, first, last, end in measured:
        device = part.device.rpartition("device:")[2] or part.device
        if part.kind == COMPUTE:
            replica, _, layer = part.name.partition("/")
            row = f"{replica.replace('_', ' ')} on {device}"
            ready[row] = min(ready.get(row, last), last)
            add(row, layer, last, end, kind=COMPUTE, replica=replica)
        else:
            row = f"collectives on {device}"
            known = facts.get(part.name, {})
            if last > first:
                add(row, _STRAGGLER, first, last, kind="wait", of=part.name)
            add(row, part.name, last, end, kind=COLLECTIVE, **known)
    for row, moment in ready.items():
        add(row, _INPUT, around[0], moment, kind="wait")
    add("steps", f"step {step}", *around, kind="step")
    return found


def document(
    by_worker: Sequence[Sequence[Mapping[str, Any]]],
    found: Sequence[Clock],
    costs: Sequence[float],
) -> dict[str, Any]:
    """Returns the file: all workers on the clock of worker 0, from the first event.

    Args:
      by_worker: Of each, its events.
      found: Of each, its clock.
      costs: Of each, the time of a step with marks, relative to one without.
    """
    aligned = _with_stragglers(
        [
            [
                {**event, **{k: event[k] + clock.offset_sec for k in ("begin", "end")}}
                for event in events
            ]
            for events, clock in zip(by_worker, found, strict=True)
        ]
    )
    start = min(event["begin"] for events in aligned for event in events)
    trace: list[dict[str, Any]] = []
    for worker, events in enumerate(aligned):
        trace.append(_named("process_name", f"worker {worker}", worker, 0))
        lanes = _lanes(events)
        rows = sorted(set(lanes))
        for index, (row, lane) in enumerate(rows):
            name = row if not lane else f"{row} ({lane + 1})"
            trace.append(_named("thread_name", name, worker, index))
        for event, place in zip(events, lanes, strict=True):
            args = {
                key: value
                for key, value in event.items()
                if key not in ("row", "name", "begin", "end", "kind")
            }
            trace.append(
                {
                    "ph": "X",
                    "name": event["name"],
                    "cat": event["kind"],
                    "pid": worker,
                    "tid": rows.index(place),
                    "ts": (event["begin"] - start) * _MICRO,
                    "dur": max(event["end"] - event["begin"], 0.0) * _MICRO,
                    "args": args,
                }
            )
    return {
        "traceEvents": trace,
        "displayTimeUnit": "ms",
        "otherData": {
            "clocks": [dataclasses.asdict(clock) for clock in found],
            "cost": list(costs),
        },
    }


def _with_stragglers(
    by_worker: Sequence[Sequence[dict[str, Any]]],
) -> list[list[dict[str, Any]]]:
    """Splits collectives of early workers: they wait until the last one begins."""
    last: dict[tuple[int, str], float] = {}
    for events in by_worker:
        for event in events:
            if event["kind"] == COLLECTIVE:
                key = event["step"], event["name"]
                last[key] = max(last.get(key, event["begin"]), event["begin"])
    found: list[list[dict[str, Any]]] = []
    for events in by_worker:
        found.append([])
        for event in events:
            begin = last.get((event["step"], event["name"]), event["begin"])
            # By clocks that are not known exactly it may end before that.
            begin = min(begin, event["end"])
            if begin > event["begin"]:
                wait = {"name": _OTHER_WORKER, "kind": "wait", "of": event["name"]}
                own = {key: event[key] for key in ("row", "step", "begin")}
                found[-1].append({**own, "end": begin, **wait})
            found[-1].append({**event, "begin": max(begin, event["begin"])})
    return found


def _lanes(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Returns the row of each event, and a number of it where others overlap."""
    ends: dict[tuple[str, int], float] = {}
    places: dict[int, tuple[str, int]] = {}
    for index in sorted(range(len(events)), key=lambda i: events[i]["begin"]):
        event = events[index]
        # Gradients are summed beside the tasks of a pipeline, which stay in one row.
        lane = 1 if TASK.match(event["name"]) else 0
        while ends.get((event["row"], lane), 0.0) > event["begin"] + _SAME_SEC:
            lane += 1
        ends[event["row"], lane] = event["end"]
        places[index] = event["row"], lane
    return [places[index] for index in range(len(events))]


def _named(what: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "M",
        "name": what,
        "pid": process,
        "tid": thread,
        "args": {"name": name},
    }
