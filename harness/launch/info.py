"""What the command line knows of a launcher: what it runs, its options, what it can do.

One folder of ``harness/launch/`` is one launcher: ``launcher.py`` has its class, the
rest of the folder is imported when the launcher is used. What it does not do, it says.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from harness.errors import PlanError
from harness.options.option import Option, Options
from results.records import limits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.launch.contract import Launcher

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?")
Nodes = Annotated[
    int | None,
    Field(ge=1, le=limits.MAX_REPLICAS),
    Option(help="Hosts.", default="1 of a sweep; of files, the engine's"),
]


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """A job that an engine has accepted."""

    number: str  # Its id.
    follow: str  # How to follow it, in words.
    end: str  # The command that ends it.


class LauncherInfo:
    """One launcher, free of its engine."""

    name: ClassVar[str]  # For ``--launcher``; also that of its folder.
    summary: ClassVar[str]  # One line.
    options: ClassVar[type[Options]] = Options  # Its options for ``sweep``.
    file_options: ClassVar[type[Options]] = Options  # Those for ``launch render``.

    def can(self, does: str) -> bool:
        """Whether it does something, such as ``start`` or ``render``."""
        return getattr(type(self), does) is not getattr(LauncherInfo, does)

    def is_submitted(self) -> bool:
        """Whether a sweep becomes a job here, rather than to run in this process."""
        return False

    def start(self, options: Any) -> Launcher:
        """Returns what starts trials on the hosts that are here."""
        del options
        raise PlanError(
            f"--launcher {self.name} starts no trials, it only writes files: use"
            f" 'launch render --launcher {self.name}', or leave --launcher out"
        )

    def plan(self, options: Any) -> Launcher:
        """Returns what will start trials in a job; where ``is_submitted``."""
        raise NotImplementedError

    def submit(self, job: Job, options: Any, runs_dir: Path) -> Submitted:
        """Submits a sweep, which continues after the time limit; ``is_submitted``."""
        raise NotImplementedError

    def render(self, job: Job, options: Any) -> Mapping[str, str]:
        """Returns files that start a gang by hand: names and contents."""
        del job, options
        raise PlanError(
            f"--launcher {self.name} writes no files: its trials are started by"
            f" 'sweep --launcher {self.name}'; choose another --launcher"
        )
