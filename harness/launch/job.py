"""What an engine is asked to run: the same command in every worker."""

from __future__ import annotations

import dataclasses
import re

from harness.errors import PlanError

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What an engine is asked to run, whichever it is."""

    name: str  # Lower-case letters, digits and hyphens, as all engines allow.
    # What each worker runs; it learns from the engine which one it is.
    command: tuple[str, ...]
    workers: int = 1  # Processes of the gang.
    gpus_per_worker: int = 0  # GPUs of each; 0 on CPUs.
    cores_per_worker: int | None = None  # Cores of each; None leaves it to the engine.
    replicas: int | None = None  # Replicas in all, if they were named.
    directory: str = "."  # Current folder of the workers, which all hosts see.

    def __post_init__(self) -> None:
        """Checks what holds for every engine."""
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

    def check_nodes(self, nodes: int) -> None:
        """Checks that every host has a worker."""
        if nodes > self.workers:
            raise PlanError(
                f"--nodes {nodes} is more than --workers {self.workers}: a node would"
                f" have no worker; use at most --nodes {self.workers}"
            )

    def workers_per_node(self, nodes: int) -> int:
        """Returns how many workers a host gets, where all get as many."""
        self.check_nodes(nodes)
        if self.workers % nodes:
            raise PlanError(
                f"--workers {self.workers} is not divisible by --nodes {nodes}; use a"
                " multiple, so that every host has as many workers"
            )
        return self.workers // nodes


def _check_product(workers: int, gpus_per_worker: int, replicas: int | None) -> None:
    """Checks that workers times GPUs per worker makes the replicas."""
    made = workers * max(gpus_per_worker, 1)
    if replicas is not None and made != replicas:
        raise PlanError(
            f"--workers {workers} x --gpus-per-worker {gpus_per_worker} makes {made}"
            f" replicas, not --replicas {replicas}; choose numbers whose product is"
            f" {replicas} (0 GPUs per worker count as one replica on CPUs)"
        )
