"""Where the time of a step went: what N replicas lose against one replica alone.

Every part is the difference of two step times that were measured in turns in the same
generation, so that slow phases of the machine cancel. With T the mean time of a step:

=====================  ==============================================================
part                   difference
=====================  ==============================================================
alone                  T(one replica), with its own input and update
contention             T(solo) - T(one replica): N programs that never communicate
exposed_communication  T(case) - T(nosync): what a step waits for collectives
input                  T(case) - T(synthetic), less the same at one replica
imbalance              slowest - fastest process of nosync, on average over steps
update                 T(case) - T(without update), less the same at one replica
unexplained            T(case) - all others
=====================  ==============================================================

All but ``alone`` are *losses*: what N replicas take longer than one. What one replica
waits for its own input is not lost by having more of them.

The parts are in seconds, not in logarithms, because only differences add up: in every
generation, and therefore on average, they sum to the step exactly. Intervals are
Student's t over generations. A part can be negative: noise, or two controls that took
away the same time, which then is missing from ``unexplained``. A part without its
control is not guessed; its time is in ``unexplained``, and it says so.

One replica waits for its own input too, so ``input`` needs the control ``synthetic`` at
one replica as well. The same holds for ``update``. A replica that is late in a single
step makes the others wait: that is exposed communication; ``imbalance`` is what one
process takes longer in all steps. Which part is most of the loss,
if one is, says ``name_of``.

With 4 generations, 3 % between generations and 2 % between processes, nominal 95 %
intervals hold the truth in 0.94 to 0.97 of 2,000 simulated studies
(tests/results/figures/test_known_losses.py repeats a smaller version).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from results import errors
from results.statistics import estimates, generations

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from results.records.measuring import Turn
    from results.records.models import TrialResult
    from results.statistics.estimates import Estimate
    from results.study.cases import Case

    StepTimes = Mapping[Hashable, float]  # generation -> mean seconds per step


# With T the mean time of a step, and f = T(input_only) / T(case) in every generation:
#
# - *input-bound*: the interval of f is at or above 0.9. The pipelines alone take almost
#   the whole step, so faster replicas, or faster communication, would wait for batches.
# - *not input-bound*: the interval is below 0.9.
# - otherwise inconclusive, as it is with one generation.
#
# Pipelines run beside the step, so what they take alone is a lower limit of it, and not
# a part that others add up to. On CPUs the control has the cores to itself: a step can
# wait for its input without being input-bound by this rule, and the part ``input``
# (``results/figures/lost_time.py``) shows that.
#
# It explains a loss where T(input_only) is above T(one replica) as well: the pipelines
# alone take longer than the step that N replicas are compared with.

METHOD = "Student's t of differences of step times over runs"
ONE_GENERATION = "no interval: one run tells nothing about other processes"
FRACTION = 0.9
"""Least fraction of a step that the pipelines of an input-bound step take alone."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InputBound:
    """What the input pipelines of a case take alone."""

    input_sec: Estimate  # Seconds per step of the pipelines alone.
    fraction: Estimate  # Of the step of the case.
    excess_sec: Estimate  # What they take longer than the step of one replica.
    verdict: str  # ``input-bound``, ``not input-bound`` or ``inconclusive``.
    # Whether it is input-bound, and the pipelines alone take longer than the step of
    # one replica.
    explains_loss: bool


def over_generations(values: np.ndarray, unit: str = "") -> Estimate:
    """Returns the mean over generations with the interval of Student's t."""
    mean = estimates.one_group(values)
    return mean.estimate(METHOD, otherwise=ONE_GENERATION, unit=unit)


def judge_input_bound(
    case: np.ndarray, baseline: np.ndarray, input_only: np.ndarray
) -> InputBound:
    """Says whether a case is input-bound."""
    fraction = over_generations(input_only / case)
    excess = over_generations(input_only - baseline, "s")
    verdict = "inconclusive"
    if fraction.low is not None and fraction.low >= FRACTION:
        verdict = "input-bound"
    elif fraction.high is not None and fraction.high < FRACTION:
        verdict = "not input-bound"
    return InputBound(
        input_sec=over_generations(input_only, "s"),
        fraction=fraction,
        excess_sec=excess,
        verdict=verdict,
        explains_loss=(
            verdict == "input-bound" and excess.low is not None and excess.low > 0
        ),
    )


