"""Micro-benchmarks: measures them in fresh processes, and judges two measurements.

    python -m benchmarks.micro run -o NEW.json [--repetitions 4] [NAME ...]
    python -m benchmarks.micro compare NEW.json OLD.json [--delta 5%] [--format text]

``tests/benchmarks/micro`` has them, in the form of pytest-benchmark. Repeats within a
process share its memory layout and caches, so every file runs in several fresh
processes, which are the runs of the rule of ``gate``, and never the rounds. Two files
were measured at different times, so they are compared as two studies are
(``results/statistics/group_sequential.py``). The exit codes are those of ``gate``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import pydantic
from pydantic import AliasChoices, AliasPath, Field

from benchmarks import runner
from harness import ExitCode, HarnessError
from harness.cli.subcommand import one_line
from harness.options.kinds import parse_percentage
from results import errors
from results.judging.gate import Gate
from results.judging.gate_metrics import JudgedCase, Metric
from results.records.record_base import Line, Seconds
from results.statistics import estimates, group_sequential
from results.store.study_store import first_complaint

FOLDER: Final = runner.ROOT / "tests" / "benchmarks" / "micro"
PREFIX: Final = "bench_"
NUM_REPETITIONS: Final = 4
MOST_SEC_OF_A_BENCHMARK = 0.5
OF_ONE_CORE: Final = frozenset({"store"})
"""These have no replicas."""
REPETITION: Final = "repetition"
"""In ``extra_info``: the process, where one file holds several."""
TIME_PER_CALL: Final = Metric(name="time_per_call", is_cost=True, worse="slower")

_Fact = Annotated[str | int | None, Field(default=None)]


def names() -> list[str]:
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
        measured: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return measured


def run(chosen: Sequence[str], output: Path, num_repetitions: int) -> None:
    """Measures files; writes one document, in which benchmarks have their process."""
    benchmarks = []
    for number in range(num_repetitions):
        # Forward and backward in turn: a drift of the machine affects all of them.
        for name in list(chosen)[:: -1 if number % 2 else 1]:
            cores = runner.CORES[:1] if name in OF_ONE_CORE else runner.CORES
            document = runner.measure(measure, cores=cores, name=name)
            print(f"run {number} {name}", file=sys.stderr, flush=True)
            for benchmark in document["benchmarks"]:
                benchmark["extra_info"][REPETITION] = number
                benchmarks.append(benchmark)
    document["machine_info"]["node"] = ""  # the name of the machine
    text = json.dumps({**document, "benchmarks": benchmarks}, indent=1)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(f"{text}\n", encoding="utf-8")
    print(output)


class Machine(pydantic.BaseModel):
    """What must match before two figures are compared; not the machine's name."""

    cpu_model: _Fact = Field(
        default=None,
        validation_alias=AliasChoices(AliasPath("cpu", "brand_raw"), "processor"),
    )
    num_logical_cores: _Fact = Field(
        default=None, validation_alias=AliasPath("cpu", "count")
    )
    system: _Fact
    kernel: _Fact = Field(default=None, validation_alias="release")
    architecture: _Fact = Field(default=None, validation_alias="machine")
    python_version: _Fact


class Benchmark(pydantic.BaseModel):
    name: Line = Field(validation_alias="fullname")
    repetition: int = Field(
        default=0, validation_alias=AliasPath("extra_info", REPETITION)
    )
    median_sec: Seconds = Field(validation_alias=AliasPath("stats", "median"))


class Measured(pydantic.BaseModel):
    machine: Machine = Field(validation_alias="machine_info")
    benchmarks: tuple[Benchmark, ...] = Field(min_length=1)

    @property
    def logs(self) -> dict[str, list[float]]:
        """By benchmark, ln(median seconds of a call) in each process."""
        logs_of: dict[str, list[float]] = {}
        for benchmark in self.benchmarks:
            logs_of.setdefault(benchmark.name, []).append(
                math.log(benchmark.median_sec)
            )
        return logs_of


