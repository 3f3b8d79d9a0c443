"""The verbs below ``store``: what is done with whole study directories."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.cli import exit_codes
from harness.cli.arguments import one_line
from harness.cli.reporting_verbs import complete_study
from harness.cli.sweep_options import json_option, runs_dir_option


@click.group()
def store() -> None:
    """Merges the stores of several machines."""


@store.command()
@click.argument(
    "studies",
    nargs=-1,
    required=True,
    metavar="STUDY STUDY...",
    shell_complete=complete_study,
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The new study directory; it must not exist.",
)
@runs_dir_option
@json_option
def merge(
    studies: tuple[str, ...], *, output: Path, runs_dir: Path, is_json: bool
) -> int:
    """Merges what several machines measured of one study into a new store.

    The same trial in two stores, another study, other code or settings, and unlike
    machines are errors. Trials that are not finished are left out. The stores stay as
    they are; the result does not depend on their order.
    """
    from harness.planning import study as study_module
    from results.study import merge as merging

    roots = [study_module.find_study(study, runs_dir) for study in studies]
    merged = merging.merge(roots, output)
    if is_json:
        content = {
            "study": str(merged.root),
            "num_stores": len(roots),
            "num_trials": merged.num_trials,
            "num_matching_trials": merged.num_matching,
            "num_unfinished_trials": merged.num_unfinished,
        }
        click.echo(json.dumps(content, indent=2))
    else:
        click.echo(
            one_line(
                f"{merged.root}: {merged.num_trials} trials of {len(roots)} stores"
            )
        )
    if merged.num_unfinished:
        click.echo(
            f"left out: {merged.num_unfinished} trials that no store has finished;"
            " resume the study to measure them",
            err=True,
        )
    return exit_codes.OK
