"""Selects the cases of a sweep that train to a budget, and sets the budget."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from harness import catalog
from harness.errors import PlanError
from harness.planning import budgets
from results.records.models import BudgetUnit, Control, ScalingMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.catalog import PresetInfo
    from harness.planning.request import SweepRequest
    from results.records.models import Budget

# Allowance for evaluations, start-up and a slow machine, on top of the budget.
_OVERHEAD_FACTOR = 1.5
_OVERHEAD_SEC = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case of a sweep: backend, size, and the scaling modes that it serves.

    ``revision`` is that of the code, empty for the tree of the harness.
    """

    backend: str
    num_replicas: int
    per_replica_batch_size: int
    modes: tuple[ScalingMode, ...]
    control: Control = Control.NONE
    revision: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QualityRuns:
    """The quality runs of a sweep."""

    budget: Budget  # The budget of each.
    cases: tuple[PlannedCase, ...]  # Those that train.
    note: str  # What was chosen for the user, one line.


def choose(
    request: SweepRequest,
    preset: PresetInfo,
    cases: Sequence[PlannedCase],
    *,
    is_data_real: bool,
) -> QualityRuns | None:
    """Returns the requested quality runs, or the preset's, or None.

    A requested budget applies to every backend, the preset's to the first.
    """
    is_asked_for = request.budget is not None
    text = preset.budget if request.budget is None else request.budget
    if not text or (not is_asked_for and not is_data_real):
        return None
    budget = budgets.parse_budget(text, num_evaluations=preset.num_evaluations)
    if budget is None:
        return None
    if not is_data_real:
        raise PlanError(
            f"--budget {text}: the data set 'synthetic' has nothing to learn; use"
            " another --data, or --budget none"
        )
    _check_timeout(text, budget, request.timeout_sec)
    mode = ScalingMode.STRONG
    if mode not in request.modes:
        mode = ScalingMode.WEAK
    # Peers take steps, and measure nothing of what they learn.
    learning = [name for name in request.backends if catalog.peer(name) is None]
    if not learning:
        return None
    backends = learning if is_asked_for else learning[:1]
    chosen = [c for c in cases if mode in c.modes and c.backend in backends]
    where = ", ".join(f"{case.backend} x{case.num_replicas}" for case in chosen)
    return QualityRuns(
        budget=budget,
        cases=tuple(chosen),
        note=(
            f"quality runs: {where} for {budget} each, {mode.value} scaling; --budget"
            f" {budgets.NONE} leaves them out"
        ),
    )


def _check_timeout(text: str, budget: Budget, timeout_sec: float) -> None:
    if budget.unit is not BudgetUnit.SECONDS:
        return
    needed = round(budget.amount * _OVERHEAD_FACTOR + _OVERHEAD_SEC)
    if needed > timeout_sec:
        raise PlanError(
            f"--budget {text} may not end within --timeout {timeout_sec:g} s, with"
            f" start-up and evaluations; use --timeout {needed} or more"
        )
