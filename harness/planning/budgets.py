"""Parses the budgets of quality runs: ``60s``, ``10min``, ``500steps``."""

from __future__ import annotations

import re

from harness.errors import ParseError
from harness.options.durations import seconds_of
from results.records.limits import MAX_BUDGET
from results.records.models import Budget, BudgetUnit

NONE = "none"
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(steps|examples)", re.ASCII)
_UNITS = {"steps": BudgetUnit.STEPS, "examples": BudgetUnit.EXAMPLES}


def parse_budget(text: str, *, num_evaluations: int) -> Budget | None:
    """Returns the budget that ``text`` names, or None for ``none``."""
    if text.strip() == NONE:
        return None
    found = _FORM.fullmatch(text.strip())
    unit = _UNITS[found[2]] if found else BudgetUnit.SECONDS
    amount = float(found[1]) if found else seconds_of(text)
    if amount is None or not 0 < amount <= MAX_BUDGET:
        raise ParseError(
            f"--budget {text!r} is not a budget; allowed are a positive number with"
            f" s, min, h, steps or examples (60s, 10min, 500steps), at most"
            f" {MAX_BUDGET:g}, or {NONE}"
        )
    return Budget(amount=amount, unit=unit, num_evaluations=num_evaluations)
