"""Finds the first bad commit of a history, at one error rate over all steps.

Each step is a gate of a commit beside the good one. A gate errs with at most the
probability that it is given, its *level*. A step takes an equal share of what is left
of ``alpha``, over the steps that are still needed if each halves the suspects; that
decides its level before it is measured, so by Bonferroni's inequality the answer is
wrong with at most ``alpha``, whatever was skipped. A gate without a verdict has spent
its level too: to repeat it until it says something would be to look several times.

The suspects are the commits after the newest good one, up to the oldest bad one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from results.records.bisect_record import CommitVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.records.bisect_record import BisectStep


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Suspects:
    """What is left of a history.

    Attributes:
      commits: One of them is the first bad commit, oldest first; the last is bad.
      is_bad_known: Whether the last one was judged, and is bad.
      is_bad_good: Whether the last one was judged, and is good: nothing is bad.
      following: The commit to judge next; empty if no other can narrow them.
      level: The probability of an error that this step is given.
    """

    commits: tuple[str, ...]
    is_bad_known: bool
    is_bad_good: bool
    following: str
    level: float

    @property
    def is_found(self) -> bool:
        """Whether the first bad commit is known."""
        return self.is_bad_known and len(self.commits) == 1


def suspects(
    commits: Sequence[str], steps: Sequence[BisectStep], alpha: float
) -> Suspects:
    """Returns what is left after some steps.

    Args:
      commits: The history after the good commit, oldest first; the last is the bad one.
      steps: What was judged so far.
      alpha: The accepted probability of a wrong answer.
    """
    outcomes = {
        step.commit: step.outcome
        for step in steps
        if step.outcome is not CommitVerdict.UNFIT
    }
    left = max(alpha - sum(step.level for step in steps), 0.0)
    of_last = outcomes.get(commits[-1])
    if of_last is not CommitVerdict.BAD:  # a history is searched only if its end is bad
        return Suspects(
            commits=tuple(commits),
            is_bad_known=False,
            is_bad_good=of_last is CommitVerdict.GOOD,
            following="" if of_last else commits[-1],
            level=left / (1 + _num_halvings(len(commits))),
        )
    found = [outcomes.get(commit) for commit in commits]
    high = found.index(CommitVerdict.BAD)
    low = max((i for i in range(high) if found[i] is CommitVerdict.GOOD), default=-1)
    between = range(low + 1, high)
    open_ones = [index for index in between if found[index] is None]
    return Suspects(
        commits=tuple(commits[low + 1 : high + 1]),
        is_bad_known=True,
        is_bad_good=False,
        following=commits[_choose(open_ones, low, high)] if open_ones else "",
        level=left / max(_num_halvings(high - low), 1),
    )


def _num_halvings(number: int) -> int:
    """Returns how many steps find one of so many, if each halves them."""
    return math.ceil(math.log2(number))


def _choose(open_ones: Sequence[int], low: int, high: int) -> int:
    """Returns the commit to judge: the middle, and away from it where that is unknown.

    Commits that cannot be run are neighbours of one another, so after the middle come
    the quarters, then the eighths (van der Corput's sequence).
    """
    number = high - low - len(open_ones)  # 1 where all between are open
    fraction, scale = 0.0, 0.5
    while number:
        fraction += scale * (number % 2)
        number, scale = number // 2, scale / 2
    place = low + fraction * (high - low)
    return min(open_ones, key=lambda index: (abs(index - place), index))
