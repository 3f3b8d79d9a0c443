"""What is true of a change, and how often gates say otherwise: shares, and a table.

A truth draws log slowdowns over gates, generations and cases, whose mean holds in the
long run. Some are dependent: a generation tells what the next will be.
"""

import functools
import json
import math

import numpy as np
from scipy import signal

from results.judging import paired_gate
from results.statistics import group_sequential
from results.statistics.group_sequential import PASSED, REGRESSED, TURNS, Design

SPREAD = 0.03
ALPHA = DELTA = 0.05
CASES = (1, 3, 6)
SLOWER = (0.05, 0.06, 0.08)
EFFECTS = (0.0, 0.01, 0.03, *SLOWER)
BEGIN, END = "<!-- truths of gates -->", "<!-- end of truths -->"
MOST = {True: {"pass": 0.08, "regress": 0.10}, False: {"pass": 0.05, "regress": 0.05}}
"""By whether generations depend on each other: what may pass, and regress."""


def _normal(generator, shape):
    return generator.standard_normal(shape)


def _tails(generator, shape):
    return generator.standard_t(3, shape) / math.sqrt(3)


def _skewed(generator, shape):
    return generator.exponential(1, shape) - 1


def _dependent(generator, shape):
    drawn = generator.standard_normal(shape) * 0.8
    drawn[:, 0] /= 0.8
    return np.asarray(signal.lfilter([1.0], [1.0, -0.6], drawn, axis=1))


def _noisy(draw):
    return lambda generator, shape, mean: mean + SPREAD * draw(generator, shape)


def _shared(draw):
    """Two thirds of the variance are of all cases of a generation."""

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
    """The half of all generations; a state lasts for three on average."""
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
    "slow in one generation of five": _slow(_fifth, share=0.2),
    "slow in one process of five": _slow(_fifth_of_processes, share=0.2),
    "slow in half of the generations": _slow(_half, share=0.5),
    "slow in a state of the machine that lasts": _slow(_state, share=0.5),
    "AR(1), 0.6": _noisy(_dependent),
    "AR(1), 0.6, that cases share": _shared(_dependent),
}
DEPENDENT = frozenset(list(TRUTHS)[-3:])


@functools.cache
def shares(name, effect, num_cases, *, num_gates, seed, number=None):
    looks = group_sequential.planned_looks(ALPHA) if number is None else (number,)
    generator = np.random.default_rng([seed, num_cases, list(TRUTHS).index(name)])
    shape = num_gates, looks[-1], num_cases
    logs = TRUTHS[name](generator, shape, math.log1p(effect))
    design = Design(looks=looks, most=looks[-1], delta=DELTA, alpha=ALPHA)
    found = group_sequential.outcomes({TURNS: logs}, design).verdicts
    return float((found == PASSED).mean()), float((found == REGRESSED).mean())


def worst(num_gates, seed):
    """Yields what a page prints: the worst rates of each configuration."""
    of = functools.partial(shares, num_gates=num_gates, seed=seed)
    for number in (None, *paired_gate.NUMBERS):
        for num_cases in CASES:
            row = {"generations": number, "cases": num_cases}
            for is_dependent in (False, True):
                names = [name for name in TRUTHS if (name in DEPENDENT) == is_dependent]
                passes = {
                    name: max(of(name, e, num_cases, number=number)[0] for e in SLOWER)
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
                    yield f"{row['cases']} cases, {row['generations']}: {truth}: {rate}"


def table(num_gates, seed):
    """Returns a row per truth as Markdown; cells are of 1, 3 and 6 cases."""
    of = functools.partial(shares, num_gates=num_gates, seed=seed)
    columns = [("equal: regress", 0.0, 1), ("equal: pass", 0.0, 0)]
    columns += [(f"{e:+.0%}: pass", e, 0) for e in EFFECTS[1:]]
    columns += [("+5 %: regress", 0.05, 1), ("+8 %: regress", 0.08, 1)]
    lines = [
        f"| {' | '.join(('truth', *(head for head, *_ in columns)))} |",
        f"|{' --- |' * (len(columns) + 1)}",
    ]
    for name in TRUTHS:
        cells = [
            " / ".join(f"{of(name, effect, n)[which]:.3f}" for n in CASES)
            for _, effect, which in columns
        ]
        mark = " (dependent)" * (name in DEPENDENT)
        lines.append(f"| {name}{mark} | {' | '.join(cells)} |")
    return lines


def write(document, lines, rows):
    """Replaces the table in a document, and the rates that pages print."""
    text = document.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    joined = "\n".join(lines)
    document.write_text(f"{before}{BEGIN}\n{joined}\n{END}{after}", encoding="utf-8")
    listed = ",\n".join(json.dumps(row) for row in rows)
    paired_gate.PATH.write_text(f"[\n{listed}\n]\n", encoding="utf-8")
