"""Whether N replicas of a backend compute what one replica computes: before any number.

Both sides run the first steps on the same global batches (``workloads/controls.py``),
one replica with the backend ``single``. Compared are the losses of ``NUM_STEPS`` steps,
and what the first ``NUM_CHANGING_STEPS`` changed in models and optimizers: a gradient
that is summed in place of averaged, or that one replica has, is in the state of an
optimizer after one step, even where its update and the loss hide it.

A backend that does not match is fast and wrong: its trials have the state
``unmatched``, and no figure uses them. What is not checked says why.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from results.records.models import Control, TrialStatus

if TYPE_CHECKING:
    from results.records.models import Plan, PlannedTrial, TrialResult, TrialSpec
    from results.records.record_base import Change
    from results.store.study_store import Trial
    from results.study.cases import Case, Study


NUM_STEPS: Final = 3
NUM_CHANGING_STEPS: Final = 2
LOSS_TOLERANCE: Final = 1e-3
"""Relative."""
STATE_TOLERANCE: Final = 0.02
"""Of what changes in the state of an optimizer, relative to its length. Right backends
differ by up to 0.0007; without communication, by 0.1 and more."""
MODEL_TOLERANCE: Final = 0.2
"""The same in a model. Adam divides a gradient by its own size: where it is zero but
for rounding, as of a bias before batch normalization, the sign of a step is chance.
Right backends differ by up to 0.05; without communication, by 0.4 and more."""
TOLERANCES: Final = {"optimizer": STATE_TOLERANCE, "model": MODEL_TOLERANCE}

OLD_PLAN = "an earlier version planned this study"


class Outcome(str, Enum):
    """What a match says."""

    MATCHES = "matches"
    DIFFERS = "differs"
    NOT_CHECKED = "not_checked"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """N replicas of a backend against one replica."""

    backend: str  # The backend.
    num_replicas: int  # N.
    outcome: Outcome = Outcome.NOT_CHECKED  # What was found.
    reason: str = ""  # Why it differs or is not checked, one line; empty if it matches.
    global_batch_size: int = 0  # Examples per step on both sides; 0 if not checked.
    # The largest relative difference of a loss; None if not checked.
    loss_difference: float | None = None
    # The largest of what the steps changed, relative to its tolerance.
    change_difference: float | None = None
    change_tolerance: float | None = None  # That tolerance.
    changed: str = ""  # That model or optimizer; empty if there is none.
    # What was changed to make both sides comparable; empty if nothing.
    remark: str = ""
    is_planned: bool = True  # Whether there is a trial for it.

    @property
    def has_failed(self) -> bool:
        return self.outcome is Outcome.NOT_CHECKED and self.is_planned

    @property
    def label(self) -> str:
        """Backend and replicas, such as ``in_graph x2``."""
        return f"{self.backend} x{self.num_replicas}"


def planned_matches(plan: Plan, trials: Mapping[str, Trial]) -> tuple[Match, ...]:
    """Matches every backend and size of a plan that has more than one replica."""
    check = plan.equivalence
    planned = () if check is None else check.trials
    of_one = {
        trial.spec.global_batch_size: trial
        for trial in planned
        if trial.spec.num_devices == 1
    }
    wanted = dict.fromkeys(  # in planned order
        (trial.spec.backend, trial.spec.num_replicas)
        for trial in plan.trials
        if is_judged(trial.spec) and trial.spec.num_devices > 1
    )
    matches: list[Match] = []
    for backend, size in wanted:
        reason, remark = OLD_PLAN, ""
        if check is not None:
            reason = check.not_checked.get(backend, "it was not planned")
            remark = check.remarks.get(backend, "")
        own = [
            trial
            for trial in planned
            if (trial.spec.backend, trial.spec.num_replicas) == (backend, size)
            and trial.spec.num_devices > 1
        ]
        of_both: dict[str, Any] = {"backend": backend, "num_replicas": size}
        for trial in own:
            reference = of_one.get(trial.spec.global_batch_size)
            of_trial = _compared(trial, reference, trials)
            matches.append(Match(**of_both, remark=remark, **of_trial))
        if not own:
            matches.append(Match(**of_both, reason=reason, is_planned=False))
    return tuple(matches)


def is_judged(spec: TrialSpec) -> bool:
    """Whether its numbers count only if its replicas match one: it records losses."""
    if spec.program is not None and not spec.is_client:
        return False
    return spec.control in (Control.NONE, Control.AA) and not spec.revision


def _compared(
    trial: PlannedTrial, reference: PlannedTrial | None, trials: Mapping[str, Trial]
) -> dict[str, Any]:
    """Returns what is known of a match: why it is not checked, or its outcome."""
    spec = trial.spec
    if reference is None:
        return {"reason": "one replica with the same global batch was not planned"}
    results: list[TrialResult] = []
    for side in (trial, reference):
        which = f"the run of {side.spec.backend} x{side.spec.num_replicas}"
        trial_of_side = trials.get(side.trial_id)
        if trial_of_side is None or trial_of_side.status is None:
            why = "has no record: it is missing, corrupt or interrupted"
            return {"reason": f"{which} {why}"}
        status = trial_of_side.status
        if status.status is not TrialStatus.OK or trial_of_side.result is None:
            return {
                "reason": f"{which} ended as {status.status.label}: {status.reason}"
            }
        results.append(trial_of_side.result)
    losses = [mean_losses(result) for result in results]
    of_losses = loss_difference(*losses)
    # The variables of a program of the user's are not known.
    of_change, tolerance, name = None, None, ""
    if spec.is_client:
        if not all(losses):
            return {"reason": "the program gives no losses: pass loss to step.done()"}
    else:
        sketches = [change.sketch for each in results for change in each.changes]
        if not any(map(any, sketches)):
            why = f"{NUM_CHANGING_STEPS} steps change no variable on either side"
            return {"reason": why}
        of_changes = change_differences(*(result.changes for result in results))
        group, name = max(
            of_changes,
            key=lambda key: of_changes[key] / TOLERANCES[key[0]],
            default=("model", ""),
        )
        of_change, tolerance = of_changes.get((group, name)), TOLERANCES[group]
    reason = _why_different(of_losses, of_change, tolerance, name)
    if reason and spec.is_client:
        reason += "; let batches depend on the seed and the step alone, or --no-match"
    return {
        "outcome": Outcome.DIFFERS if reason else Outcome.MATCHES,
        "reason": reason,
        "global_batch_size": spec.global_batch_size,
        "loss_difference": of_losses,
        "change_difference": of_change,
        "change_tolerance": tolerance,
        "changed": name,
    }


def mean_losses(result: TrialResult) -> list[float]:
    """Returns the loss of each step, the mean over processes with equal batches."""
    of_ranks = (rank.losses for rank in result.ranks)
    return [statistics.fmean(losses) for losses in zip(*of_ranks, strict=False)]


def _why_different(
    of_losses: float, of_change: float | None, tolerance: float | None, name: str
) -> str:
    """Returns how N replicas differ from one, or "" if they do not."""
    if not of_losses <= LOSS_TOLERANCE:
        how = (
            f"their losses of the first {NUM_STEPS} steps differ by {of_losses:.1e}"
            f" (at most {LOSS_TOLERANCE:g}, relative)"
        )
    elif tolerance is not None and (of_change is None or not of_change <= tolerance):
        size = "an unknown amount" if of_change is None else f"{of_change:.0%}"
        how = (
            f"what {NUM_CHANGING_STEPS} steps change in {name or 'the variables'}"
            f" differs by {size} (at most {tolerance:.0%})"
        )
    else:
        return ""
    return f"differs from one replica: {how}"


def loss_difference(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the largest relative difference of the first three losses of two runs.

    Infinite where either has fewer. N replicas match one up to 0.001.
    """
    pairs = list(zip(first[:NUM_STEPS], second[:NUM_STEPS], strict=False))
    if len(pairs) < NUM_STEPS:
        return math.inf
    return _largest_difference(pairs)


