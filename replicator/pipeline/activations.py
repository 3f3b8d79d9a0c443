"""Activations: what each stage keeps between its tasks, by liveness over the schedule.

A result of a forward pass is kept on the device of its stage until the last task that
uses it, and a copy of it on the device of each other stage that does. Values of
variables are no activations, whether a function returns them or not; nor is the batch,
which is there for the whole step.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from replicator.engine.graph.origins import Origins
from replicator.step.logical import TASK, task_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.pipeline.schedule import Task

_FORWARD = re.compile(r"stage_\d+_F\d+$")


def peaks(graph: Any, schedule: Sequence[Sequence[Task]]) -> list[int]:
    """Returns the most bytes of activations that each stage keeps at one time.

    What a task needs only while it runs is not counted, nor what has no static shape.
    """
    places = {
        task_name(stage, task): (stage, index)
        for stage, own in enumerate(schedule)
        for index, task in enumerate(own)
    }
    origins = Origins(graph.as_graph_def())
    users: dict[Any, list[tuple[int, int]]] = {}
    for operation in graph.get_operations():
        if _task_of(operation) in places:
            for tensor in operation.inputs:
                origin = origins.of(tensor)
                if origin is not None:
                    users.setdefault(origin, []).append(places[_task_of(operation)])
    alive = [[0] * len(own) for own in schedule]
    for (name, _, num_bytes), uses in users.items():
        if num_bytes is None:
            continue
        producer = _task_of(graph.get_operation_by_name(name))
        if _FORWARD.match(producer):
            for stage, first, last in _lives(places[producer], uses):
                for index in range(first, last + 1):
                    alive[stage][index] += num_bytes
    return [max(own, default=0) for own in alive]


def _lives(
    made: tuple[int, int], uses: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yields each stage that keeps a result, from which task on, and to which."""
    stage, index = made
    for other in {stage, *(user for user, _ in uses)}:
        own = [at for user, at in uses if user == other]
        first = index if other == stage else min(own)
        # What no later task needs is gone with its own.
        if own and max(own) > first:
            yield other, first, max(own)


def _task_of(operation: Any) -> str:
    match = TASK.match(operation.name)
    return match[0] if match else ""
