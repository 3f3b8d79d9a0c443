"""The options of the verbs that measure nothing: list, report, history, import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.cli import exit_codes
from harness.cli.sweep_options import json_option, runs_dir_option
from reports.exports import export_formats

FORMATS = tuple(export_formats.FORMATS)


def complete_study(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[str]:
    """Returns the studies below ``--runs-dir`` whose names begin like this."""
    del param
    runs_dir = Path(ctx.params.get("runs_dir") or "runs")
    try:
        plans = sorted(runs_dir.glob("*/plan.json"))
    except OSError:  # nothing to complete; the verb itself says what is wrong
        return []
    names = [path.parent.name for path in plans]
    return [name for name in names if name.startswith(incomplete)]


@click.command("list")
@click.argument(
    "what",
    type=click.Choice(["workloads", "backends", "presets", "studies"]),
    required=False,
)
@runs_dir_option
@json_option
def list_(what: str | None, *, runs_dir: Path, is_json: bool) -> int:
    """Lists workloads, backends and presets, or the studies of a directory."""
    if what == "studies":
        from harness.cli import study_list

        return study_list.show(runs_dir, is_json=is_json)
    from harness.cli import listing

    click.echo(listing.listing_json(what) if is_json else listing.listing_text(what))
    return exit_codes.OK


@click.command()
@click.argument(
    "studies",
    nargs=-1,
    required=True,
    metavar="STUDY [STUDY]...",
    shell_complete=complete_study,
)
@runs_dir_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The file, or the directory of a site.  [default: report/index.html in the"
    " study; stdout for other formats]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="What is written.  [default: html]",
)
@click.option(
    "--references",
    multiple=True,
    metavar="FILE|nvidia|mlperf|none",
    help="Published figures to show beside the study's; give it again for more files."
    "  [default: all that are included, for studies on GPUs]",
)
@click.option(
    "--metric",
    metavar="NAME",
    default="throughput",
    show_default=True,
    help="Of the ratios of two studies: throughput, time_to_first_step or peak_memory.",
)
@click.option(
    "--allow-different",
    "is_different_allowed",
    is_flag=True,
    help="Show two studies that are not comparable; their ratios judge nothing.",
)
@click.option(
    "--check-private",
    "is_private_checked",
    is_flag=True,
    help="Write nothing; list what would be shown and may be private.",
)
@json_option
def report(**settings: Any) -> int:
    """Builds the report of a study, a comparison of two, or a site of several.

    One study: a page. Two: a page that compares them, the ratios being first / second.
    With -o DIRECTORY: a site with an index and a page of each study.
    """
    from harness.cli import report_verb
    from harness.cli.report_verb import Request

    return report_verb.report(Request(**settings))


@click.command()
@click.argument(
    "studies", nargs=-1, metavar="[STUDY]...", shell_complete=complete_study
)
@runs_dir_option
@click.option("--markdown", "is_markdown", is_flag=True, help="Print Markdown tables.")
@json_option
def history(
    studies: tuple[str, ...], *, runs_dir: Path, is_markdown: bool, is_json: bool
) -> int:
    """Shows how cases changed from study to study, one table per machine class.

    Without names, of all studies in the runs directory.
    """
    from harness.cli import history_verb

    return history_verb.show_history(
        studies, runs_dir=runs_dir, is_json=is_json, is_markdown=is_markdown
    )
