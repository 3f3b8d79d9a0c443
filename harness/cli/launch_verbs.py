"""The verb ``launch``: files for other engines."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli import exit_codes
from harness.errors import PlanError
from results.records import limits


@click.group()
def launch() -> None:
    """Writes what starts a program on a cluster; submits nothing."""


@launch.command()
@click.option("--target", required=True, help="slurm, or another of the known engines.")
@click.option("--name", default="replicator", show_default=True, help="Of the job.")
@click.option(
    "--workers",
    type=click.IntRange(1, limits.MAX_REPLICAS),
    default=1,
    show_default=True,
    help="Processes of the gang.",
)
@click.option(
    "--gpus-per-worker",
    type=click.IntRange(0, limits.MAX_REPLICAS),
    default=0,
    show_default=True,
    help="GPUs of each worker.",
)
@click.option(
    "--cores-per-worker",
    type=click.IntRange(1, limits.MAX_REPLICAS),
    help="Cores of each worker.",
)
@click.option(
    "--memory-per-worker",
    metavar="AMOUNT",
    help="Memory of each worker, such as 64Gi.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, limits.MAX_REPLICAS),
    help="Checks that workers times GPUs make so many.",
)
@click.option("--nodes", type=click.IntRange(1, limits.MAX_REPLICAS), help="Hosts.")
@click.option(
    "--array", type=click.IntRange(1, limits.MAX_REPLICAS), help="Jobs, one shard each."
)
@click.option("--partition", help="Partition or queue.")
@click.option("--time-limit", help="In the engine's notation, such as 02:00:00.")
@click.option("--image", help="Container image, where the engine needs one.")
@click.option(
    "--directory",
    default=".",
    show_default=True,
    help="Current folder of the workers; all hosts must see it.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Folder for the files.  [default: the current one]",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def render(
    *, target: str, output: Path, command: tuple[str, ...], **settings: object
) -> int:
    """Writes the files that start COMMAND on a cluster, and prints their names."""
    from harness.launch import targets

    job = targets.Job(command=command, **settings)  # type: ignore[arg-type]  # click's types
    files = targets.render(target, job)
    for name in files:
        if (output / name).exists():
            raise PlanError(
                f"{str(output / name)!r} exists and is not overwritten; choose another"
                " --output or --name"
            )
    output.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (output / name).write_text(text, encoding="utf-8")
        click.echo(str(output / name))
    return exit_codes.OK
