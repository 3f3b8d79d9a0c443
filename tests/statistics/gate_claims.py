"""What a gate claims, what was simulated, and how often it erred: a table.

``run_simulations.py`` prints the rows, and writes them into the documentation with
``--write``. A sentence of a verdict that has no row here is not printed by a gate.
"""

from __future__ import annotations

import dataclasses
import math

import noise_models
from noise_models import Change

from results.statistics import group_sequential
from results.statistics.group_sequential import PASSED, REGRESSED

NUM_CASES = 6
_LOOKS = group_sequential.planned_looks(0.05)
DESIGN = group_sequential.Design(looks=_LOOKS, most=_LOOKS[-1], delta=0.05, alpha=0.05)
BEGIN, END = "<!-- claims of gates -->", "<!-- end of claims -->"
STANDARD_ERRORS, CERTAIN_ERRORS = 2, 3
"""Of the simulation. Of a hundred cells some are two of them away by chance."""
EQUAL = Change()
SLOWER = Change(every_step=math.log(1.05))
FIFTIETH = Change(every_50th=10.0, num_cases=None)
IN_FIVE = Change(process_in_five=math.log(1.5), num_cases=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence that a gate prints, and what it is worth."""

    sentence: str  # What is claimed.
    head: str  # The same in the head of a column.
    change: Change  # The truth.
    verdict: int  # Whose share is counted.
    # The share must be at least this; None for no such claim.
    least: float | None = None
    most: float | None = None  # The share must be at most this; None for no such claim.
    # Models on which the claim is not made; the document says so.
    exempt: tuple[str, ...] = ()


NOISY = ("one spoilt generation in ten",)
CLAIMS = (
    Claim(
        sentence="PASS: equal programs pass (6 cases, spread 0.03)",
        head="equal: pass",
        change=EQUAL,
        verdict=PASSED,
        least=0.92,
        exempt=(*NOISY, noise_models.UNEQUAL),
    ),
    Claim(
        sentence="REGRESS is false in at most 5 % of gates",
        head="equal: regress",
        change=EQUAL,
        verdict=REGRESSED,
        most=0.05,
    ),
    Claim(
        sentence="PASS: one case of six that is 5 % slower passes in at most 5 %",
        head="one case +5 %: pass",
        change=SLOWER,
        verdict=PASSED,
        most=0.05,
        exempt=(noise_models.UNEQUAL,),
    ),
    Claim(
        sentence="REGRESS: one case of six that is 5 % slower",
        head="one case +5 %: regress",
        change=SLOWER,
        verdict=REGRESSED,
        least=0.95,
        exempt=(*NOISY, noise_models.UNEQUAL, "one slow process in five"),
    ),
    Claim(
        sentence="REGRESS, sustained: every 50th step takes 11 times as long (+20 %)",
        head="every 50th step 11 times as long (+20 %): regress",
        change=FIFTIETH,
        verdict=REGRESSED,
        least=0.95,
    ),
    Claim(
        sentence="REGRESS, single processes: one in five takes 50 % longer (+10 %)",
        head="one process in five 50 % longer (+10 %): regress",
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

    def misses(self, standard_errors):
        bounds = (self.claim.least, self.claim.most)
        for bound, sign in zip(bounds, (1, -1), strict=True):
            if bound is not None:
                error = math.sqrt(bound * (1 - bound) / self.num_gates)
                if sign * (bound - self.share) > standard_errors * error:
                    return True
        return False

    @property
    def is_missed(self):
        return self.misses(STANDARD_ERRORS)

    @property
    def is_broken(self):
        return self.misses(CERTAIN_ERRORS) and self.model not in self.claim.exempt


def rows(num_gates, seed):
    for model in noise_models.MODELS:
        found = {}
        for claim in CLAIMS:
            if claim.change not in found:
                found[claim.change] = _outcomes(model, claim.change, num_gates, seed)
            of = found[claim.change]
            yield Row(
                claim=claim,
                model=model,
                share=float((of.verdicts == claim.verdict).mean()),
                generations=float(of.ends.mean()),
                num_gates=num_gates,
            )


def _outcomes(model, change, num_gates, seed):
    logs = noise_models.simulate(
        model,
        change,
        num_gates=num_gates,
        num_generations=DESIGN.most,
        num_cases=NUM_CASES,
        seed=seed,
    )
    of = {
        group_sequential.TURNS: logs.turns,
        group_sequential.SUSTAINED: logs.sustained,
        group_sequential.TAIL: logs.tail,
    }
    return group_sequential.outcomes(of, DESIGN)


def line(row):
    return (
        f"{row.model:<30} {row.claim.head:<50} {row.share:.3f}"
        f" {'MISSED' if row.is_missed else 'ok':<7} {row.generations:5.1f}"
    )


def table(found):
    """Returns a row per model, a column per claim, as Markdown; bold is missed."""
    targets = [
        f"{claim.head} ({f'at least {claim.least}' if claim.least else ''}"
        f"{f'at most {claim.most}' if claim.most else ''})"
        for claim in CLAIMS
    ]
    heads = ["simulated noise", *targets, "generations: equal", "one case +5 %"]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for model in dict.fromkeys(row.model for row in found):
        own = [row for row in found if row.model == model]
        cells = [
            f"**{row.share:.3f}**" if row.is_missed else f"{row.share:.3f}"
            for row in own
        ]
        equal, slower = (
            next(row.generations for row in own if row.claim.change == change)
            for change in (EQUAL, SLOWER)
        )
        cells += [f"{equal:.1f}", f"{slower:.1f}"]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return lines


def write(path, found):
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    lines = "\n".join(table(found))
    path.write_text(f"{before}{BEGIN}\n{lines}\n{END}{after}", encoding="utf-8")