def read(path: Path) -> Measured:
    """Reads a file that ``pytest --benchmark-json`` or ``make bench-micro`` wrote."""
    try:
        measured = Measured.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except pydantic.ValidationError as error:
        why = first_complaint(error)
    except (OSError, RecursionError, ValueError) as error:
        why = str(error)
    else:
        processes = {
            (benchmark.name, benchmark.repetition) for benchmark in measured.benchmarks
        }
        if len(processes) == len(measured.benchmarks):
            return measured
        why = "it has a benchmark twice in one process"
    raise errors.ResultsError(
        f"{str(path)!r} has no benchmarks that can be judged: {why}; give a file that"
        " 'make bench-micro' or 'pytest --benchmark-json FILE' wrote"
    )


def judged(
    change: Measured, baseline: Measured, *, name: str, delta: float, alpha: float
) -> Gate:
    """Judges the benchmarks that both files have; one that is gone counts as failed."""
    new, old = change.logs, baseline.logs
    shared = [each for each in new if each in old]
    if not shared:
        raise errors.ResultsError(
            "the two files have no micro-benchmark in common; the first has"
            f" {', '.join([*new][:3])}, the second {', '.join([*old][:3])}"
        )
    gone = [each for each in old if each not in new]
    here, there = change.machine.model_dump(), baseline.machine.model_dump()
    return Gate(
        metric=TIME_PER_CALL,
        baseline=name,
        delta=delta,
        alpha=alpha,
        cases=tuple(
            _judged(each, new[each], old[each], delta, alpha) for each in shared
        ),
        is_weaker=True,
        differences=tuple(
            f"{fact}: {value!r} and {there[fact]!r}"
            for fact, value in here.items()
            if value != there[fact]
        ),
        failures=tuple(f"{each} is in the baseline only" for each in gone),
        num_ok=len(shared),
    )


def _judged(
    name: str, here: list[float], there: list[float], delta: float, alpha: float
) -> JudgedCase:
    fewest = min(len(here), len(there))
    if fewest < group_sequential.FEWEST_REPETITIONS:
        reason = (
            f"{fewest} run(s), a verdict needs"
            f" {group_sequential.FEWEST_REPETITIONS} or more:"
            f" processes differ, and one says nothing about by how much"
        )
        return JudgedCase(name=name, judgement=None, reason=reason)
    mean = estimates.two_groups(here, there)
    judgement = group_sequential.judge_mean(mean, delta=delta, alpha=alpha)
    return JudgedCase(name=name, judgement=judgement)


def compare(change: Path, baseline: Path, delta: str, alpha: str, form: str) -> int:
    """Prints the verdict on a change and returns the exit code of ``gate``."""
    from reports.words import judgement

    new, old = read(change), read(baseline)
    gate = judged(
        new,
        old,
        name=str(baseline),
        delta=parse_percentage(delta, what="--delta"),
        alpha=parse_percentage(alpha, what="--alpha"),
    )
    print(judgement.GATE_FORMATS[form](judgement.gate_record(gate)))
    for name in new.logs:
        if name not in old.logs:
            print(f"new, not judged: {name}", file=sys.stderr)
    return gate.exit_code


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.micro",
        description="Measures micro-benchmarks, or judges two measurements.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run", help="measure, and write JSON")
    running.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    running.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    running.add_argument(
        "--repetitions",
        type=runner.positive,
        default=NUM_REPETITIONS,
        metavar="N",
        help="fresh processes of each file; a verdict needs two (default: %(default)s)",
    )
    judging = verbs.add_parser("compare", help="judge NEW against OLD")
    judging.add_argument("change", type=Path, metavar="NEW")
    judging.add_argument("baseline", type=Path, metavar="OLD")
    judging.add_argument("--delta", default="5%", metavar="PERCENT")
    judging.add_argument("--alpha", default="5%", metavar="PERCENT")
    forms = ["text", "junit", "github", "markdown", "json"]
    judging.add_argument("--format", dest="form", choices=forms, default="text")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser()
    given = vars(parser.parse_args(arguments))
    if given.pop("verb") == "run":
        unknown = [name for name in given["names"] if name not in names()]
        if unknown:
            parser.error(
                f"unknown micro-benchmark {unknown[0]!r}; known are"
                f" {', '.join(names())}"
            )
        run(given["names"] or names(), given["output"], given["repetitions"])
        return ExitCode.OK
    try:
        return compare(**given)
    except (HarnessError, errors.ResultsError) as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        return ExitCode.USAGE


if __name__ == "__main__":
    sys.exit(main())
