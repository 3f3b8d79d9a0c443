"""The verb ``store merge``: one store from those of several machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from harness.cli import exit_codes
from harness.cli.arguments import one_line
from harness.cli.shared_options import RUNS_DIR, IsJson, RunsDir, StudyArguments
from harness.options.option import Option, Options
from harness.planning import study as study_module
from results.study import merge as merging

if TYPE_CHECKING:
    from harness.cli.verb import Call


class MergeRequest(Options):
    """What is merged."""

    studies: StudyArguments
    output: Annotated[
        Path,
        Option(also=("-o",), help="The new study directory; it must not exist."),
    ]
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


def run(request: MergeRequest, _: Call) -> int:
    """Merges the stores, prints the counts and returns the exit code."""
    roots = [
        study_module.find_study(study, request.runs_dir) for study in request.studies
    ]
    merged = merging.merge(roots, request.output)
    if request.is_json:
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
