"""A timeline in numbers: what communication hides behind nothing."""

from __future__ import annotations

from typing import Any

import pytest

from results.study import timeline


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
