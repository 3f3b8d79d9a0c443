"""What a relay says about itself: its primary contrast, its twin, its void turns."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from results.figures import scaling
from results.records.models import Control, Order
from results.statistics import estimates, generations

if TYPE_CHECKING:
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Study


TWIN_CONFIDENCE = 0.99
"""Of the interval that decides whether a twin differs. With 0.95, one gate of 20 would
be refused although its design is right."""
SOME_VOID = 0.1
"""Beyond this part of void turns, a reader is told that the machine was busy."""
MOST_VOID = scaling.MOST_DISCARDED
"""With a larger part of void turns, a gate judges nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TurnCounts:
    """The turns of a study."""

    num_turns: int  # All turns, repeated ones included.
    num_void: int  # Those that do not count.
    num_lost: int  # Turns that were void as often as they were repeated.
    # How often each reason occurs, the most frequent first, without what was measured,
    # so that equal causes are counted together.
    reasons: tuple[tuple[str, int], ...]

    @property
    def void_fraction(self) -> float:
        """Void turns of all turns."""
        return self.num_void / self.num_turns if self.num_turns else 0.0

    @property
    def busy(self) -> str:
        """What the discarded turns mean for a sweep, if they are many; else ""."""
        if self.void_fraction <= SOME_VOID:
            return ""
        if self.num_void == self.num_turns:
            return f"busy machine: all {self.num_turns} blocks were disturbed"
        number = f"{self.num_void} of {self.num_turns} blocks discarded"
        return f"busy machine: intervals are wider ({number})"

    @property
    def is_unfit(self) -> bool:
        """Whether the machine disturbed too many turns for the verdict of a gate."""
        return self.void_fraction > MOST_VOID


def count_turns(study: Study) -> TurnCounts:
    """Counts the turns of all planned trials that have a result."""
    trials = [
        entry.trial.result.turns
        for entry in study.planned
        if entry.trial is not None and entry.trial.result is not None
    ]
    turns = [turn for of_trial in trials for turn in of_trial]
    num_lost = 0
    for of_trial in trials:
        keys = {(t.round_index, t.is_sustained) for t in of_trial}
        valid = {(t.round_index, t.is_sustained) for t in of_trial if t.is_valid}
        num_lost += len(keys - valid)
    void = [turn for turn in turns if not turn.is_valid]
    counts: dict[str, int] = {}
    for turn in void:
        reason = _without_numbers(turn.void_reason)
        counts[reason] = counts.get(reason, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return TurnCounts(
        num_turns=len(turns),
        num_void=len(void),
        num_lost=num_lost,
        reasons=tuple(ordered),
    )


def _without_numbers(reason: str) -> str:
    """Returns a reason with the limit in place of what was measured."""
    with_limit = re.sub(r"\d+ %(.*) \(limit (\d+ %)\)$", r"more than \2\1", reason)
    return re.sub(r" (once|\d+ times)$", "", with_limit)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Twin:
    """A case that was measured twice: how far apart two equal programs are."""

    case: Case  # The case.
    control: Case  # Its second measurement.
    ratio: Estimate  # X(twin) / X(case); 1 is the truth.
    # The same with an interval of ``TWIN_CONFIDENCE``, or None for one generation or
    # trials in sequence.
    strict: Estimate | None = None

    @property
    def differs(self) -> bool:
        """Whether the two equal programs differ: then nothing is judged."""
        return self.strict is not None and self.strict.excludes(1.0)


def twin_of(study: Study) -> Twin | None:
    """Returns the twin and its case, or None where there is none with turns."""
    for control in study.controls:
        if control.spec.control is not Control.TWIN:
            continue
        wanted = _without_control(control)
        for case in study.cases:
            if _without_control(case) == wanted:
                ratio = scaling.throughput_ratio(control, case)
                if ratio is None:
                    return None
                return Twin(
                    case=case,
                    control=control,
                    ratio=ratio,
                    strict=_strict(control, case),
                )
    return None


def _strict(control: Case, case: Case) -> Estimate | None:
    logs = scaling.turn_logs(control, case)
    if len(logs) < estimates.FEWEST_FOR_INTERVAL:
        return None
    return estimates.from_logs(
        generations.mean_of_rounds(logs).estimate(
            generations.OVER_ROUNDS, confidence=TWIN_CONFIDENCE
        )
    )


def _without_control(case: Case) -> dict[str, object]:
    excluded = {"control", "repetition_index", "seed"}
    return case.spec.model_dump(mode="json", exclude=excluded)


def primary_logs(study: Study) -> list[tuple[float, ...]]:
    """Returns the log ratios of the primary contrast, by generation and round."""
    primary = study.plan.measuring.primary
    both = (*study.cases, *study.other_revisions)
    cases = {case.case_id: case for case in both}
    if primary is None or study.plan.measuring.order is not Order.RELAY:
        return []
    first = cases.get(primary.first_case_id)
    second = cases.get(primary.second_case_id)
    if first is None or second is None:
        return []
    return scaling.turn_logs(first, second)


def is_precise_enough(study: Study) -> bool:
    """Returns whether the primary contrast has reached the target of the plan."""
    target = study.plan.measuring.target
    if target is None:
        return True
    return generations.is_precise_enough(primary_logs(study), target)


QUIET_FRACTION = 0.05
"""Of the CPU time: what others may use beside a trial."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Shares of the CPU time that others used."""

    unit: str  # What has one: a turn of a relay, or a trial.
    num_all: int  # All of these.
    num_unknown: int  # Those of which it was not recorded.
    # Trials beside which others used more than ``QUIET_FRACTION``; busy turns are void,
    # and counted elsewhere.
    num_busy: int
    most: float | None  # The largest share; None where none was recorded.


def load_of_study(study: Study) -> Load:
    """Returns what was recorded of all planned trials, of both sides of a gate."""
    trials = [entry.trial for entry in study.planned if entry.trial is not None]
    results = [trial.result for trial in trials if trial.result is not None]
    shares = [turn.foreign_cpu_fraction for of in results for turn in of.turns]
    is_relay = bool(shares)
    if not is_relay:
        environments = [trial.env for trial in trials if trial.env is not None]
        shares = [env.foreign_cpu_fraction for env in environments]
    known = [share for share in shares if share is not None]
    busy = [share for share in known if share > QUIET_FRACTION]
    return Load(
        unit="block" if is_relay else "trial",
        num_all=len(shares),
        num_unknown=len(shares) - len(known),
        num_busy=0 if is_relay else len(busy),
        most=max(known, default=None),
    )
