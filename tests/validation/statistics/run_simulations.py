"""Simulates sweeps of every design and gates, thousands each: ``make statistics``.

Prints what the intervals of each design are worth. Exits with 1 if one of the designs
that the harness uses is not worth what the documents claim.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import busy_claims
import designs
import gate_claims
import noise_models
import page_claims

LEAST_COVERAGE, MOST_COVERAGE = 0.93, 0.97
WIDEST_MEDIAN = 0.06

# What the harness does, and therefore has to be right.
USED = (
    lambda n, seed: designs.fixed(n, seed, num_repetitions=5),
    lambda n, seed: designs.sequential(n, seed, target=0.06),
    lambda n, seed: designs.sequential(n, seed, target=0.03),
)
# What it does not do, and why.
OTHERS = (
    lambda n, seed: designs.one_repetition(n, seed, is_truth_of_processes=False),
    lambda n, seed: designs.one_repetition(n, seed, is_truth_of_processes=True),
    lambda n, seed: designs.fixed(n, seed, num_repetitions=3),
    lambda n, seed: designs.fixed(n, seed, num_repetitions=4),
)
PAGE_HEADS = (
    *("a reader sees", "the claim", "simulated"),
    *("lowest share", "highest share", "n"),
)


def write(line):
    """Prints a line at once: a run takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def write_table(rows):
    """Prints the rows of a table."""
    for row in rows:
        write(" | ".join(row))


def run_designs(num_sweeps, seed):
    """Prints the table of designs; yields the claims that do not hold."""
    write(f"{num_sweeps} simulated sweeps of six cases; half widths are logarithms\n")
    write(
        f"{'design':<46} {'median':>6} {'mean':>6} {'coverage':>9} {'of 95 %':>14} "
        f"{'median half':>8}\n{'':<46} {'sec':>6} {'gens':>6} {'':>24} {'width':>8}"
    )
    for design in (*OTHERS, *USED):
        found = design(num_sweeps, seed)
        write(found.line)
        is_covered = LEAST_COVERAGE <= found.share <= MOST_COVERAGE
        is_right = is_covered and found.median_half_width <= WIDEST_MEDIAN
        if design in USED and not is_right:
            yield found.line


def run_truths(num_gates, seed, folder):
    """Prints how often gates err, by what is true; returns what errs too often."""
    write(f"\n{num_gates} simulated gates of each truth, of 1, 3 and 6 cases\n")
    table = gate_claims.truths_table(num_gates, seed)
    write_table(table)
    rows = list(gate_claims.worst(num_gates, seed))
    if folder is not None:
        page_claims.write(folder / "gates-by-truth.csv", table)
        gate_claims.write_rates(rows)
    return list(gate_claims.broken(rows, num_gates))


def run_claims(num_gates, seed, folder):
    """Prints what each sentence of a gate is worth; yields those that are broken."""
    write(f"\n{num_gates} simulated gates of {gate_claims.NUM_CASES} cases each\n")
    found = [
        gate_claims.rows_of_model(model, num_gates, seed)
        for model in noise_models.MODELS
    ]
    table = gate_claims.claims_table(found)
    write_table(table)
    if folder is not None:
        page_claims.write(folder / "gates-by-noise.csv", table)
    for row in (row for of_model in found for row in of_model):
        if row.is_broken:
            yield f"{row.claim.sentence}: {row.share:.3f} on noise {row.model!r}"


def run_pages(num, seed, folder):
    """Prints what sentences of pages are worth; yields those that are broken."""
    write(f"\n{num} simulated studies\n")
    found = []
    for module in (page_claims, busy_claims):
        for row in module.rows(num, seed):
            found.append(row)
            write_table([row.cells])
    if folder is not None:
        table = [PAGE_HEADS, *(row.cells for row in found)]
        page_claims.write(folder / "pages.csv", table)
    for row in found:
        if row.misses():
            yield f"{row.name}: {row.claimed}: {row.shares}"


def main():
    """Runs everything, and lists what does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--write", type=Path, help="folder whose tables of claims are written anew"
    )
    given = parser.parse_args()
    broken = [
        *run_designs(given.sweeps, given.seed),
        *run_truths(given.sweeps // 2, given.seed, given.write),
        *run_claims(given.sweeps // 4, given.seed, given.write),
        *run_pages(given.sweeps // 4, given.seed, given.write),
    ]
    write("\n".join(("", *(f"FAILED: {claim}" for claim in broken))))
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
