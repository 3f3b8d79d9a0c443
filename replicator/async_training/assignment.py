"""Assignment: the steps of one worker, and which of them run in one dispatch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A worker that is lost does at most so many again; by then, a dispatch costs nothing
# against its steps.
MAX_STEPS_TOGETHER = 64


@dataclasses.dataclass(kw_only=True, eq=False)
class Assignment:
    """Steps that one worker was given."""

    worker: int  # Which worker.
    num_steps: int  # How many steps.
    num_commits: tuple[int, ...]  # By server, commits of one step.
    # Takes the iterators of the worker, its last sequence numbers (by server) and how
    # many steps to run.
    run: Callable[[Any, Any, int], Any]
    # Takes the iterators of the worker, and how many steps to read and drop.
    skip: Callable[[Any, int], None]
    program: Any  # What ``run`` runs; assignments of one program can run together.
    source: Any  # Fixed values, the worker's pipelines, or None.
    keeps_results: bool  # Whether anybody will ask for the outputs.
    handle: Any = None  # What the coordinator knows it by.
    results: Sequence[Any] = ()  # Flat outputs of the last step, on the client.
    is_done: bool = False  # Whether all steps were run.
    # What it runs with, in order; those after the first leave it to that one.
    batch: Batch | None = None

    def follows(self, first: Assignment) -> bool:
        """Whether it can run in one dispatch with another one, which comes before."""
        return (
            self.worker == first.worker
            and self.program is first.program
            and self.source is first.source
            and not first.keeps_results
            and not self.keeps_results
            and self.batch is None
            and not self.is_done
        )


@dataclasses.dataclass(kw_only=True, eq=False)
class Batch:
    """Assignments that are run as one dispatch."""

    members: tuple[Assignment, ...]  # In the order in which they were given.
    # By server, those of the worker before the first step.
    first_sequence_numbers: tuple[int, ...]
    num_attempts: int = 0  # How often it was started.
    num_made: int = 0  # How often the iterators were made before the last attempt.
    error: BaseException | None = None  # What its last attempt raised.

    @property
    def first(self) -> Assignment:
        """The one on whose behalf all are run."""
        return self.members[0]

    @property
    def num_steps(self) -> int:
        """Steps of all members."""
        return sum(member.num_steps for member in self.members)

    def sequence_numbers_after(self, num_steps: int) -> tuple[int, ...]:
        """By server, the sequence numbers that are used after so many steps."""
        return tuple(
            sequence_number + num_steps * num_commits
            for sequence_number, num_commits in zip(
                self.first_sequence_numbers, self.first.num_commits, strict=True
            )
        )

    def num_done(self, sequence_numbers: Sequence[int]) -> int:
        """Finds the steps whose updates all servers have, but for the last one.

        The last one is run in any case, for its results.
        """
        # The server that is furthest behind counts: those ahead of it skip what they
        # have applied, but nobody could make up for a step that one of them lacks.
        num_commits = self.first.num_commits
        num_done = self.num_steps - 1 if any(num_commits) else 0
        for sequence_number, first, each in zip(
            sequence_numbers, self.first_sequence_numbers, num_commits, strict=True
        ):
            if each:
                num_done = min(num_done, (sequence_number - first) // each)
        return num_done


def make_batch(
    first: Assignment,
    queued: Sequence[Assignment],
    first_sequence_numbers: tuple[int, ...],
) -> Batch:
    """Joins an assignment with those that queue directly after it."""
    members = [first]
    num_steps = first.num_steps
    for other in queued[queued.index(first) + 1 :]:
        num_steps += other.num_steps
        if num_steps > MAX_STEPS_TOGETHER or not other.follows(first):
            break
        members.append(other)
    batch = Batch(members=tuple(members), first_sequence_numbers=first_sequence_numbers)
    for member in members:
        member.batch = batch
    return batch
