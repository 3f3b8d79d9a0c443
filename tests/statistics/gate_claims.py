"""What a gate claims, what was simulated, and how often it erred: a table.

``run_simulations.py`` prints the rows, and writes them into the documentation with
``--write``. A sentence of a verdict that has no row here is not printed by a gate.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import noise_models
from noise_models import Change

from results.statistics import group_sequential, spending
from results.statistics.group_sequential import PASSED, REGRESSED

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from results.statistics.spending import Spending

NUM_CASES = 6
BEGIN, END = "<!-- claims of gates -->", "<!-- end of claims -->"
STANDARD_ERRORS = 3
EQUAL = Change()
SLOWER = Change(every_step=math.log(1.05))
FIFTIETH = Change(every_50th=10.0, num_cases=None)
IN_FIVE = Change(process_in_five=math.log(1.5), num_cases=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence that a gate prints, and what it is worth.

    Attributes:
      sentence: What is claimed.
      change: The truth.
      verdict: Whose share is counted.
      least: The share must be at least this; None for no such claim.
      most: The share must be at most this; None for no such claim.
      exempt: Models on which the claim is not made; the document says so.
    """

    sentence: str
    change: Change
    verdict: int
    least: float | None = None
    most: float | None = None
    exempt: tuple[str, ...] = ()


NOISY = ("one spoilt generation in ten",)
CLAIMS = (
    Claim(
        sentence="PASS: equal programs pass (6 cases, spread 0.03)",
        change=EQUAL,
        verdict=PASSED,
        least=0.92,
        exempt=(*NOISY, noise_models.UNEQUAL),
    ),
    Claim(
        sentence="REGRESS is false in at most 5 % of gates",
        change=EQUAL,
        verdict=REGRESSED,
        most=0.05,
    ),
    Claim(
        sentence="PASS: one case of six that is 5 % slower passes in at most 5 %",
        change=SLOWER,
        verdict=PASSED,
        most=0.05,
        exempt=(noise_models.UNEQUAL,),
    ),
    Claim(
        sentence="REGRESS: one case of six that is 5 % slower",
        change=SLOWER,
        verdict=REGRESSED,
        least=0.95,
        exempt=(
            *NOISY,
            noise_models.UNEQUAL,
            "heavy tails",
            "one slow process in five",
        ),
    ),
    Claim(
        sentence="REGRESS, sustained: every 50th step takes 11 times as long (+20 %)",
        change=FIFTIETH,
        verdict=REGRESSED,
        least=0.95,
    ),
    Claim(
        sentence="REGRESS, single processes: one in five takes 50 % longer (+10 %)",
        change=IN_FIVE,
        verdict=REGRESSED,
        least=0.95,
        exempt=NOISY,
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One claim on one model of noise."""

    claim: Claim
    model: str
    share: float
    generations: float
    num_gates: int

    @property
    def is_broken(self) -> bool:
        """Whether the share is worse than claimed, beyond the simulation's error."""
        if self.model in self.claim.exempt:
            return False
        bounds = (self.claim.least, self.claim.most)
        for bound, sign in zip(bounds, (1, -1), strict=True):
            if bound is not None:
                error = math.sqrt(bound * (1 - bound) / self.num_gates)
                if sign * (bound - self.share) > STANDARD_ERRORS * error:
                    return True
        return False


def rows(num_gates: int, seed: int, spend: Spending = spending.pocock) -> Iterator[Row]:
    """Simulates every claim on every model of noise."""
    for model in noise_models.MODELS:
        found: dict[Change, group_sequential.Outcomes] = {}
        for claim in CLAIMS:
            if claim.change not in found:
                found[claim.change] = _outcomes(
                    model, claim.change, num_gates, seed, spend
                )
            of = found[claim.change]
            yield Row(
                claim=claim,
                model=model,
                share=float((of.verdicts == claim.verdict).mean()),
                generations=float(of.ends.mean()),
                num_gates=num_gates,
            )


def _outcomes(
    model: str, change: Change, num_gates: int, seed: int, spend: Spending
) -> group_sequential.Outcomes:
    logs = noise_models.simulate(
        model,
        change,
        num_gates=num_gates,
        num_generations=group_sequential.LOOKS[-1],
        num_cases=NUM_CASES,
        seed=seed,
    )
    of = {
        group_sequential.TURNS: logs.turns,
        group_sequential.SUSTAINED: logs.sustained,
        group_sequential.TAIL: logs.tail,
    }
    design = group_sequential.Design(delta=0.05, alpha=0.05, spend=spend)
    return group_sequential.outcomes(of, design)


def table(found: list[Row]) -> list[str]:
    """Returns the rows as Markdown."""
    lines = [
        "| what is claimed | simulated noise | found | after generations | n |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found:
        limit = (
            f"at least {row.claim.least}"
            if row.claim.least is not None
            else f"at most {row.claim.most}"
        )
        is_exempt = row.model in row.claim.exempt
        claimed = "not claimed" if is_exempt else limit
        lines.append(
            f"| {row.claim.sentence} | {row.model} | {row.share:.3f} ({claimed}) |"
            f" {row.generations:.1f} | {row.num_gates} |"
        )
    return lines


def write(path: pathlib.Path, found: list[Row]) -> None:
    """Replaces the table in a document."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    lines = "\n".join(table(found))
    path.write_text(f"{before}{BEGIN}\n{lines}\n{END}{after}", encoding="utf-8")
