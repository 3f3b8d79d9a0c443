"""The subcommand ``launch render``: files that start a program on a cluster by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import click
from pydantic import Field

from harness.cli import exit_codes
from harness.cli.subcommands.sweep_command import LAUNCHER, describe_launchers
from harness.errors import PlanError
from harness.launch import launchers
from harness.launch.launchers import Job
from harness.options import kinds
from harness.options.option import NO_OPTIONS, Contributed, Options, option
from reports import output_file
from results.records.record_base import MAX_REPLICAS, Replicas

if TYPE_CHECKING:
    from harness.cli.subcommand import Call


GANG: Final = "Workers"
FILES: Final = "Files"


class RenderRequest(Options):
    former = {  # noqa: RUF012 - of the class, as pydantic has it
        "image": "name it in the pod-template, as the image of the container 'harness'",
        "target": "use --launcher",
        "partition": "give it to sbatch, or set SBATCH_PARTITION",
        "time-limit": "give --time to sbatch, or set SBATCH_TIMELIMIT; of a JobSet,"
        " write activeDeadlineSeconds into the spec of the pod-template",
    }

    command: tuple[str, ...] = option(
        (), is_argument=True, kind=kinds.TEXTS, metavar="-- COMMAND..."
    )
    launcher: str = option(
        ...,
        f"Will start the workers. {describe_launchers('render')}.",
        GANG,
        kind=LAUNCHER,
    )
    name: str = option("replicator", "Of the job, and of its files.", FILES)
    workers: Replicas = option(1, "Processes of the gang.", GANG)
    gpus_per_worker: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = option(
        0, "GPUs of each worker."
    )
    cores_per_worker: Replicas | None = option(
        None, "Cores of each worker.", shown="the engine's", is_setting=True
    )
    replicas: Replicas | None = option(
        None, "Checks that workers times GPUs make so many.", is_setting=True
    )
    directory: str = option(
        ".", "Current folder of the workers; all hosts must see it."
    )
    output: Path = option(
        Path(),
        "Folder for the files.",
        FILES,
        short="-o",
        shown="the current folder",
    )
    file_options: Annotated[
        Options,
        Contributed(by="launcher", models=launchers.file_options, use=launchers.info),
    ] = NO_OPTIONS


def run(request: RenderRequest, call: Call) -> int:
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
