"""The options that say where the processes of a sweep run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from harness.launch import catalog
from harness.options.kinds import parsed
from harness.options.option import NO_OPTIONS, Contributed, Option, Options
from results.records.record_base import Replicas

if TYPE_CHECKING:
    from harness.launch.launcher import LauncherInfo

PROCESSES: Final = "Where the processes run"


def parse_launcher(text: str, *, what: str) -> str:
    """Returns the name of a launcher."""
    del what
    return catalog.info(text).name


def describe_launchers(does: str) -> str:
    """Returns the launchers that can do something, and what they are, in one line."""
    infos = map(catalog.info, catalog.LAUNCHERS)
    return "; ".join(f"`{of.name}`: {of.summary}" for of in infos if of.can(does))


Launcher = Annotated[
    str,
    Option(
        group=PROCESSES,
        kind=parsed(parse_launcher, metavar="NAME"),
        help=f"What starts the processes of a trial. {describe_launchers('start')}.",
    ),
]


class HostRequest(Options):
    """Where the processes of a sweep run."""

    launcher: Launcher = catalog.DEFAULT
    workers: Annotated[
        Replicas | None,
        Option(
            group=PROCESSES,
            help="Worker processes of the largest trial; times `--replicas-per-worker`"
            " they make the largest of `--replicas`.",
        ),
    ] = None
    replicas_per_worker: Annotated[
        Replicas,
        Option(
            group=PROCESSES,
            also=("--gpus-per-worker",),
            help="Replicas of each worker process, each on a GPU of its own with"
            " `--device gpu`.",
        ),
    ] = 1
    launcher_options: Annotated[
        Options,
        Contributed(by="launcher", models=catalog.options, use=catalog.info),
    ] = NO_OPTIONS

    @property
    def info(self) -> LauncherInfo:
        """The launcher."""
        return catalog.info(self.launcher)