# A *loss* is what a step takes longer than that of one replica. A part is named only
# if, over generations and with the 95 % interval of Student's t,
#
# - the loss itself is above 0,
# - the part is more than half of the loss,
# - it is larger than every other part, the unexplained one included,
# - and it is not larger than the loss by half of it: then two controls contradict each
#   other, such as two that take away the same time.
#
# All of these are paired differences of one generation, so noise that cases share
# cancels. Otherwise nothing is named, which is not evidence that there is no single
# cause. In the studies of ``tests/results/figures/test_known_losses.py``, each with one
# known loss, the part that is named is the right one, or none is.

UNEXPLAINED: Final = "unexplained"
_MOST: Final = 0.5
"""Of the loss: a part of less than half is not most of it."""
_CONTRADICTS: Final = 1.5
"""Of the loss: a part beyond this contradicts the parts that are negative."""


def name_of(parts: Mapping[str, np.ndarray], lost: np.ndarray) -> str:
    """The part that is most of a loss; empty if the measurement does not tell."""
    if not _is_above_zero(lost):
        return ""
    for name, values in parts.items():
        if name == UNEXPLAINED or not _is_above_zero(values - _MOST * lost):
            continue
        others = (of for other, of in parts.items() if other != name)
        is_largest = all(_is_above_zero(values - other) for other in others)
        return name if is_largest and not _contradicts(values, lost) else ""
    return ""


def _contradicts(values: np.ndarray, lost: np.ndarray) -> bool:
    return _is_above_zero(values - _CONTRADICTS * lost)


def _is_above_zero(values: np.ndarray) -> bool:
    low = over_generations(values).low
    return low is not None and low > 0


PARTS = (
    "alone",
    "contention",
    "exposed_communication",
    "input",
    "imbalance",
    "update",
    "unexplained",
)
NO_LOSS = frozenset({"alone", "ideal", "step"})
"""Durations, which are never negative; the other parts are differences: losses."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """Mean seconds per step of a case and of its controls, by generation."""

    case: StepTimes  # The case at N replicas.
    # One replica alone with the per-replica batch size of the case.
    baseline: StepTimes
    # The case without communication; of its slowest process.
    nosync: StepTimes | None = None
    # N programs that never communicate; the mean over them.
    solo: StepTimes | None = None
    synthetic: StepTimes | None = None  # The case with one batch for ever.
    baseline_synthetic: StepTimes | None = None  # The same at one replica.
    without_update: StepTimes | None = None  # The case without its update.
    baseline_without_update: StepTimes | None = None  # The same at one replica.
    # Seconds that the slowest process of ``nosync`` takes longer per step than the
    # fastest; None where all replicas share a process.
    imbalance: StepTimes | None = None
    # The input pipelines of the case, without its step.
    input_only: StepTimes | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of the step."""

    name: str  # One of ``PARTS``, or ``step``.
    time: Estimate | None  # Mean seconds over generations; None if it was not measured.
    # Why there is no value, or what else the value holds; empty if nothing.
    reason: str = ""
    # Of the step: the mean over generations of their shares, with its interval; None if
    # it was not measured.
    share: Estimate | None = None

    @property
    def value_sec(self) -> float | None:
        """The mean, or None."""
        return None if self.time is None else self.time.value

    @property
    def low_sec(self) -> float | None:
        """The lower end of its interval, or None."""
        return None if self.time is None else self.time.low

    @property
    def high_sec(self) -> float | None:
        """The upper end of its interval, or None."""
        return None if self.time is None else self.time.high


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LostTime:
    """A step and its parts."""

    step: Part  # The case; its value is the sum of the values of all parts.
    parts: tuple[Part, ...]  # In the order of ``PARTS``.
    num_left_out: int  # Generations of the case in which one of them is missing.
    lost: Part  # The step less that of one replica.
    # The part that is most of it; empty if the measurement does not tell.
    main_loss: str
    # What the input pipelines take alone, which is no part of the sum; None if it was
    # not measured.
    input_bound: InputBound | None = None

    @property
    def whole(self) -> Estimate:
        """The time of the step, in seconds."""
        assert self.step.time is not None
        return self.step.time

    @property
    def num_generations(self) -> int:
        """Generations in which the case and all given controls ran."""
        return self.whole.n

    @property
    def method(self) -> str:
        """How intervals were computed, or why there are none."""
        return self.whole.method

    def part(self, name: str) -> Part:
        """Returns the part of a name."""
        return next(part for part in self.parts if part.name == name)


