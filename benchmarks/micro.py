"""Micro-benchmarks: measures them in fresh processes, and judges two measurements.

    python -m benchmarks.micro run -o NEW.json [--generations 4] [NAME ...]
    python -m benchmarks.micro compare NEW.json OLD.json [--delta 5%] [--format text]

``tests/benchmarks/micro`` has them, in the form of pytest-benchmark. Repeats within a
process depend on each other, so every file runs in several fresh processes, which are
the generations of the rule of ``gate`` (``results/statistics/group_sequential.py``).
The exit codes are those of ``gate`` as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import runner

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = runner.ROOT / "tests" / "benchmarks" / "micro"
PREFIX = "bench_"
NUM_GENERATIONS = 4
MOST_SEC_OF_A_BENCHMARK = 0.5
OF_ONE_CORE = frozenset({"store"})
"""These have no replicas."""


def names() -> list[str]:
    """The files, without what all of their names have."""
    return sorted(path.stem.removeprefix(PREFIX) for path in FOLDER.glob("bench_*.py"))


def measure(name: str) -> dict[str, Any]:
    """What pytest-benchmark says of one file; to be called in a fresh process."""
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        code = pytest.main(
            [
                "-q",
                str(FOLDER / f"{PREFIX}{name}.py"),
                "--benchmark-enable",
                "--benchmark-disable-gc",
                f"--benchmark-max-time={MOST_SEC_OF_A_BENCHMARK}",
                "--benchmark-quiet",
                f"--benchmark-json={result}",
            ]
        )
        if code:
            raise runner.BenchmarkError(f"pytest ended with exit code {int(code)}")
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def merge(generations: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Returns one document of pytest-benchmark for several generations.

    Each benchmark has its generation in ``extra_info``. The name of the machine is left
    out.
    """
    from benchmarks.micro_judging import GENERATION

    first = generations[0][0]
    return {
        **first,
        "machine_info": {**first["machine_info"], "node": ""},
        "benchmarks": [
            {**of, "extra_info": {**of["extra_info"], GENERATION: number}}
            for number, documents in enumerate(generations)
            for document in documents
            for of in document["benchmarks"]
        ],
    }


def run(chosen: Sequence[str], output: Path, num_generations: int) -> int:
    """Measures files and writes one JSON file; returns the exit code."""
    generations = []
    for number in range(num_generations):
        # Forward and backward in turn: a drift of the machine affects all of them.
        ordered = list(chosen)[:: -1 if number % 2 else 1]
        documents = []
        for name in ordered:
            cores = runner.CORES[:1] if name in OF_ONE_CORE else runner.CORES
            documents.append(
                runner.measure(measure, arguments={"name": name}, cores=cores)
            )
            print(f"run {number} {name}", file=sys.stderr, flush=True)
        generations.append(documents)
    text = json.dumps(merge(generations), indent=1)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(f"{text}\n", encoding="utf-8")
    print(output)
    return 0


def compare(change: Path, baseline: Path, *, delta: str, alpha: str, form: str) -> int:
    """Prints the verdict on a change and returns the exit code of ``gate``."""
    from benchmarks import micro_judging
    from harness.options.kinds import parse_percentage
    from reports.words import judgement

    new, old = micro_judging.read(change), micro_judging.read(baseline)
    found = micro_judging.judged(
        new,
        old,
        name=str(baseline),
        delta=parse_percentage(delta, what="--delta"),
        alpha=parse_percentage(alpha, what="--alpha"),
    )
    write = {
        "text": judgement.gate_text,
        "markdown": judgement.gate_markdown,
        "junit": judgement.gate_junit,
        "github": judgement.gate_github,
        "json": judgement.gate_json,
    }[form]
    print(write(found))
    for name in new.names:
        if name not in old.names:
            print(f"new, not judged: {name}", file=sys.stderr)
    return found.exit_code


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.micro",
        description="Measures micro-benchmarks, or judges two measurements.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run", help="measure, and write JSON")
    running.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    running.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    running.add_argument(
        "--generations",
        type=runner.positive,
        default=NUM_GENERATIONS,
        metavar="N",
        help="fresh processes of each file; a verdict needs two (default: %(default)s)",
    )
    judging = verbs.add_parser("compare", help="judge NEW against OLD")
    judging.add_argument("change", type=Path, metavar="NEW")
    judging.add_argument("baseline", type=Path, metavar="OLD")
    judging.add_argument("--delta", default="5%", metavar="PERCENT")
    judging.add_argument("--alpha", default="5%", metavar="PERCENT")
    judging.add_argument(
        "--format",
        dest="form",
        choices=["text", "junit", "github", "markdown", "json"],
        default="text",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; bad input is one line and exit code 2."""
    from harness.cli import exit_codes
    from harness.cli.arguments import one_line
    from harness.errors import HarnessError
    from results.errors import ResultsError

    parser = make_parser()
    given = parser.parse_args(arguments)
    if given.verb == "run":
        unknown = [name for name in given.names if name not in names()]
        if unknown:
            parser.error(
                f"unknown micro-benchmark {unknown[0]!r}; known are"
                f" {', '.join(names())}"
            )
        return run(given.names or names(), given.output, given.generations)
    try:
        return compare(
            given.change,
            given.baseline,
            delta=given.delta,
            alpha=given.alpha,
            form=given.form,
        )
    except (HarnessError, ResultsError) as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        return exit_codes.USAGE


if __name__ == "__main__":
    sys.exit(main())
