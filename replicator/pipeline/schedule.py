"""Schedules: in which order each device works on the tasks of a pipeline.

A task is the forward or the backward pass of one stage for one micro-batch. A schedule
is no more than a list of tasks per stage, so it exists while a step is traced only.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from replicator.errors import PipelineError
from replicator.validation.arguments import is_one_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A pass of one micro-batch through one stage."""

    is_forward: bool  # Whether it is the forward pass.
    microbatch: int  # In [0, number of micro-batches).

    def __str__(self) -> str:
        return f"{'F' if self.is_forward else 'B'}{self.microbatch}"


def fill_drain(num_stages: int, num_microbatches: int) -> list[list[Task]]:
    """All forward passes, then all backward passes (Huang et al. 2019, figure 2c)."""
    forward = [Task(True, m) for m in range(num_microbatches)]
    # The last micro-batch has just left the last stage: its gradients are there first.
    backward = [Task(False, m) for m in reversed(range(num_microbatches))]
    return [forward + backward for _ in range(num_stages)]


def one_forward_one_backward(
    num_stages: int, num_microbatches: int
) -> list[list[Task]]:
    """Each backward pass as early as possible (Narayanan et al. 2019, figure 8)."""
    tasks = []
    for stage in range(num_stages):
        ahead = min(num_microbatches, num_stages - stage)
        own = [Task(True, m) for m in range(ahead)]
        for done in range(num_microbatches):
            own.append(Task(False, done))
            if ahead + done < num_microbatches:
                own.append(Task(True, ahead + done))
        tasks.append(own)
    return tasks


SCHEDULES: Mapping[str, Callable[[int, int], list[list[Task]]]] = {
    "fill_drain": fill_drain,
    "one_forward_one_backward": one_forward_one_backward,
}


def make(name: str, num_stages: int, num_microbatches: int) -> list[list[Task]]:
    """Returns the tasks of each stage under a schedule, in order."""
    if not is_one_of(name, SCHEDULES):
        raise PipelineError(
            f"schedule={shown(name)} is unknown; use one of {', '.join(SCHEDULES)}"
        )
    return SCHEDULES[name](num_stages, num_microbatches)


def in_time(schedule: Sequence[Sequence[Task]]) -> list[list[tuple[int, Task]]]:
    """Runs a schedule in which every task takes one unit of time."""
    num_stages = len(schedule)
    next_task = [0] * num_stages
    finished: set[tuple[int, Task]] = set()
    units: list[list[tuple[int, Task]]] = []
    while any(at < len(own) for at, own in zip(next_task, schedule, strict=True)):
        unit = [
            (stage, own[at])
            for stage, (at, own) in enumerate(zip(next_task, schedule, strict=True))
            if at < len(own) and needed(stage, own[at], num_stages) <= finished
        ]
        if not unit:
            waiting = [
                f"stage {stage} for {own[at]}"
                for stage, (at, own) in enumerate(zip(next_task, schedule, strict=True))
                if at < len(own)
            ]
            raise PipelineError(f"the schedule never ends: {', '.join(waiting)} wait")
        for stage, task in unit:
            next_task[stage] += 1
            finished.add((stage, task))
        units.append(unit)
    return units


def needed(stage: int, task: Task, num_stages: int) -> set[tuple[int, Task]]:
    """The tasks of all stages whose results a task takes."""
    if task.is_forward:
        return {(stage - 1, task)} if stage else set()
    own = {(stage, Task(True, task.microbatch))}
    return own | ({(stage + 1, task)} if stage + 1 < num_stages else set())


def most_kept(tasks: Sequence[Task]) -> int:
    """How many micro-batches a stage keeps activations of, at most."""
    kept = most = 0
    for task in tasks:
        kept += 1 if task.is_forward else -1
        most = max(most, kept)
    return most


def draw(schedule: Sequence[Sequence[Task]]) -> str:
    """Returns a schedule as text: a row per stage, a column per unit of time.

    The share of empty columns is the bubble, (K - 1) / (M + K - 1) of the time if all
    tasks take equally long (Huang et al. 2019, section 2.3).
    """
    units = in_time(schedule)
    width = max(len(str(task)) for own in schedule for task in own)
    rows = []
    for stage in range(len(schedule)):
        cells = [
            next((str(task) for s, task in unit if s == stage), "") for unit in units
        ]
        line = " ".join(cell.ljust(width) for cell in cells).rstrip()
        rows.append(f"stage {stage}  {line}")
    return "\n".join(rows)
