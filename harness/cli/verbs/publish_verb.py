"""The verb ``publish``: a copy of a study that may be shown to everybody."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from harness.cli import exit_codes
from harness.cli.arguments import one_line
from harness.cli.shared_options import RUNS_DIR, IsJson, RunsDir, StudyArgument
from harness.options.option import Option, Options
from harness.planning import study as study_module
from results.store.study_store import Store

if TYPE_CHECKING:
    from harness.cli.verb import Call


class PublishRequest(Options):
    """What is published."""

    study: StudyArgument
    output: Annotated[
        Path, Option(also=("-o",), help="The new directory; it must not exist.")
    ]
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


def run(request: PublishRequest, _: Call) -> int:
    """Writes the copy, or lists what may be private and writes nothing."""
    from reports.exports import publish

    store = Store.open(study_module.find_study(request.study, request.runs_dir))
    store.read_plan()
    made = publish.publish(store, request.output)
    if request.is_json:
        click.echo(json.dumps(dataclasses.asdict(made), indent=2))
    else:
        for shown in made.found:
            click.echo(one_line(f"{shown.where}: {shown.kind}: {shown.text}"))
        if not made.found:
            click.echo(
                one_line(
                    f"{request.output}: {len(made.files)} files;"
                    f" {made.num_kept} more stay in the study"
                )
            )
    if made.found:
        click.echo(
            "nothing is published: remove the trials that have these, or measure again"
            " without them",
            err=True,
        )
        return exit_codes.SOME_TRIALS_FAILED
    return exit_codes.OK
