"""The verb ``launch render``: files that start a program on a cluster by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import click
from pydantic import Field

from harness.cli import exit_codes
from harness.cli.verbs.sweep_verb import LAUNCHER, describe_launchers
from harness.errors import PlanError
from harness.launch import launchers
from harness.launch.launchers import Job
from harness.options import kinds
from harness.options.option import NO_OPTIONS, Contributed, Option, Options
from reports import output_file
from results.records.limits import MAX_REPLICAS
from results.records.record_base import Replicas

if TYPE_CHECKING:
    from harness.cli.verb import Call


GANG: Final = "Workers"
FILES: Final = "Files"


class RenderRequest(Options):
    """A program to start in every worker of a gang."""

    former = {  # noqa: RUF012 - of the class, as pydantic has it
        "image": "name it in the --pod-template, as the image of the container"
        " 'harness'",
        "partition": "give it to sbatch, or set SBATCH_PARTITION",
        "time-limit": "give --time to sbatch, or set SBATCH_TIMELIMIT; of a JobSet,"
        " write activeDeadlineSeconds into the spec of the --pod-template",
    }

    command: Annotated[
        tuple[str, ...],
        Option(is_argument=True, kind=kinds.TEXTS, metavar="-- COMMAND..."),
    ] = ()
    launcher: Annotated[
        str,
        Option(
            f"Will start the workers. {describe_launchers('render')}.",
            GANG,
            kind=LAUNCHER,
            also=("--target",),
        ),
    ]
    name: Annotated[str, Option("Of the job, and of its files.", FILES)] = "replicator"
    workers: Annotated[Replicas, Option("Processes of the gang.", GANG)] = 1
    gpus_per_worker: Annotated[
        int, Field(ge=0, le=MAX_REPLICAS), Option("GPUs of each worker.", GANG)
    ] = 0
    cores_per_worker: Annotated[
        Replicas | None, Option("Cores of each worker.", GANG, default="the engine's")
    ] = None
    replicas: Annotated[
        Replicas | None, Option("Checks that workers times GPUs make so many.", GANG)
    ] = None
    directory: Annotated[
        str, Option("Current folder of the workers; all hosts must see it.", GANG)
    ] = "."
    output: Annotated[
        Path,
        Option(
            "Folder for the files.", FILES, also=("-o",), default="the current folder"
        ),
    ] = Path()
    file_options: Annotated[
        Options,
        Contributed(by="launcher", models=launchers.file_options, use=launchers.info),
    ] = NO_OPTIONS


def run(request: RenderRequest, call: Call) -> int:
    """Writes the files, and prints their names; submits and overwrites nothing."""
    del call
    fields = [field.name for field in dataclasses.fields(Job)]
    job = Job(**{name: getattr(request, name) for name in fields})
    files = launchers.info(request.launcher).render(job, request.file_options)
    output = request.output
    for name in files:
        if (output / name).exists():
            raise PlanError(
                f"{str(output / name)!r} exists and is not overwritten; choose another"
                " --output or --name"
            )
    for path in output_file.write_all(output, files, what="output"):
        click.echo(str(path))
    return exit_codes.OK
