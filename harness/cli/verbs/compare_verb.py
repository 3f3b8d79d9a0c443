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
from harness.errors import DifferentStudyError
from harness.options.option import Option, Options
from harness.planning import study as study_module
from reports.words import ratio_table
from results.judging import compare as compare_module
from results.judging import gate_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.cli.verb import Call
    from results.judging.compare import RatioTable

_WRITE_COMPARISON: dict[str, Callable[[RatioTable], str]] = {
    "text": ratio_table.comparison_text,
    "json": ratio_table.comparison_json,
    "markdown": ratio_table.comparison_markdown,
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
      DifferentStudyError: The studies are not comparable.
      ResultsError: A name is unknown, or nothing can be compared.
    """
    first, second = request.first, request.second
    study, runs_dir = request.study, request.runs_dir
    of = gate_metrics.metric_of(request.metric)
    is_allowed = request.is_different_allowed
    if study is None:
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


def check_comparable(
    first: str, second: str, differences: Sequence[str], is_different_allowed: bool
) -> None:
    """Refuses studies that are not comparable, unless they are to be shown anyway.

    Raises:
      DifferentStudyError: Names what differs.
    """
    if differences and not is_different_allowed:
        raise DifferentStudyError(
            f"{first!r} and {second!r} are not comparable: {'; '.join(differences)};"
            " measure both on one machine with the same options, or use"
            " --allow-different to see them anyway"
        )
