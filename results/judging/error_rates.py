"""How often gates err in simulations, at worst: what a page prints of its own gate.

``make statistics`` writes the table, of gates of 1, 3 and 6 cases that look, and with
fixed numbers of generations, under truths whose generations do or do not depend on each
other.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, Final

PATH: Final = Path(__file__).with_name("error_rates.json")
ALPHA: Final = 0.05
NUMBERS: Final = (3, 4, 5, 6, 8, 10, 15, 20, 40)
"""Generations of gates with one look."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Probabilities at worst."""

    passes: float  # That a true mean of ``delta`` or more passes.
    regresses: float  # That equal programs regress.
    passes_dependent: float  # The same where generations depend on each other.
    regresses_dependent: float  # The same where generations depend on each other.


def of_gate(num_cases: int, num_generations: int | None, alpha: float) -> Rates | None:
    """Returns the rates of a gate; None at an ``alpha`` that was not simulated."""
    if alpha != ALPHA:
        return None
    if num_generations is not None:
        num_generations = max(
            (number for number in NUMBERS if number <= num_generations),
            default=NUMBERS[0],
        )
    table = [row for row in rows() if row["generations"] == num_generations]
    fewer = max(row["cases"] for row in table if row["cases"] <= num_cases)
    more = [row for row in table if row["cases"] >= num_cases] or table[-1:]
    found = [row for row in table if row["cases"] in (fewer, more[0]["cases"])]

    def most(kind: str, verdict: str) -> float:
        return max(float(row[kind][verdict][0]) for row in found)

    return Rates(
        passes=most("independent", "pass"),
        regresses=most("independent", "regress"),
        passes_dependent=most("dependent", "pass"),
        regresses_dependent=most("dependent", "regress"),
    )


@functools.cache
def rows() -> list[dict[str, Any]]:
    """Returns the table."""
    found: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return found
