"""The subcommand ``launch render``: files that start a program on a cluster by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from harness.cli.exit_codes import ExitCode
from harness.cli.subcommands.sweep_command import LAUNCHER, describe_launchers
from harness.errors import PlanError
from harness.launch import launchers
from harness.launch.launchers import FILES, GANG, Job
from harness.options.option import NO_OPTIONS, Contributed, Options, option
from reports import output_file


class RenderRequest(Job):
    former = {  # noqa: RUF012 - of the class, as pydantic has it
        "image": "name it in the pod-template, as the image of the container 'harness'",
        "target": "use --launcher",
        "partition": "give it to sbatch, or set SBATCH_PARTITION",
        "time-limit": "give --time to sbatch, or set SBATCH_TIMELIMIT; of a JobSet,"
        " write activeDeadlineSeconds into the spec of the pod-template",
    }

    launcher: str = option(
        ...,
        f"Will start the workers. {describe_launchers('render')}.",
        GANG,
        kind=LAUNCHER,
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


def run(request: RenderRequest) -> int:
    request.check()
    files = launchers.info(request.launcher).render(request, request.file_options)
    output = request.output
    for name in files:
        if (output / name).exists():
            raise PlanError(
                f"{str(output / name)!r} exists and is not overwritten; choose another"
                " --output or --name"
            )
    for path in output_file.write_all(output, files, what="output"):
        click.echo(str(path))
    return ExitCode.OK