def _largest_difference(pairs: Iterable[tuple[float, float]]) -> float:
    relative = (abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs)
    return max(relative, default=0.0)


def change_differences(
    first: Sequence[Change], second: Sequence[Change]
) -> dict[tuple[str, str], float]:
    """Returns the relative difference of what two runs changed, by group and name.

    It is the length of the difference of two sketches over the longer one, and infinite
    where a side lacks it. N replicas match one up to 0.2 in a model, and up to 0.02 in
    the state of an optimizer.
    """
    here, there = (
        {(str(change.group), change.name): change.sketch for change in changes}
        for changes in (first, second)
    )
    differences: dict[tuple[str, str], float] = {}
    for key in dict.fromkeys((*here, *there)):
        one, other = here.get(key, ()), there.get(key, ())
        if len(one) != len(other):
            differences[key] = math.inf
            continue
        longest = max(math.hypot(*one), math.hypot(*other))
        differences[key] = math.dist(one, other) / longest if longest else 0.0
    return differences


# Backends with the same replicas, batch, seed and data have equal losses but for
# rounding, and so has the A/A control. Rounding grows, so ``NUM_STEPS`` are compared,
# and one where models amplify it. Nothing is compared of programs whose A/A control has
# other losses, such as those with actors; of steps that draw random numbers, which each
# backend seeds in its own way; nor of exported weights and batches, which a check of
# each trial compares (``OWN_CHECK``).
OWN_CHECK: Final = "first_losses_agree"
"""Name of the check of a trial whose first losses were compared, and agree."""
NUM_COMPARED_STEPS = 3
NUM_STEPS_WHERE_AMPLIFIED = 1
"""Of models that amplify rounding: the loss before any update. At its initial weights,
ResNet50 of Keras differs by 1e-4 there, and by 0.1 and more after two updates."""
TOLERANCE = 1e-3
"""Relative. Sums in another order differ by 1e-6 after three steps of ResNet-50; a
missing replica, or a mean in place of a sum, by 0.05 and more."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Two cases that should compute the same."""

    first: Case  # A case.
    # The same on another backend, or the first one's A/A control.
    second: Case
    difference: float  # The largest relative difference of two losses.
    num_pairs: int  # Pairs of trials with the same seed.

    @property
    def holds(self) -> bool:
        return self.difference <= TOLERANCE

    @property
    def case_ids(self) -> tuple[str, str]:
        """Those of both cases, in planned order."""
        return self.first.case_id, self.second.case_id


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Agreements:
    """What the losses of a study say."""

    aa_control: Agreement | None  # The case that was measured twice, or None.
    # All other pairs; empty where losses cannot be compared.
    pairs: tuple[Agreement, ...]
    num_steps: int = NUM_COMPARED_STEPS  # How many losses of each trial they compare.
    is_drawn: bool = False  # Whether they cannot, since steps draw random numbers.
    # Backends whose trials compare their first losses themselves.
    by_check: tuple[str, ...] = ()

    @property
    def repeats_itself(self) -> bool:
        """Whether equal programs have equal losses, as far as is known."""
        return self.aa_control is None or self.aa_control.holds

    @property
    def broken(self) -> tuple[Agreement, ...]:
        """The pairs that do not compute the same: their ratio is no comparison."""
        return tuple(pair for pair in self.pairs if not pair.holds)


