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
process takes longer in all steps. Which part is most of the loss, if one is:
``results/figures/main_loss.py``.

With 4 generations, 3 % between generations and 2 % between processes, nominal 95 %
intervals hold the truth in 0.94 to 0.97 of 2,000 simulated studies
(tests/statistics/test_lost_time.py repeats a smaller version).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from results import errors
from results.figures import input_bound, main_loss

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from results.statistics.estimates import Estimate

    StepTimes = Mapping[Hashable, float]  # generation -> mean seconds per step

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
    input_bound: input_bound.InputBound | None = None

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
            f"no generation has all of {', '.join(given)}; a part is the difference of "
            "two step times of one generation: run the case and its controls in one "
            "relay"
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
    bound = input_bound.judge(times["case"], times["baseline"], times["input_only"])
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
    values = {**values, main_loss.UNEXPLAINED: step - sum(values.values())}
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
        main_loss=main_loss.name_of(losses, lost),
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
    found = input_bound.over_generations(values, "s")
    if found.low is not None and name in NO_LOSS:
        found = dataclasses.replace(found, low=max(found.low, 0.0))
    return Part(
        name=name,
        time=found,
        reason=reason,
        share=input_bound.over_generations(values / of),
    )


def _checked(name: str, times: StepTimes) -> StepTimes:
    least = "at least 0" if name == "imbalance" else "positive"
    for generation, value in times.items():
        is_right = value >= 0 if name == "imbalance" else value > 0
        if not (math.isfinite(value) and is_right):
            raise errors.ResultsError(
                f"{name} has {value!r} seconds per step in generation {generation!r}, "
                f"must be finite and {least}; leave out trials that are not ok"
            )
    return times
