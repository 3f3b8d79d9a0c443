"""What a gate claims, and how often it erred: by kind of noise, and by what is true.

``run_simulations.py`` writes both tables. A sentence of a verdict that has no claim
here is not printed by a gate. A truth draws log slowdowns over gates, repetitions and
cases, whose mean holds in the long run. Some are dependent: a repetition tells what the
next will be.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path

import noise_models
import numpy as np
import page_claims
from noise_models import SPREAD, Change

from results import statistics
from results.statistics import BLOCKS, PASSED, REGRESSED, SUSTAINED, TAIL, Design

ALPHA = DELTA = 0.05
NUM_CASES = 6
_LOOKS = statistics.planned_looks(ALPHA)
DESIGN = Design(looks=_LOOKS, most=_LOOKS[-1], delta=DELTA, alpha=ALPHA)
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


NOISY = ("one contaminated run in ten",)
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
    repetitions: float
    num_gates: int

    def misses(self, standard_errors=page_claims.STANDARD_ERRORS):
        """Whether the share is beyond what is claimed."""
        bounds = self.claim.least, self.claim.most
        return page_claims.misses(self.share, *bounds, self.num_gates, standard_errors)

    @property
    def is_broken(self):
        """Whether it is, for certain, where the claim is made."""
        return (
            self.misses(page_claims.CERTAIN_ERRORS)
            and self.model not in self.claim.exempt
        )


def row(claim, model, num_gates, seed):
    """Simulates gates of one claim on one model of noise."""
    found = _outcomes(model, claim.change, num_gates, seed)
    return Row(
        claim=claim,
        model=model,
        share=float((found.verdicts == claim.verdict).mean()),
        repetitions=float(found.ends.mean()),
        num_gates=num_gates,
    )


@functools.lru_cache(maxsize=8)
def _outcomes(model, change, num_gates, seed):
    logs = noise_models.simulate(
        model,
        change,
        num_gates=num_gates,
        num_repetitions=DESIGN.most,
        num_cases=NUM_CASES,
        seed=seed,
    )
    of = {BLOCKS: logs.blocks, SUSTAINED: logs.sustained, TAIL: logs.tail}
    return statistics.outcomes(of, DESIGN)


def rows_of_model(model, num_gates, seed):
    """Every claim on one model of noise."""
    return [row(claim, model, num_gates, seed) for claim in CLAIMS]


def claims_table(found):
    """Returns the heads, and a row per model with a column per claim."""
    targets = [
        f"{claim.head} ({f'at least {claim.least}' if claim.least else ''}"
        f"{f'at most {claim.most}' if claim.most else ''})"
        for claim in CLAIMS
    ]
    rows = [["simulated noise", *targets, "runs, equal", "runs, one case +5 %"]]
    for of_model in found:
        by_change = {row.claim.change: row.repetitions for row in of_model}
        repetitions = [f"{by_change[change]:.1f}" for change in (EQUAL, SLOWER)]
        found_shares = [f"{row.share:.3f}" for row in of_model]
        rows.append([of_model[0].model, *found_shares, *repetitions])
    return rows


CASES = (1, 3, 6)
NUMBERS = (3, 4, 5, 6, 8, 10, 15, 20, 40)
"""Repetitions of gates with one look."""
RATES = Path(__file__).parents[3] / "results" / "judging" / "error_rates.json"
"""What the headline of a gate says of how often it errs."""
TOO_SLOW = (0.05, 0.06, 0.08)
EFFECTS = (0.0, 0.01, 0.03, *TOO_SLOW)
MOST = {True: {"pass": 0.08, "regress": 0.10}, False: {"pass": 0.05, "regress": 0.05}}
"""By whether repetitions depend on each other: what may pass, and regress."""


def _normal(generator, shape):
    return generator.standard_normal(shape)


def _tails(generator, shape):
    return generator.standard_t(3, shape) / math.sqrt(3)


def _skewed(generator, shape):
    return generator.exponential(1, shape) - 1


def _dependent(generator, shape):
    from scipy import signal

    drawn = generator.standard_normal(shape) * 0.8
    drawn[:, 0] /= 0.8
    return np.asarray(signal.lfilter([1.0], [1.0, -0.6], drawn, axis=1))


def _noisy(draw):
    return lambda generator, shape, mean: mean + SPREAD * draw(generator, shape)


def _shared(draw):
    """Two thirds of the variance are of all cases of a repetition."""

    def drawn(generator, shape):
        of_all = draw(generator, (*shape[:2], 1))
        return math.sqrt(2 / 3) * of_all + math.sqrt(1 / 3) * _normal(generator, shape)

    return _noisy(drawn)


def _unequal(generator, shape):
    return _normal(generator, shape) * np.resize((1.7, 0.5, 0.7, 1, 1.2, 0.9), shape[2])


def _one_sided(draw):
    """Of the change alone; equal programs have it on both sides."""

    def drawn(generator, shape, mean):
        own = draw(generator, shape)
        if not mean:
            own = (own - draw(generator, shape)) / math.sqrt(2)
        return mean + SPREAD * own

    return drawn


def _slow(draw, *, share):
    """Slow in a share of what is drawn; equal programs are as often on either side."""

    def drawn(generator, shape, mean):
        own = draw(generator, shape)
        found = mean / share * own
        if not mean:
            found = math.log(1.5) * (own - draw(generator, shape))
        return found + SPREAD * _normal(generator, shape)

    return drawn


def _fifth(generator, shape):
    return (generator.random((*shape[:2], 1)) < 0.2) * 1.0


def _fifth_of_processes(generator, shape):
    return (generator.random(shape) < 0.2) * 1.0


def _state(generator, shape):
    """The half of all repetitions; a state lasts for three on average."""
    changes = generator.random((*shape[:2], 1)) < 1 / 3
    changes[:, 0] = generator.random((shape[0], 1)) < 0.5
    return changes.cumsum(axis=1) % 2.0


def _half(generator, shape):
    return (generator.random((*shape[:2], 1)) < 0.5) * 1.0


TRUTHS = {
    "normal noise": _noisy(_normal),
    "noise that cases share": _shared(_normal),
    "cases of unlike spread": _noisy(_unequal),
    "heavy tails (Student, 3 degrees)": _noisy(_tails),
    "heavy tails that cases share": _shared(_tails),
    "one-sided skew (exponential)": _one_sided(_skewed),
    "one-sided skew that cases share": _one_sided(
        lambda generator, shape: _skewed(generator, (*shape[:2], 1)) + np.zeros(shape)
    ),
    "slow in one run of five": _slow(_fifth, share=0.2),
    "slow in one process of five": _slow(_fifth_of_processes, share=0.2),
    "slow in half of the runs": _slow(_half, share=0.5),
    "slow in a state of the machine that lasts": _slow(_state, share=0.5),
    "AR(1), 0.6": _noisy(_dependent),
    "AR(1), 0.6, that cases share": _shared(_dependent),
}
DEPENDENT = frozenset(list(TRUTHS)[-3:])


@functools.cache
def shares(name, effect, num_cases, *, num_gates, seed, number=None):
    looks = statistics.planned_looks(ALPHA) if number is None else (number,)
    generator = np.random.default_rng([seed, num_cases, list(TRUTHS).index(name)])
    shape = num_gates, looks[-1], num_cases
    logs = TRUTHS[name](generator, shape, math.log1p(effect))
    design = Design(looks=looks, most=looks[-1], delta=DELTA, alpha=ALPHA)
    found = statistics.outcomes({BLOCKS: logs}, design).verdicts
    return float((found == PASSED).mean()), float((found == REGRESSED).mean())


def worst(num_gates, seed):
    """Yields what a page prints: the worst rates of each configuration."""
    of = functools.partial(shares, num_gates=num_gates, seed=seed)
    for number in (None, *NUMBERS):
        for num_cases in CASES:
            row = {"repetitions": number, "cases": num_cases}
            for is_dependent in (False, True):
                names = [name for name in TRUTHS if (name in DEPENDENT) == is_dependent]
                passes = {
                    name: max(
                        of(name, e, num_cases, number=number)[0] for e in TOO_SLOW
                    )
                    for name in names
                }
                regresses = {
                    name: of(name, 0.0, num_cases, number=number)[1] for name in names
                }
                row["dependent" if is_dependent else "independent"] = {
                    verdict: [round(max(found.values()), 3), max(found, key=found.get)]
                    for verdict, found in (("pass", passes), ("regress", regresses))
                }
            yield row


def broken(rows, num_gates):
    for row in rows:
        for kind in ("independent", "dependent"):
            for verdict, most in MOST[kind == "dependent"].items():
                rate, truth = row[kind][verdict]
                if rate > most + 3 * math.sqrt(most * (1 - most) / num_gates):
                    yield f"{row['cases']} cases, {row['repetitions']}: {truth}: {rate}"


def truths_table(num_gates, seed):
    """Returns the heads, and a row per truth and number of cases."""
    of = functools.partial(shares, num_gates=num_gates, seed=seed)
    columns = [("equal: regress", 0.0, 1), ("equal: pass", 0.0, 0)]
    columns += [(f"{e:+.0%}: pass", e, 0) for e in EFFECTS[1:]]
    columns += [("+5%: regress", 0.05, 1), ("+8%: regress", 0.08, 1)]
    rows = [
        [
            *(name, str(name in DEPENDENT), str(n)),
            *(f"{of(name, effect, n)[which]:.3f}" for _, effect, which in columns),
        ]
        for name in TRUTHS
        for n in CASES
    ]
    return [["truth", "is dependent", "cases", *(head for head, *_ in columns)], *rows]


def write_rates(rows):
    listed = ",\n".join(json.dumps(row) for row in rows)
    RATES.write_text(f"[\n{listed}\n]\n", encoding="utf-8")
