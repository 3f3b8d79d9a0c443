"""Parses the budgets of quality runs: ``60s``, ``10min``, ``500steps``."""

from __future__ import annotations

import re

from harness.errors import ParseError
from harness.options.notation import seconds_of
from results.records.limits import MAX_BUDGET
from results.records.models import Budget, BudgetUnit

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
