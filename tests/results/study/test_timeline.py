"""A timeline in numbers: what communication hides behind nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from replicator.pipeline import schedule
from replicator.step.stage_names import task_name
from results.study import timeline

if TYPE_CHECKING:
    from results.records.timeline_record import Timeline


def span(
    kind: str, begin: float, end: float, process: int = 0, **args: Any
) -> dict[str, Any]:
    """An event of the first step, in milliseconds."""
    return {
        "ph": "X",
        "name": kind,
        "cat": kind,
        "pid": process,
        "tid": 0,
        "ts": begin * 1e3,
        "dur": (end - begin) * 1e3,
        "args": {"step": 1, **args},
    }


def document(*events: dict[str, Any]) -> dict[str, Any]:
    """A file with two workers' clocks."""
    return {
        "traceEvents": [{"ph": "M", "name": "process_name"}, *events],
        "otherData": {"cost": [1.0, 1.2], "clocks": [{"bound_sec": 0.0}] * 2},
    }


def kept(*tasks: tuple[str, float, float]) -> Timeline:
    """A record of one replica on two devices, in milliseconds."""
    names = [f"replica 0 on CPU:{index}" for index in range(2)]
    return timeline.record(
        {
            "traceEvents": [
                *(
                    {
                        "ph": "M",
                        "name": "thread_name",
                        "pid": 0,
                        "tid": index,
                        "args": {"name": name},
                    }
                    for index, name in enumerate([*names, f"{names[0]} (2)"])
                ),
                span("step", 5, 25),
                *(
                    {
                        **span("compute", begin, end, replica="replica_0"),
                        "name": name,
                        "tid": int(name.removeprefix("stage_")[0]),
                    }
                    for name, begin, end in tasks
                ),
            ],
            "otherData": {"cost": [1.0], "clocks": [{"bound_sec": 0.0}]},
        },
        "0" * 20,
        "2026-01-01T00:00:00Z",
    )


TASKS = (
    ("stage_0_F0", 6, 8),
    ("stage_1_F0", 8, 10),
    ("stage_1_B0", 10, 14),
    ("stage_0_B0", 14, 16),
)


def test_tasks_of_a_pipeline_have_their_bubble() -> None:
    """Of 10 ms, devices work 4 and 6: two stages, one micro-batch, half of it idle."""
    found = kept(*TASKS)
    (tasks,) = timeline.tasks(found).values()

    assert ("replica 0",) == tuple(timeline.tasks(found))
    assert ["F0", "F0", "B0", "B0"] == [task.name for task in tasks]
    assert 0.5 == pytest.approx(timeline.idle_share(tasks))
    assert [1e-3, 3e-3, 5e-3, 9e-3] == pytest.approx([t.begin_sec for t in tasks])
    assert 0.020 == pytest.approx(found.step_sec)


@pytest.mark.parametrize("name", schedule.SCHEDULES)
@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_the_plan_has_the_bubble_of_the_formula(name: str, num_parts: int) -> None:
    """(K - 1) / (M + K - 1), whatever order devices have their tasks in."""
    units = schedule.in_time(schedule.make(name, 2, num_parts))
    (tasks,) = timeline.tasks(
        kept(
            *(
                (task_name(stage, task), 6 + at / 10, 6 + (at + 1) / 10)
                for at, unit in enumerate(units)
                for stage, task in unit
            )
        )
    ).values()
    plan = timeline.planned(tasks)

    assert 1 / (num_parts + 1) == pytest.approx(timeline.idle_share(plan))
    assert sorted((t.stage, t.name, t.begin_sec) for t in tasks) == [
        (stage, task, pytest.approx(begin))
        for stage, task, begin in sorted((t.stage, t.name, t.begin_sec) for t in plan)
    ]


def test_tasks_that_wait_for_each_other_have_no_plan() -> None:
    """No pipeline has written that: each stage waits for the other's second task."""
    stuck = ("stage_0_B0", "stage_1_F0", "stage_0_F0", "stage_1_B0")
    (tasks,) = timeline.tasks(
        kept(*((name, 6 + at, 7 + at) for at, name in enumerate(stuck)))
    ).values()

    assert [] == timeline.planned(tasks)


def test_a_step_without_a_pipeline_has_no_tasks() -> None:
    """Layers are no tasks."""
    assert {} == timeline.tasks(kept(("0_layer", 6, 7)))


def test_communication_behind_a_computation_is_not_counted() -> None:
    """Of 10 ms: a sum from 3 to 9 ms, of which 2 ms are beside a layer."""
    found = timeline.summary(
        document(
            span("step", 0, 10),
            span("compute", 1, 4, replica="replica_0"),
            span("compute", 5, 6, replica="replica_0"),
            span("collective", 3, 8),
            span("collective", 7, 9),
        )
    )

    assert (1, 1.2) == (found["num_steps"], found["cost"])
    assert (0.010, 0.004, 0.4) == pytest.approx(
        tuple(
            found[key]
            for key in ("step_sec", "communication_sec", "communication_share")
        )
    )


def test_a_wait_for_a_replica_is_communication_and_one_for_input_is_not() -> None:
    """Each replica by itself: 4 ms of one that is early, none of the late one."""
    found = timeline.summary(
        document(
            span("step", 0, 10),
            span("wait", 0, 1),
            span("compute", 1, 4, replica="replica_0"),
            span("compute", 1, 8, replica="replica_1"),
            span("wait", 4, 8, of="collective_0_0"),
        )
    )

    assert 0.002 == pytest.approx(found["communication_sec"])


def test_workers_are_counted_alike() -> None:
    """Each has its own rows, and a step of its own."""
    found = timeline.summary(
        document(
            *(
                event
                for process, end in ((0, 8), (1, 6))
                for event in (
                    span("step", 0, 10, process),
                    span("compute", 0, end, process, replica=f"replica_{process}"),
                    span("collective", end, 9, process),
                )
            )
        )
    )

    assert 0.2 == pytest.approx(found["communication_share"])
