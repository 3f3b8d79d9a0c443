"""Schedules: pure functions, for all sizes that a machine has."""

from __future__ import annotations

import pytest

from replicator.errors import PipelineError
from replicator.pipeline import schedule
from replicator.pipeline.schedule import Task

SIZES = [(k, m) for k in range(1, 9) for m in range(1, 33)]


@pytest.mark.parametrize("name", schedule.SCHEDULES)
def test_every_stage_does_every_task_once_and_in_an_order_that_ends(name):
    """All K up to 8 and M up to 32; what a task needs has ended before it."""
    for num_stages, num_microbatches in SIZES:
        made = schedule.make(name, num_stages, num_microbatches)
        every = {Task(f, m) for f in (True, False) for m in range(num_microbatches)}
        assert all(len(own) == len(every) and set(own) == every for own in made)

        before: set[tuple[int, Task]] = set()
        for unit in schedule.in_time(made):
            for stage, task in unit:
                # Not in the same unit: two devices cannot hand over within a task.
                forward = task.is_forward
                neighbour = stage - 1 if forward else stage + 1
                if 0 <= neighbour < num_stages:
                    assert (neighbour, task) in before
                assert forward or (stage, Task(True, task.microbatch)) in before
            before |= set(unit)
        order = [
            [t for u in schedule.in_time(made) for s, t in u if s == k]
            for k in range(num_stages)
        ]
        assert order == made


def test_activations_that_are_kept_are_those_of_the_papers():
    """M at each stage (GPipe); min(M, K - k) at stage k (PipeDream-Flush)."""
    for k, m in SIZES:
        kept = [schedule.most_kept(own) for own in schedule.fill_drain(k, m)]
        assert kept == [m] * k
        kept = [
            schedule.most_kept(own) for own in schedule.one_forward_one_backward(k, m)
        ]
        assert kept == [min(m, k - stage) for stage in range(k)]


@pytest.mark.parametrize("name", schedule.SCHEDULES)
def test_the_bubble_is_that_of_the_paper(name):
    """(K - 1) / (M + K - 1) of the time of every device, with tasks of one length."""
    for num_stages, num_microbatches in SIZES:
        units = schedule.in_time(schedule.make(name, num_stages, num_microbatches))
        assert len(units) == 2 * (num_microbatches + num_stages - 1)


def test_a_schedule_that_never_ends_names_who_waits():
    """Stage 0 waits for a gradient of what it has not computed."""
    backward_first = [[Task(False, 0), Task(True, 0)], [Task(True, 0), Task(False, 0)]]
    with pytest.raises(PipelineError, match="stage 0 for B0, stage 1 for F0 wait"):
        schedule.in_time(backward_first)


def test_a_schedule_is_drawn_with_a_row_per_stage():
    """As figure 2 of GPipe."""
    assert schedule.draw(schedule.one_forward_one_backward(2, 4)) == (
        "stage 0  F0 F1    B0 F2 B1 F3 B2    B3\nstage 1     F0 B0 F1 B1 F2 B2 F3 B3"
    )
    assert schedule.draw(schedule.fill_drain(2, 2)) == (
        "stage 0  F0 F1       B1 B0\nstage 1     F0 F1 B1 B0"
    )


def test_an_unknown_schedule_names_those_that_exist():
    with pytest.raises(
        PipelineError,
        match="schedule='zigzag' is unknown; use one of fill_drain, one_forward_one_ba",
    ):
        schedule.make("zigzag", 2, 2)
