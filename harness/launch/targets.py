"""What ``launch render`` writes, by target: files for an engine, without submitting."""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import TYPE_CHECKING, cast

from harness.errors import PlanError
from harness.lookup import look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Render = Callable[["Job"], Mapping[str, str]]

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What an engine is asked to run: the same command in every worker.

    Attributes:
      name: Lower-case letters, digits and hyphens, as all engines allow.
      command: What each worker runs; it learns from the engine which one it is.
      workers: Processes of the gang.
      gpus_per_worker: GPUs of each; 0 on CPUs.
      cores_per_worker: Cores of each; None leaves it to the engine.
      memory_per_worker: Memory of each, such as ``64Gi``; None leaves it to the engine.
      nodes: Hosts; None leaves it to the engine.
      replicas: Replicas in all, if they were named.
      array: Jobs of a sweep that is split into shards; None for one job.
      partition: Partition or queue; None for the default.
      time_limit: In the engine's notation; None for the default.
      image: Container image, where the engine needs one.
      directory: Current folder of the workers, which all hosts see.
    """

    name: str
    command: tuple[str, ...]
    workers: int = 1
    gpus_per_worker: int = 0
    cores_per_worker: int | None = None
    memory_per_worker: str | None = None
    nodes: int | None = None
    replicas: int | None = None
    array: int | None = None
    partition: str | None = None
    time_limit: str | None = None
    image: str | None = None
    directory: str = "."

    def __post_init__(self) -> None:
        """Checks what holds for every engine.

        Raises:
          PlanError: The message says what is wrong, and what to do.
        """
        if not self.command:
            raise PlanError(
                "no command to run; write it after '--', for example -- python train.py"
            )
        if _NAME.fullmatch(self.name) is None:
            raise PlanError(
                f"job name {self.name!r} is not valid; allowed are up to 53 lower-case"
                " letters, digits and hyphens, starting and ending with a letter or"
                " digit"
            )
        _check_product(self.workers, self.gpus_per_worker, self.replicas)
        if self.nodes is not None and self.nodes > self.workers:
            raise PlanError(
                f"--nodes {self.nodes} is more than --workers {self.workers}: a node"
                f" would have no worker; use at most --nodes {self.workers}"
            )


def _check_product(workers: int, gpus_per_worker: int, replicas: int | None) -> None:
    """Checks that workers times GPUs per worker makes the replicas.

    Raises:
      PlanError: It does not.
    """
    made = workers * max(gpus_per_worker, 1)
    if replicas is not None and made != replicas:
        raise PlanError(
            f"--workers {workers} x --gpus-per-worker {gpus_per_worker} makes {made}"
            f" replicas, not --replicas {replicas}; choose numbers whose product is"
            f" {replicas} (0 GPUs per worker count as one replica on CPUs)"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TargetInfo:
    """One target.

    Attributes:
      name: For ``--target``.
      render: ``module:function``; takes a ``Job``, returns file names and contents.
      summary: One line.
    """

    name: str
    render: str
    summary: str


TARGETS: dict[str, TargetInfo] = {
    info.name: info
    for info in (
        TargetInfo(
            name="slurm",
            render="harness.launch.slurm.script:render",
            summary="batch files for sbatch: a gang, or an array",
        ),
        TargetInfo(
            name="jobset",
            render="harness.launch.jobset_file:render",
            summary="a manifest for kubectl: a gang, a pod per worker",
        ),
        TargetInfo(
            name="mpi",
            render="harness.launch.mpi_file:render",
            summary="a script around mpirun of OpenMPI: a gang",
        ),
        TargetInfo(
            name="ray",
            render="harness.launch.ray_file:render",
            summary="a script that makes a Ray cluster of the hosts, and runs a sweep",
        ),
    )
}


def render(name: str, job: Job) -> Mapping[str, str]:
    """Returns the files for a target, by name.

    Raises:
      PlanError: The target is unknown, or the job lacks what it needs.
    """
    module, _, function = look_up(TARGETS, name, what="target").render.partition(":")
    return cast("Render", getattr(importlib.import_module(module), function))(job)
