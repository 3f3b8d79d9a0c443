"""The verb ``compare``: the ratios of two studies, or of two sides of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import click

from harness.cli import exit_codes
from harness.cli.shared_options import (
    DEFAULT_METRIC,
    RUNS_DIR,
    IsDifferentAllowed,
    Metric,
    RunsDir,
)
from harness.errors import MatchStudyError, StudyError
from harness.options.option import Option, Options
from harness.planning import study as study_module
from reports import judgement
from results.judging import benchmarks, gate_metrics
from results.judging import compare as compare_module
from results.records import benchmark_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from harness.cli.verb import Call
    from results.judging.benchmarks import BenchmarkRatios
    from results.judging.compare import RatioTable

_WRITE_COMPARISON: dict[str, Callable[[RatioTable | BenchmarkRatios], str]] = {
    "text": judgement.comparison_text,
    "json": judgement.comparison_json,
    "markdown": judgement.comparison_markdown,
}


class CompareRequest(Options):
    """What is compared."""

    first: Annotated[str, Option(is_argument=True, metavar="A")]
    second: Annotated[str, Option(is_argument=True, metavar="B")]
    study: Annotated[
        str | None,
        Option(
            metavar="STUDY",
            help="The study of which A and B are two sides: backends, or KEY=VALUE with"
            " the keys `backend`, `replicas`, `mode`, `revision`.",
            default="A and B are studies",
        ),
    ] = None
    metric: Metric = DEFAULT_METRIC
    is_different_allowed: IsDifferentAllowed = False
    form: Annotated[
        Literal["text", "json", "markdown"],
        Option(name="format", help="How the result is written to stdout."),
    ] = "text"
    runs_dir: RunsDir = RUNS_DIR


def run(request: CompareRequest, _: Call) -> int:
    """Prints the ratios of two studies, or of two sides of one.

    Raises:
      MatchStudyError: The studies are not comparable.
      ResultsError: A name is unknown, or nothing can be compared.
    """
    first, second = request.first, request.second
    study, runs_dir = request.study, request.runs_dir
    of = gate_metrics.metric_of(request.metric)
    is_allowed = request.is_different_allowed
    comparison: RatioTable | BenchmarkRatios
    if study is None and _are_benchmarks(first, second, runs_dir):
        if of is not gate_metrics.THROUGHPUT:  # the default
            raise StudyError(
                f"--metric {request.metric}: micro-benchmarks have"
                f" {benchmarks.TIME_PER_CALL.name} only; leave --metric out"
            )
        comparison = benchmarks.ratios(
            *(
                benchmark_record.read(study_module.find_study(name, runs_dir))
                for name in (first, second)
            )
        )
        check_comparable(first, second, comparison.differences, is_allowed)
    elif study is None:
        comparison = compare_module.of_studies(
            study_module.load(first, runs_dir), study_module.load(second, runs_dir), of
        )
        check_comparable(first, second, comparison.differences, is_allowed)
    else:
        comparison = compare_module.within(
            study_module.load(study, runs_dir), first, second, of
        )
    click.echo(_WRITE_COMPARISON[request.form](comparison))
    return exit_codes.INCONCLUSIVE if comparison.differences else exit_codes.OK


def _are_benchmarks(first: str, second: str, runs_dir: Path) -> bool:
    """Returns whether both are micro-benchmarks.

    Raises:
      StudyError: One is, and the other is a study.
    """
    holds = [
        benchmark_record.holds_benchmarks(study_module.find_study(name, runs_dir))
        for name in (first, second)
    ]
    if any(holds) and not all(holds):
        raise StudyError(
            f"of {first!r} and {second!r}, only one holds imported micro-benchmarks;"
            " compare two imports, or two studies"
        )
    return all(holds)


def check_comparable(
    first: str, second: str, differences: Sequence[str], is_different_allowed: bool
) -> None:
    """Refuses studies that are not comparable, unless they are to be shown anyway.

    Raises:
      MatchStudyError: Names what differs.
    """
    if differences and not is_different_allowed:
        raise MatchStudyError(
            f"{first!r} and {second!r} are not comparable: {'; '.join(differences)};"
            " measure both on one machine with the same options, or use"
            " --allow-different to see them anyway"
        )