def decompose(observed: Observed) -> LostTime:
    """Splits the step of a case into parts that add up to it."""
    given = {
        field.name: _checked(field.name, getattr(observed, field.name))
        for field in dataclasses.fields(observed)
        if getattr(observed, field.name) is not None
    }
    generations = [
        g for g in observed.case if all(g in times for times in given.values())
    ]
    if not generations:
        raise errors.ResultsError(
            f"no run has all of {', '.join(given)}; a part is the difference of "
            "two step times of one run: measure the case and its controls together"
        )
    times = {
        name: np.array([found[g] for g in generations]) for name, found in given.items()
    }
    values, reasons = _differences(times)
    if reasons:
        reasons["unexplained"] = f"includes {', '.join(reasons)}: not measured"
    lost = split(
        times["case"],
        values,
        reasons,
        names=PARTS,
        num_left_out=len(observed.case) - len(generations),
    )
    if "input_only" not in times:
        return lost
    bound = judge_input_bound(times["case"], times["baseline"], times["input_only"])
    return dataclasses.replace(lost, input_bound=bound)


def split(
    step: np.ndarray,
    values: Mapping[str, np.ndarray],
    reasons: Mapping[str, str],
    *,
    names: Sequence[str],
    num_left_out: int,
) -> LostTime:
    """Splits a step into its measured parts, and what is left as unexplained."""
    values = {**values, UNEXPLAINED: step - sum(values.values())}
    losses = {name: of for name, of in values.items() if name not in NO_LOSS}
    lost = step - values[names[0]]
    return LostTime(
        step=make_part("step", step, of=step),
        parts=tuple(
            make_part(name, values.get(name), of=step, reason=reasons.get(name, ""))
            for name in names
        ),
        num_left_out=num_left_out,
        lost=make_part("lost", lost, of=step),
        main_loss=name_of(losses, lost),
    )


def _differences(
    times: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The measured parts by generation, and why others are missing."""
    case, alone = times["case"], times["baseline"]
    values: dict[str, np.ndarray] = {}
    reasons: dict[str, str] = {}

    def missing(part: str, *controls: str) -> bool:
        absent = [name for name in controls if name not in times]
        if absent:
            verb = "was" if len(absent) == 1 else "were"
            reasons[part] = (
                f"{' and '.join(absent)} {verb} not measured: part of unexplained"
            )
        return bool(absent)

    if not missing("contention", "solo"):
        values["contention"] = times["solo"] - alone
    if not missing("exposed_communication", "nosync"):
        values["exposed_communication"] = case - times["nosync"]
    if not missing("imbalance", "imbalance"):
        values["imbalance"] = times["imbalance"]
    else:
        reasons["imbalance"] = (
            "the replicas share a process, or their processes were not timed one by "
            "one: part of unexplained"
        )
    for part, control in (("input", "synthetic"), ("update", "without_update")):
        if not missing(part, control, f"baseline_{control}"):
            of_alone = alone - times[f"baseline_{control}"]
            values[part] = case - times[control] - of_alone
    return {"alone": alone, **values}, reasons


def make_part(
    name: str, values: np.ndarray | None, *, of: np.ndarray, reason: str = ""
) -> Part:
    """Returns a part with its interval and its share."""
    if values is None:
        return Part(name=name, time=None, reason=reason)
    found = over_generations(values, "s")
    if found.low is not None and name in NO_LOSS:
        found = dataclasses.replace(found, low=max(found.low, 0.0))
    return Part(
        name=name,
        time=found,
        reason=reason,
        share=over_generations(values / of),
    )


def _checked(name: str, times: StepTimes) -> StepTimes:
    least = "at least 0" if name == "imbalance" else "positive"
    for generation, value in times.items():
        is_right = value >= 0 if name == "imbalance" else value > 0
        if not (math.isfinite(value) and is_right):
            raise errors.ResultsError(
                f"{name} has {value!r} seconds per step in run {generation!r}, "
                f"must be finite and {least}; leave out trials that are not ok"
            )
    return times


# A process that waited has cold caches, so the first step after it is slower than one
# in a row. Its part of a turn is larger the fewer steps a turn has, and so a ratio of
# cases with unlike numbers of steps has some of it. It is measured where turns have two
# steps or more; where a turn is one step, it is in every step and cannot be told apart.

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
