"""What a request says of steps, budgets and counts; what it leaves out is chosen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness import catalog
from harness.errors import ParseError, PlanError
from harness.options.kinds import seconds_of
from harness.planning import defaults
from results.records import measuring
from results.records.limits import MAX_BUDGET
from results.records.models import Budget, BudgetUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.catalog import WorkloadInfo


def steps_per_sync(requested: int | None, info: WorkloadInfo, device: str) -> int:
    """Returns the steps that are started before their losses are read."""
    if not info.syncs_because:
        on_gpus = defaults.STEPS_PER_SYNC_ON_GPUS
        return requested or (on_gpus if device == "gpu" else 1)
    if requested not in (None, 1):
        raise PlanError(
            f"--steps-per-sync {requested} with workload {info.name}:"
            f" {info.syncs_because}, so a step ends before the next one starts; use 1"
        )
    return 1


NONE = "none"
WINDOW = "window"
"""Quality after the measured window of each trial."""
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(steps|examples)", re.ASCII)
_UNITS = {"steps": BudgetUnit.STEPS, "examples": BudgetUnit.EXAMPLES}


def is_evaluated(text: str | None) -> bool | None:
    """Whether trials measure quality after their windows; None where nobody said."""
    parts = _parts(text or "")
    return True if WINDOW in parts else False if parts == [NONE] else None


def parse_budget(text: str, *, num_evaluations: int) -> Budget | None:
    """Returns the budget that ``text`` names, or None without quality runs."""
    parts = [part for part in _parts(text) if part != WINDOW]
    if not parts or is_evaluated(text) is False:
        return None
    found = _FORM.fullmatch(",".join(parts))
    unit = _UNITS[found[2]] if found else BudgetUnit.SECONDS
    amount = float(found[1]) if found else seconds_of(",".join(parts))
    if amount is None or not 0 < amount <= MAX_BUDGET:
        raise ParseError(
            f"--budget {text!r} is not a budget; allowed are a positive number with"
            f" s, min, h, steps or examples (60s, 10min, 500steps), at most"
            f" {MAX_BUDGET:g}, {WINDOW}, both with a comma between, or {NONE} alone"
        )
    return Budget(amount=amount, unit=unit, num_evaluations=num_evaluations)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


OPTION = "--count"


def check_counts(
    names: Sequence[str], backends: Sequence[str], num_warmup_steps: int | None
) -> None:
    """Checks the counts of a gate on a workload."""
    for index, name in enumerate(names):
        word, equals, _ = name.partition("=")
        if equals and word in measuring.UNITS:
            raise PlanError(
                f"{OPTION} {name!r} has a pattern, and a workload prints nothing that"
                f" is read; write {OPTION} {word}, or give --command"
            )
        if name not in measuring.UNITS:
            raise PlanError(
                f"{OPTION} {name!r} is not counted in a step; use one of"
                f" {', '.join(measuring.UNITS)}"
            )
        if name in names[:index]:
            raise PlanError(f"{OPTION} {name!r} is given twice; give it once")
        for backend in backends:
            if name not in (known := _known(backend)):
                allowed = f"one of {', '.join(known)}" if known else "other backends"
                raise PlanError(
                    f"{OPTION} {name!r} is not known of backend {backend!r}; use"
                    f" {allowed}"
                )
    if names and num_warmup_steps == 1:
        raise PlanError(
            f"{OPTION} {names[0]!r} with --steps 1+: the first step traces, so another"
            f" one is counted; use --steps {measuring.FEWEST_WARMUP_STEPS}+ or more"
        )


def _known(backend: str) -> list[str]:
    """Returns what is counted of steps on a backend."""
    info = catalog.backend(backend)
    if catalog.peer(backend) is not None:
        return []
    if info.processes == catalog.PARAMETER_SERVERS:
        return [measuring.RETRACES]
    is_planned = "explained_plan" not in info.lacks
    return [
        name for name in measuring.UNITS if is_planned or name not in measuring.OF_PLANS
    ]
