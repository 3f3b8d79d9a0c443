"""Bisection: which commit is judged next, at which level, and how often it errs."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from results.judging.bisection import suspects
from results.records.bisect_record import BisectStep, CommitVerdict
from results.statistics import group_sequential
from results.statistics.group_sequential import PASSED, PROCESSES, REGRESSED

if TYPE_CHECKING:
    from collections.abc import Callable

ALPHA = 0.05


def commit(index: int) -> str:
    """Returns the id of a made commit."""
    return f"{index:040x}"


def search(
    number: int, judge: Callable[[int, float], CommitVerdict], alpha: float = ALPHA
) -> tuple[set[int], list[BisectStep]]:
    """Searches among so many commits; returns the suspects, and all steps."""
    commits = [commit(index) for index in range(number)]
    steps: list[BisectStep] = []
    while True:
        left = suspects(commits, steps, alpha)
        if left.is_found or not left.following:
            return {commits.index(of) for of in left.commits}, steps
        outcome = judge(commits.index(left.following), left.level)
        steps.append(
            BisectStep(commit=left.following, outcome=outcome, level=left.level)
        )


@pytest.mark.parametrize("number", [1, 2, 3, 7, 8, 9, 33])
def test_every_first_bad_commit_is_found_by_halving(number: int) -> None:
    """In one step for the end, and one per halving; the errors add up to alpha."""
    most = 1 + math.ceil(math.log2(number))
    for first in range(number):
        found, steps = search(
            number,
            lambda at, _, first=first: (
                CommitVerdict.BAD if at >= first else CommitVerdict.GOOD
            ),
        )

        assert {first} == found
        assert most >= len(steps)
        assert ALPHA + 1e-12 >= sum(step.level for step in steps)
        assert ALPHA / most == pytest.approx(steps[0].level)


def test_an_end_that_is_good_ends_the_search() -> None:
    """Nothing else is judged, and nothing is found; also where it is undecided."""
    for outcome in (CommitVerdict.GOOD, CommitVerdict.UNDECIDED):
        found, steps = search(9, lambda *_, outcome=outcome: outcome)

        assert 1 == len(steps)
        assert 9 == len(found)


def test_commits_that_cannot_run_leave_a_range() -> None:
    """As for git bisect: the suspects are those between what is known."""
    broken = {3, 4, 5}

    def judge(at: int, _: float) -> CommitVerdict:
        if at in broken:
            return CommitVerdict.SKIPPED
        return CommitVerdict.BAD if at >= 5 else CommitVerdict.GOOD

    found, steps = search(9, judge)

    assert {3, 4, 5, 6} == found
    assert broken >= {int(of.commit, 16) for of in steps if of.outcome == "skipped"}


def test_after_the_middle_come_the_quarters() -> None:
    """Neighbours of a commit that cannot run often cannot run either."""
    _, steps = search(
        16, lambda at, _: CommitVerdict.BAD if at == 15 else CommitVerdict.SKIPPED
    )

    assert [15, 7, 3, 11, 1] == [int(step.commit, 16) for step in steps[:5]]


def test_a_disturbed_step_is_repeated_and_has_spent_its_level() -> None:
    """The machine was unfit: the same commit again, with what is left."""
    seen: list[int] = []

    def judge(at: int, _: float) -> CommitVerdict:
        seen.append(at)
        if len(seen) == 2:
            return CommitVerdict.UNFIT
        return CommitVerdict.BAD if at >= 2 else CommitVerdict.GOOD

    found, steps = search(4, judge)

    assert {2} == found
    assert seen[1] == seen[2]
    assert steps[1].level > steps[2].level
    assert ALPHA + 1e-12 >= sum(step.level for step in steps)


def test_the_levels_never_exceed_alpha() -> None:
    """Whatever is skipped, undecided or unfit."""
    generator = random.Random(5)
    outcomes = [*CommitVerdict, CommitVerdict.GOOD, CommitVerdict.BAD]
    for _ in range(300):
        number = generator.randint(1, 40)
        _, steps = search(number, lambda *_: generator.choice(outcomes))

        assert ALPHA + 1e-12 >= sum(step.level for step in steps)


class MadeGates:
    """Gates of made generations, drawn in thousands: verdicts by truth and level."""

    def __init__(self, looks: tuple[int, ...], spread: float) -> None:
        self._looks, self._spread = looks, spread
        self._pools: dict[tuple[float, float], tuple[list[int], list[int]]] = {}
        self._generator = np.random.default_rng(11)
        self.num_generations = 0

    def judge(self, slowdown: float, level: float) -> CommitVerdict:
        """Returns what one gate says of a true slowdown."""
        key = slowdown, round(level, 9)
        if not self._pools.get(key, ([], []))[0]:
            logs = self._generator.normal(
                math.log1p(slowdown), self._spread, (2_000, self._looks[-1], 1)
            )
            design = group_sequential.Design(
                looks=self._looks, most=self._looks[-1], delta=0.05, alpha=level
            )
            of = group_sequential.outcomes({PROCESSES: logs}, design)
            self._pools[key] = of.verdicts.tolist(), of.ends.tolist()
        verdicts, ends = self._pools[key]
        self.num_generations += ends.pop()
        return {PASSED: CommitVerdict.GOOD, REGRESSED: CommitVerdict.BAD}.get(
            verdicts.pop(), CommitVerdict.UNDECIDED
        )


@pytest.mark.parametrize(
    ("looks", "spread", "slowdown", "least"),
    [
        (group_sequential.LOOKS, 0.03, 0.05, 0.0),
        (group_sequential.LOOKS, 0.03, 0.10, 0.80),
        ((5,), 0.01, 0.10, 0.90),
    ],
)
def test_the_error_rate_over_all_steps(
    looks: tuple[int, ...], spread: float, slowdown: float, least: float
) -> None:
    """800 searches in 16 commits: a wrong commit is named in at most alpha of them.

    Wrong is also a range without the first bad commit, and no regression where there
    is one. The first row is the hardest truth: a slowdown of exactly delta.
    """
    gates = MadeGates(looks, spread)
    generator = random.Random(3)
    num_searches, num_commits = 800, 16
    num_wrong = num_right = 0
    for _ in range(num_searches):
        first = generator.randrange(num_commits)
        found, steps = search(
            num_commits,
            lambda at, level, first=first: gates.judge(
                slowdown if at >= first else 0.0, level
            ),
        )
        is_cleared = steps[-1].outcome is CommitVerdict.GOOD and len(steps) == 1
        num_wrong += first not in found or is_cleared
        num_right += found == {first} and not is_cleared
    error = math.sqrt(ALPHA * (1 - ALPHA) / num_searches)

    assert ALPHA + 3 * error >= num_wrong / num_searches
    assert least <= num_right / num_searches


def test_equal_commits_are_rarely_blamed() -> None:
    """Where nothing is slower, a commit is named in at most alpha of all searches."""
    gates = MadeGates(group_sequential.LOOKS, 0.03)
    found = [search(16, lambda _, level: gates.judge(0.0, level)) for _ in range(800)]
    num_named = sum(
        steps[0].outcome is CommitVerdict.BAD and len(left) == 1
        for left, steps in found
    )
    error = math.sqrt(ALPHA * (1 - ALPHA) / len(found))

    assert ALPHA + 3 * error >= num_named / len(found)
