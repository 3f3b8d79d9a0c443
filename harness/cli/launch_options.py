"""The options that say where the processes of a sweep run."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any

from harness.errors import ParseError, PlanError
from harness.options.durations import duration
from harness.options.kinds import parsed
from harness.options.option import Contributed, Option, Options
from results.records.bounds import Replicas

PROCESSES = "Where the processes run"

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


def parse_shard(text: str, *, what: str) -> tuple[int, int]:
    """Returns the part of the repetitions to run, from 1, and how many there are.

    Raises:
      ParseError: It is not I/K.
    """
    match = _SHARD.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ParseError(
            f"{what} {text!r} is not I/K with I from 1 to K; write for example 3/20"
        )
    return int(match[1]), int(match[2])


Workers = Annotated[
    Replicas | None,
    Option(
        help="Worker processes of the largest trial; times `--replicas-per-worker` they"
        " make the largest of `--replicas`.",
    ),
]


class RayOptions(Options):
    """Options of ``--launcher ray``."""

    workers: Workers = None


class SlurmOptions(Options):
    """Options of ``--launcher slurm``."""

    workers: Workers = None
    nodes: Annotated[
        Replicas | None, Option(help="Hosts of the allocation.", default="1")
    ] = None
    partition: Annotated[
        str | None, Option(help="Partition of the cluster.", default="the cluster's")
    ] = None
    time_limit: Annotated[
        float | None,
        Option(
            kind=duration("min"),
            help="Of the job, such as `2h`; a bare number is minutes. The sweep"
            " continues in its next run.",
            default="the cluster's",
        ),
    ] = None
    array: Annotated[
        Replicas | None,
        Option(
            metavar="K",
            help="Submit K jobs, each with a K-th of the repetitions and a study of its"
            " own.",
        ),
    ] = None


def models() -> dict[str, type[Options]]:
    """Returns the options of each launcher that has some."""
    return {"slurm": SlurmOptions, "ray": RayOptions}


Launcher = Annotated[
    str,
    Option(
        group=PROCESSES,
        help="What starts the processes of a trial: `local`, `slurm` or `ray`"
        " ([docs/clusters.md](../docs/clusters.md)).",
    ),
]
ReplicasPerWorker = Annotated[
    Replicas,
    Option(
        group=PROCESSES,
        also=("--gpus-per-worker",),
        help="Replicas of each worker process, each on a GPU of its own with `--device"
        " gpu`.",
    ),
]
Shard = Annotated[
    tuple[int, int] | None,
    Option(
        group=PROCESSES,
        kind=parsed(parse_shard, metavar="I/K"),
        help="Run only the I-th of K parts of the repetitions.",
    ),
]
LauncherOptions = Annotated[Options, Contributed(by="launcher", models=models)]


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


def launching_of(request: Any) -> Launching:
    """Returns where the processes of a requested sweep run.

    Raises:
      HarnessError: The launcher is unknown, or two options exclude each other.
    """
    from harness.launch import catalog

    catalog.info(request.launcher)
    values = request.launcher_options.model_dump()
    limit_sec = values.pop("time_limit", None)
    launching = Launching(
        launcher=request.launcher,
        replicas_per_worker=request.replicas_per_worker,
        shard=request.shard,
        time_limit=None if limit_sec is None else _clock(limit_sec),
        **values,
    )
    if launching.array is not None and launching.shard is not None:
        raise PlanError(
            "--array submits jobs that have a --shard each; give one of the two"
        )
    return launching


def _clock(seconds: float) -> str:
    """Returns a duration as Slurm has it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"
