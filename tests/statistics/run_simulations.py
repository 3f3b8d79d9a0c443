"""Simulates sweeps of every design and gates, thousands each: ``make statistics``.

Prints what the intervals of each design are worth. Exits with 1 if one of the designs
that the harness uses is not worth what the documents claim.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support/studies"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "results/figures"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import busy_claims
import gate_claims
import gate_truths
import number_claims
import page_claims
import simulated_designs as designs

LEAST_COVERAGE, MOST_COVERAGE = 0.93, 0.97
WIDEST_MEDIAN = 0.06

# What the harness does, and therefore has to be right: the name, and how to run it.
USED = {
    "five generations": lambda n, seed: designs.fixed(n, seed, num_generations=5),
    "target 6 %": lambda n, seed: designs.sequential(n, seed, target=0.06),
    "target 3 %": lambda n, seed: designs.sequential(n, seed, target=0.03),
}
# What it does not do, and why.
OTHERS = (
    lambda n, seed: designs.fresh_processes(n, seed, num_repetitions=3, num_steps=16),
    lambda n, seed: designs.fresh_processes(n, seed, num_repetitions=4, num_steps=6),
    lambda n, seed: designs.one_generation(n, seed, is_truth_of_processes=False),
    lambda n, seed: designs.one_generation(n, seed, is_truth_of_processes=True),
    lambda n, seed: designs.fixed(n, seed, num_generations=3),
    lambda n, seed: designs.fixed(n, seed, num_generations=4),
    lambda n, seed: designs.fixed(n, seed, num_generations=6),
    lambda n, seed: designs.fixed(n, seed, num_generations=5, steps_per_turn=4),
)


def write(line):
    """Prints a line at once: a run takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def row(found):
    low, high = found.interval
    return (
        f"{found.design:<46} {found.median_sec:>6.0f} {found.mean_generations:>6.1f} "
        f"{found.share:>9.3f} [{low:.3f}, {high:.3f}] {found.median_half_width:>8.4f}"
    )


def claims_broken(name, found):
    """Yields what is claimed about a design and does not hold."""
    if not LEAST_COVERAGE <= found.share <= MOST_COVERAGE:
        yield (
            f"{name}: coverage {found.share:.3f} is outside {LEAST_COVERAGE} to "
            f"{MOST_COVERAGE}"
        )
    if found.median_half_width > WIDEST_MEDIAN:
        yield (
            f"{name}: median half width {found.median_half_width:.4f} is above "
            f"{WIDEST_MEDIAN}"
        )


def run_designs(num_sweeps, seed):
    """Prints the table of designs; returns the claims that do not hold."""
    write(
        f"{num_sweeps} simulated sweeps of six cases each; half widths are logarithms\n"
    )
    write(
        f"{'design':<46} {'median':>6} {'mean':>6} {'coverage':>9} {'of 95 %':>14} "
        f"{'median half':>8}\n{'':<46} {'sec':>6} {'gens':>6} {'':>24} {'width':>8}"
    )
    for design in OTHERS:
        write(row(design(num_sweeps, seed)))
    broken = []
    for name, design in USED.items():
        found = design(num_sweeps, seed)
        write(row(found))
        broken += claims_broken(name, found)
    return broken


def run_truths(num_gates, seed, document):
    """Prints how often gates err, by what is true; returns what errs too often."""
    write(f"\n{num_gates} simulated gates of each truth, of 1, 3 and 6 cases\n")
    lines = gate_truths.table(num_gates, seed)
    for line in lines:
        write(line)
    rows = list(gate_truths.worst(num_gates, seed))
    if document is not None:
        gate_truths.write(document, lines, rows)
    return list(gate_truths.broken(rows, num_gates))


def run_claims(num_gates, seed, document):
    """Prints what each sentence of a gate is worth; returns those that are broken."""
    write(f"\n{num_gates} simulated gates of {gate_claims.NUM_CASES} cases each\n")
    found = []
    for row in gate_claims.rows(num_gates, seed):
        found.append(row)
        write(gate_claims.line(row))
    if document is not None:
        gate_claims.write(document, found)
    return [
        f"{row.claim.sentence}: {row.share:.3f} on noise {row.model!r}"
        for row in found
        if row.is_broken
    ]


def run_pages(num, seed, document):
    """Prints what sentences of pages are worth; returns those that are broken."""
    write(f"\n{num} simulated studies\n")
    found = []
    for module in (page_claims, number_claims, busy_claims):
        for row in module.rows(num, seed):
            found.append(row)
            write(page_claims.table([row])[-1])
    if document is not None:
        page_claims.write(document, found)
    return [
        f"{row.name}: {row.claimed}: {row.shares}"
        for row in found
        if row.is_claimed and row.is_missed
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--write", type=Path, help="document whose table of claims is replaced"
    )
    parser.add_argument(
        "--only-claims",
        action="store_true",
        help="simulate the claims of gates and pages only",
    )
    arguments = parser.parse_args()
    broken = []
    if not arguments.only_claims:
        broken += run_designs(arguments.sweeps, arguments.seed)
    broken += run_truths(arguments.sweeps // 2, arguments.seed, arguments.write)
    broken += run_claims(arguments.sweeps // 4, arguments.seed, arguments.write)
    broken += run_pages(arguments.sweeps // 4, arguments.seed, arguments.write)
    write("")
    for claim in broken:
        write(f"FAILED: {claim}")
    if not broken and not arguments.only_claims:
        write(
            f"Coverage of what the harness uses is {LEAST_COVERAGE} to "
            f"{MOST_COVERAGE}, its median half width at most {WIDEST_MEDIAN}."
        )
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
