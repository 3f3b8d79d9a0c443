"""How a study was measured: primary contrast, A/A control, discarded blocks, load."""

from __future__ import annotations

import collections
import itertools
import math
import re
from typing import TYPE_CHECKING, NamedTuple

from results.figures import scaling
from results.records.models import Control, Order
from results.statistics import estimates

if TYPE_CHECKING:
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Study


AA_CONFIDENCE = 0.99
"""Of the interval that decides whether an A/A control differs. With 0.95, one gate of
20 would be refused although its design is right."""
SOME_DISCARDED = 0.1
"""Beyond this part of discarded blocks, a reader is told that the machine was busy."""
MOST_DISCARDED = scaling.MOST_DISCARDED
"""With a larger part of discarded blocks, a gate judges nothing."""


class BlockCounts(NamedTuple):
    num_blocks: int = 0  # All blocks, repeated ones included.
    num_discarded: int = 0  # Those that do not count.
    num_lost: int = 0  # Blocks that were discarded as often as they were repeated.
    # How often each reason occurs, without what was measured; the most frequent first.
    reasons: tuple[tuple[str, int], ...] = ()

    @property
    def discarded_fraction(self) -> float:
        return self.num_discarded / self.num_blocks if self.num_blocks else 0.0

    @property
    def busy(self) -> str:
        """What the discarded blocks mean for a sweep, if they are many; else ""."""
        if self.discarded_fraction <= SOME_DISCARDED:
            return ""
        if self.num_discarded == self.num_blocks:
            return f"busy machine: all {self.num_blocks} blocks were disturbed"
        number = f"{self.num_discarded} of {self.num_blocks} blocks discarded"
        return f"busy machine: intervals are wider ({number})"

    @property
    def is_unfit(self) -> bool:
        return self.discarded_fraction > MOST_DISCARDED


NO_BLOCKS = BlockCounts()


def count_blocks(study: Study) -> BlockCounts:
    num_blocks = num_lost = 0
    reasons: collections.Counter[str] = collections.Counter()
    for entry in study.planned:
        blocks = entry.blocks
        num_blocks += len(blocks)
        valid = [block for block in blocks if block.is_valid]
        all_rounds, rounds = (
            {(block.round_index, block.is_sustained) for block in some}
            for some in (blocks, valid)
        )
        num_lost += len(all_rounds - rounds)
        discarded = (block.discard_reason for block in blocks if not block.is_valid)
        reasons.update(map(_without_numbers, discarded))
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return BlockCounts(num_blocks, reasons.total(), num_lost, tuple(ordered))


def _without_numbers(reason: str) -> str:
    """Returns a reason with the limit in place of what was measured."""
    with_limit = re.sub(r"\d+ %(.*) \(limit (\d+ %)\)$", r"more than \2\1", reason)
    return re.sub(r" (once|\d+ times)$", "", with_limit)


class AaControl(NamedTuple):
    """A case that was measured twice: how far apart two equal programs are."""

    case: Case  # The case.
    control: Case  # Its second measurement.
    ratio: Estimate  # X(A/A control) / X(case); 1 is the truth.
    # With an interval of ``AA_CONFIDENCE``; None of one repetition and in sequence.
    strict: Estimate | None = None

    @property
    def differs(self) -> bool:
        """Whether the two equal programs differ: then nothing is judged."""
        return self.strict is not None and self.strict.excludes(1.0)


_OF_CONTROL = {"control", "repetition_index", "seed"}


def aa_control_of(study: Study) -> AaControl | None:
    """Returns the A/A control and its case, or None where there is none with blocks."""
    pairs = (
        (control, case)
        for control in study.controls
        if control.spec.control is Control.AA
        for case in study.cases
        if case.spec_without(_OF_CONTROL) == control.spec_without(_OF_CONTROL)
    )
    for control, case in itertools.islice(pairs, 1):
        ratio, strict = scaling.throughput_ratio(control, case), None
        logs = scaling.block_logs(control, case)
        if len(logs) >= estimates.FEWEST_FOR_INTERVAL:
            mean = estimates.mean_of_rounds(logs)
            strict = estimates.from_logs(
                mean.estimate(estimates.OVER_ROUNDS, confidence=AA_CONFIDENCE)
            )
        if ratio is not None:
            return AaControl(case, control, ratio, strict)
    return None


def is_precise_enough(study: Study) -> bool:
    """Returns whether the primary contrast has reached the target of the plan."""
    measuring = study.plan.measuring
    target, primary = measuring.target, measuring.primary
    if target is None:
        return True
    logs: list[tuple[float, ...]] = []
    if primary is not None and measuring.order is Order.INTERLEAVED:
        cases = {case.case_id: case for case in (*study.cases, *study.other_revisions)}
        ids = primary.first_case_id, primary.second_case_id
        if all(case_id in cases for case_id in ids):
            logs = scaling.block_logs(cases[ids[0]], cases[ids[1]])
    return estimates.is_precise_enough(logs, target)


QUIET_FRACTION = 0.05
"""Of the CPU time: what others may use beside a trial."""


class Load(NamedTuple):
    unit: str  # What has one: a block of an interleaved study, or a trial.
    num_all: int  # All of these.
    num_unknown: int  # Those of which it was not recorded.
    # Trials where others used more than ``QUIET_FRACTION``; no blocks.
    num_busy: int
    most: float | None  # The largest share; None where none was recorded.


def load_of_study(study: Study) -> Load:
    blocks = [block for entry in study.planned for block in entry.blocks]
    shares = [one.foreign_cpu_fraction for one in blocks or study.environments]
    known = [share for share in shares if share is not None]
    num_busy = 0 if blocks else sum(share > QUIET_FRACTION for share in known)
    unit, num_unknown = "block" if blocks else "trial", len(shares) - len(known)
    return Load(unit, len(shares), num_unknown, num_busy, max(known, default=None))


# A process that waited has cold caches, so the first step of a block is slower. Its
# part is larger the fewer steps a block has, so ratios of cases with unlike numbers of
# steps have some of it. It cannot be told apart where a block is one step.
_LEAST_STEPS = 2


class FirstStep(NamedTuple):
    case: Case  # Whose blocks they are.
    # First step over the mean of the others of its block; None of single steps.
    ratio: Estimate | None
    fewest: int  # Steps of the shortest block.
    most: int  # Steps of the longest one; another number only in studies of before.

    @property
    def part(self) -> float:
        """The part by which it lengthens the shortest block."""
        return 0.0 if self.ratio is None else (self.ratio.value - 1) / self.fewest


def first_step_of(case: Case) -> FirstStep | None:
    """Returns what first steps of blocks take; None where steps share their time."""
    if case.spec.steps_per_sync > 1:
        return None
    numbers: set[int] = set()
    logs: list[float] = []
    for entry in case.ok_entries:
        # A step ends with the slowest process.
        blocks = [
            [max(column) for column in zip(*of_processes, strict=True)]
            for of_processes in entry.result.steps_of_blocks().values()
        ]
        numbers.update(map(len, blocks))
        excesses = [
            math.log(first / (math.fsum(others) / len(others)))
            for first, *others in blocks
            if len(others) + 1 >= _LEAST_STEPS
        ]
        if excesses:
            logs.append(estimates.mean(excesses))
    if not numbers:
        return None
    ratio = estimates.over_repetitions(logs) if logs else None
    return FirstStep(case, ratio, min(numbers), max(numbers))
