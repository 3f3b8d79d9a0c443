"""Whether the cases of a study do the same work: equal losses on their first steps.

Two backends with the same replicas, batch, seed and data start from the same weights
and read the same examples, so their losses are equal but for rounding. A
backend that skips an example, forgets a replica's gradient or reads its data twice is
fast and wrong, and shows here. So is a control of the measurement: the twin has to have
the losses of its case.

Rounding grows from step to step, so only the first ``NUM_STEPS`` losses are compared;
where models amplify it so much that the losses of right backends differ after one
update, only the first. Programs whose twin has other losses, such as those with actors,
do not repeat themselves: their losses say nothing, and they are not compared. Neither
are those of steps that draw random numbers, which every backend seeds in its own way:
there only matching with one replica, on equal numbers, shows that backends do the same
work. Nor those of programs that begin with exported weights and batches, whatever their
seed: a check of each of their trials compares these (``OWN_CHECK``).
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Final

from results.records.models import Control

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.study.cases import Case, Entry, Study

OWN_CHECK: Final = "first_losses_agree"
"""Name of the check of a trial whose first losses were compared, and agree."""
NUM_STEPS = 3
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
    # One with as many replicas and the same batch, on another backend, or the first
    # one's twin.
    second: Case
    difference: float  # The largest relative difference of two losses.
    num_pairs: int  # Pairs of trials with the same seed.

    @property
    def holds(self) -> bool:
        """Whether both compute the same, but for rounding."""
        return self.difference <= TOLERANCE

    @property
    def case_ids(self) -> tuple[str, str]:
        """Those of both cases, in planned order."""
        return self.first.case_id, self.second.case_id


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Agreements:
    """What the losses of a study say."""

    twin: Agreement | None  # The case that was measured twice, or None.
    # All other pairs; empty where the twin already differs, or losses of two backends
    # cannot be compared.
    pairs: tuple[Agreement, ...]
    num_steps: int = NUM_STEPS  # How many losses of each trial they compare.
    is_drawn: bool = False  # Whether they cannot, since steps draw random numbers.
    # Backends whose trials compare their first losses themselves.
    by_check: tuple[str, ...] = ()

    @property
    def repeats_itself(self) -> bool:
        """Whether equal programs have equal losses, as far as is known."""
        return self.twin is None or self.twin.holds

    @property
    def broken(self) -> tuple[Agreement, ...]:
        """The pairs that do not compute the same: their ratio is no comparison."""
        return tuple(pair for pair in self.pairs if not pair.holds)


def of_study(study: Study) -> Agreements:
    """Compares the first losses of every two backends at the same size."""
    twin = None
    for control in study.controls:
        if control.spec.control is Control.TWIN:
            matches = [case for case in study.cases if _key(case) == _key(control)]
            found = [
                _compare(case, control, NUM_STEPS)
                for case in matches
                if _same(case, control)
            ]
            twin = next((pair for pair in found if pair is not None), None)
    if twin is not None and not twin.holds:
        return Agreements(twin=twin, pairs=())
    if study.plan.draws_random_numbers:
        return Agreements(twin=twin, pairs=(), is_drawn=True)
    own = {case.case_id: case for case in study.cases if _compares_itself(case)}
    is_amplified = study.plan.amplifies_rounding
    num_steps = NUM_STEPS_WHERE_AMPLIFIED if is_amplified else NUM_STEPS
    pairs = [
        _compare(first, second, num_steps)
        for first, second in itertools.combinations(study.cases, 2)
        if _key(first) == _key(second)
        and not {first.case_id, second.case_id} & own.keys()
    ]
    return Agreements(
        twin=twin,
        pairs=tuple(pair for pair in pairs if pair),
        num_steps=num_steps,
        by_check=tuple(dict.fromkeys(case.spec.backend for case in own.values())),
    )


def _key(case: Case) -> tuple[object, ...]:
    return case.spec.num_replicas, case.spec.per_replica_batch_size


def _compares_itself(case: Case) -> bool:
    return any(
        check.name == OWN_CHECK
        for entry in case.ok_entries
        for check in entry.result.sanity
    )


def _same(case: Case, control: Case) -> bool:
    return case.spec.backend == control.spec.backend


def _compare(first: Case, second: Case, num_steps: int) -> Agreement | None:
    """Compares trials with the same seed; None where there are none."""
    there = {entry.key: _losses(entry, num_steps) for entry in second.ok_entries}
    differences = [
        _difference(_losses(entry, num_steps), there[entry.key])
        for entry in first.ok_entries
        if entry.key in there
    ]
    if not differences:
        return None
    return Agreement(
        first=first,
        second=second,
        difference=max(differences),
        num_pairs=len(differences),
    )


def _losses(entry: Entry, num_steps: int) -> Sequence[float]:
    return entry.result.ranks[0].losses[:num_steps]


def _difference(first: Sequence[float], second: Sequence[float]) -> float:
    return max(
        (
            abs(a - b) / max(abs(a), abs(b), 1e-30)
            for a, b in zip(first, second, strict=False)
        ),
        default=0.0,
    )
