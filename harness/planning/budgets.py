"""Parses the budgets of quality runs: ``60s``, ``10min``, ``500steps``."""

from __future__ import annotations

import re

from harness.errors import ParseError
from results.records.limits import MAX_BUDGET
from results.records.models import Budget, BudgetUnit

NONE = "none"
_FORM = re.compile(r"(?P<amount>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)")
_UNITS: dict[str, tuple[BudgetUnit, float]] = {
    "s": (BudgetUnit.SECONDS, 1.0),
    "min": (BudgetUnit.SECONDS, 60.0),
    "h": (BudgetUnit.SECONDS, 3600.0),
    "steps": (BudgetUnit.STEPS, 1.0),
    "examples": (BudgetUnit.EXAMPLES, 1.0),
}


def parse_budget(text: str, *, num_evaluations: int) -> Budget | None:
    """Returns the budget that ``text`` names, or None for ``none``.

    Raises:
      ParseError: ``text`` is neither, or the budget is zero or too large.
    """
    if text.strip() == NONE:
        return None
    match = _FORM.fullmatch(text.strip())
    unit, factor = _UNITS.get(match["unit"], (None, 0.0)) if match else (None, 0.0)
    amount = float(match["amount"]) * factor if match else 0.0
    if unit is None or not 0 < amount <= MAX_BUDGET:
        raise ParseError(
            f"--budget {text!r} is not a budget; allowed are a positive number with"
            f" {', '.join(_UNITS)} (60s, 10min, 500steps), at most {MAX_BUDGET:g}, or"
            f" {NONE}"
        )
    return Budget(amount=amount, unit=unit, num_evaluations=num_evaluations)
