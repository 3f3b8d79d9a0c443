"""The verb ``history``: how a case's throughput changed from study to study."""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING, Annotated

import click

from harness.cli import exit_codes
from harness.cli.arguments import one_line
from harness.cli.shared_options import RUNS_DIR, IsJson, RunsDir, StudyArguments
from harness.cli.terminal import console
from harness.errors import StudyError
from harness.options.option import Option, Options
from harness.planning import study as study_module
from reports.words import formats, narrow
from results.errors import ResultsError
from results.figures.history import as_data, history
from results.statistics import change_points
from results.store import untrusted
from results.store.study_store import PLAN_NAME, Store
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.table import Table

    from harness.cli.verb import Call
    from results.figures.history import History, Observation, Series
    from results.study.cases import Study

_DATE_LENGTH = len("2026-01-01T00:00")
_COLUMNS = ("date", "study", "commit", "throughput", "95 % interval", "n", "change")
_DROPPED_FIRST = ("n", "commit", "95 % interval", "date")


class HistoryRequest(Options):
    """Whose history is shown."""

    studies: StudyArguments = ()
    runs_dir: RunsDir = RUNS_DIR
    is_markdown: Annotated[
        bool, Option(name="markdown", help="Print Markdown tables.")
    ] = False
    is_json: IsJson = False


def run(request: HistoryRequest, _: Call) -> int:
    """Prints one table per case and machine class; returns the exit code.

    Raises:
      StudyError: There is no study, or both formats were requested.
      ResultsError: A study that was named cannot be read.
    """
    studies, runs_dir = request.studies, request.runs_dir
    if request.is_json and request.is_markdown:
        raise StudyError("--json and --markdown exclude each other; use one of them")
    read, code = (
        (_named(studies, runs_dir), exit_codes.OK) if studies else _all_in(runs_dir)
    )
    found = history(read)
    if request.is_json:
        click.echo(json.dumps(as_data(found), indent=2))
    elif request.is_markdown:
        click.echo("\n".join(_markdown(found)))
    else:
        _print(found)
    for reason in found.left_out:
        click.echo(one_line(f"left out: {reason}"), err=True)
    if not found.series:
        click.echo("no case of these studies has a figure", err=True)
        return exit_codes.NOTHING_MEASURED
    return code


def _named(studies: Sequence[str], runs_dir: Path) -> list[Study]:
    roots = [study_module.find_study(study, runs_dir) for study in studies]
    # The same study twice would count as two observations.
    unique = {os.path.realpath(root): root for root in roots}
    return [
        study_module.complete(load_study(Store.open(root))) for root in unique.values()
    ]


def _all_in(runs_dir: Path) -> tuple[list[Study], int]:
    """Reads every study below a directory; returns also the exit code.

    One that cannot be read is named on stderr and left out, and the exit code is 2.
    """
    roots = untrusted.folders_with(runs_dir, PLAN_NAME)
    found = [of for root in roots if (of := _read(root)) is not None]
    if not found:
        raise StudyError(
            f"no study in {str(runs_dir)!r}: name studies or another --runs-dir, or"
            " run a sweep first"
        )
    return found, exit_codes.OK if len(found) == len(roots) else exit_codes.USAGE


def _read(root: Path) -> Study | None:
    try:
        return study_module.complete(load_study(Store.open(root)))
    except (ResultsError, StudyError) as error:
        click.echo(one_line(f"left out: {error}"), err=True)
        return None


def _title(series: Series) -> str:
    return (
        f"{series.workload} {series.preset}, {series.case}, on {series.machine_name}"
        f" ({series.machine[:8]})"
    )


def _conclusion(series: Series) -> str:
    number = len(series.observations)
    if series.num_missing:
        studies = "study" if number == 1 else "studies"
        return (
            f"{number} {studies}: no change points, which take at least"
            f" {change_points.FEWEST} of this case on this machine class"
        )
    changes = sum(seen.change is not None for seen in series.observations)
    if not changes:
        return f"no change in {number} studies"
    return f"{changes} change{'' if changes == 1 else 's'} in {number} studies"


def _cells(seen: Observation) -> tuple[str, ...]:
    throughput = seen.throughput
    change = ""
    if seen.change is not None:
        change = f"{formats.change(seen.change)} from here on"
    return (
        seen.date[:_DATE_LENGTH].replace("T", " "),
        seen.study,
        seen.commit or formats.ABSENT,
        f"{formats.significant(throughput.value)} {throughput.unit}",
        formats.interval_if_any(throughput.low, throughput.high, formats.significant),
        str(throughput.n),
        change,
    )


def _table(series: Series, columns: Sequence[str]) -> Table:
    import rich.box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=rich.box.SIMPLE_HEAD)
    for name in columns:
        # A name may be wrapped where nothing else helps, a number never.
        table.add_column(name, no_wrap=name not in ("study", "change"))
    for seen in series.observations:
        cells = dict(zip(_COLUMNS, _cells(seen), strict=True))
        # Text, since names of studies can contain markup.
        table.add_row(*(Text(cells[name]) for name in columns))
    return table


def _print(found: History) -> None:

    out = console()
    for series in found.series:
        click.echo(one_line(_title(series)))
        make_table = functools.partial(_table, series)
        columns = narrow.columns_that_fit(_COLUMNS, _DROPPED_FIRST, make_table, out)
        out.print(make_table(columns))
        click.echo(f"{_conclusion(series)}\n")


def _markdown(found: History) -> list[str]:
    lines = []
    for series in found.series:
        lines += [f"### {one_line(_title(series))}", ""]
        lines += [_row(_COLUMNS), _row(("---",) * len(_COLUMNS))]
        lines += [_row(_cells(seen)) for seen in series.observations]
        lines += ["", f"{_conclusion(series)}.", ""]
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
