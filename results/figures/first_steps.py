"""How much longer the first step of a turn takes than the others: what turns cost.

A process that waited has cold caches, so the first step after it is slower than one in
a row. Its part of a turn is larger the fewer steps a turn has, and so a ratio of cases
with unlike numbers of steps has some of it. It is measured where turns have two steps
or more; where a turn is one step, it is in every step and cannot be told apart.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from results.statistics import generations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from results.records.measuring import Turn
    from results.records.models import TrialResult
    from results.statistics.estimates import Estimate
    from results.study.cases import Case

LEAST_STEPS = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FirstStep:
    """The first steps of the turns of one case."""

    case: Case  # Whose turns they are.
    # Time of the first step over the mean of the others of its turn, a geometric mean
    # over turns and generations; None where turns are single steps.
    ratio: Estimate | None
    fewest: int  # Steps of the shortest turn.
    most: int  # Steps of the longest one; another number only in studies of before.

    @property
    def part(self) -> float:
        """The part by which it lengthens the shortest turn."""
        return 0.0 if self.ratio is None else (self.ratio.value - 1) / self.fewest


def of_case(case: Case) -> FirstStep | None:
    """Returns what first steps of turns take; None where there are no single times.

    Steps that are queued share their time (``steps_per_sync``).
    """
    if case.spec.steps_per_sync > 1:
        return None
    numbers: set[int] = set()
    logs: list[float] = []
    for entry in case.ok_entries:
        found = list(_turns(entry.result))
        numbers.update(turn.num_steps for turn, _ in found)
        of = [_log_excess(times) for _, times in found if len(times) >= LEAST_STEPS]
        if of:
            logs.append(math.fsum(of) / len(of))
    if not numbers:
        return None
    ratio = generations.over_generations(logs) if logs else None
    return FirstStep(case=case, ratio=ratio, fewest=min(numbers), most=max(numbers))


def _turns(result: TrialResult) -> Iterator[tuple[Turn, list[float]]]:
    """Yields each valid turn with the times of its steps, of the slowest process."""
    first = 0
    for turn in result.turns:
        last = first + turn.num_steps
        if turn.is_valid and not turn.is_sustained:
            columns = zip(
                *(rank.step_time_sec[first:last] for rank in result.ranks), strict=True
            )
            yield turn, [max(column) for column in columns]
        first = last


def _log_excess(times: list[float]) -> float:
    first, *others = times
    return math.log(first / (math.fsum(others) / len(others)))
