"""The options that say where the processes of a sweep run."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import click

from harness.errors import ParseError, PlanError
from results.records import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OF_A_JOB = ("nodes", "partition", "time_limit", "array")
_WITHOUT_EFFECT = {
    "local": (*_OF_A_JOB, "workers"),
    # The hosts of a cluster are what they are, and nothing is submitted.
    "ray": _OF_A_JOB,
}
_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")

launcher_option = click.option(
    "--launcher",
    default="local",
    show_default=True,
    help="What starts the processes of a trial: local, slurm or ray.",
)


def launch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a verb with the options of a launcher."""
    for option in reversed(
        (
            launcher_option,
            click.option(
                "--nodes",
                type=click.IntRange(1, limits.MAX_REPLICAS),
                help="Hosts of the allocation, for a launcher that submits a job.",
            ),
            click.option(
                "--workers",
                type=click.IntRange(1, limits.MAX_REPLICAS),
                help="Worker processes of the largest trial; times"
                " --replicas-per-worker they make the largest of --replicas.",
            ),
            click.option(
                "--replicas-per-worker",
                "--gpus-per-worker",
                "replicas_per_worker",
                type=click.IntRange(1, limits.MAX_REPLICAS),
                default=1,
                show_default=True,
                help="Replicas of each worker process, on GPUs of its own where"
                " --device gpu says so.",
            ),
            click.option("--partition", help="Partition of the cluster."),
            click.option(
                "--time-limit",
                metavar="TIME",
                help="Of the job, as 02:00:00; the sweep continues in its next run.",
            ),
            click.option(
                "--array",
                type=click.IntRange(1, limits.MAX_REPLICAS),
                metavar="K",
                help="Submit K jobs, each with a K-th of the repetitions and a study"
                " of its own.",
            ),
            click.option(
                "--shard",
                metavar="I/K",
                help="Run only the I-th of K parts of the repetitions.",
            ),
        )
    ):
        function = option(function)
    return function


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Launching:
    """Where the processes of a sweep run, as it was requested.

    Attributes:
      launcher: Name in the catalogue.
      nodes: Hosts of the allocation.
      workers: Worker processes of the largest trial.
      replicas_per_worker: Replicas of each worker, and so its GPUs.
      partition: Partition of the cluster.
      time_limit: Of the job.
      array: Jobs among which the repetitions are divided.
      shard: The part of the repetitions to run, from 1, and how many there are.
    """

    launcher: str = "local"
    nodes: int | None = None
    workers: int | None = None
    replicas_per_worker: int = 1
    partition: str | None = None
    time_limit: str | None = None
    array: int | None = None
    shard: tuple[int, int] | None = None


def take_launching(settings: dict[str, Any]) -> Launching:
    """Takes the options of a launcher out of all options of a verb.

    Raises:
      HarnessError: One is malformed, unknown, or has no effect.
    """
    from harness.launch import catalog

    names = [field.name for field in dataclasses.fields(Launching)]
    values: Mapping[str, Any] = {name: settings.pop(name) for name in names}
    launching = Launching(**{**values, "shard": _shard(values["shard"])})
    catalog.info(launching.launcher)
    for name in _WITHOUT_EFFECT.get(launching.launcher, ()):
        if values[name] is not None:
            option = "--" + name.replace("_", "-")
            raise PlanError(
                f"{option} {values[name]} has no effect with --launcher"
                f" {launching.launcher}; add --launcher slurm, or leave {option} out"
            )
    if launching.array is not None and launching.shard is not None:
        raise PlanError(
            "--array submits jobs that have a --shard each; give one of the two"
        )
    return launching


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = _SHARD.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ParseError(
            f"--shard {text!r} is not I/K with I from 1 to K; write for example 3/20"
        )
    return int(match[1]), int(match[2])