def agreements_of(study: Study) -> Agreements:
    aa_control = None
    for control, case in itertools.product(study.controls, study.cases):
        if (
            control.spec.control is Control.AA
            and _size(control) == _size(case)
            and control.spec.backend == case.spec.backend
        ):
            aa_control = aa_control or _compare(case, control, NUM_COMPARED_STEPS)
    if aa_control is not None and not aa_control.holds:
        return Agreements(aa_control=aa_control, pairs=())
    if study.plan.draws_random_numbers:
        return Agreements(aa_control=aa_control, pairs=(), is_drawn=True)
    own = {
        case.case_id: case.spec.backend
        for case in study.cases
        for entry in case.ok_entries
        if any(check.name == OWN_CHECK for check in entry.result.sanity)
    }
    is_amplified = study.plan.amplifies_rounding
    num_steps = NUM_STEPS_WHERE_AMPLIFIED if is_amplified else NUM_COMPARED_STEPS
    pairs = [
        _compare(first, second, num_steps)
        for first, second in itertools.combinations(study.cases, 2)
        if _size(first) == _size(second)
        and not {first.case_id, second.case_id} & own.keys()
    ]
    return Agreements(
        aa_control=aa_control,
        pairs=tuple(pair for pair in pairs if pair),
        num_steps=num_steps,
        by_check=tuple(dict.fromkeys(own.values())),
    )


def _size(case: Case) -> tuple[int, int]:
    return case.spec.num_replicas, case.spec.per_replica_batch_size


def _compare(first: Case, second: Case, num_steps: int) -> Agreement | None:
    """Compares trials with the same seed; None where none has losses."""
    here, there = (
        {
            entry.key: entry.result.ranks[0].losses[:num_steps]
            for entry in side.ok_entries
        }
        for side in (first, second)
    )
    differences = [
        _largest_difference(zip(losses, there[key], strict=False))
        for key, losses in here.items()
        if losses and there.get(key)
    ]
    if not differences:
        return None
    return Agreement(
        first=first,
        second=second,
        difference=max(differences),
        num_pairs=len(differences),
    )
