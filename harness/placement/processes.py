"""The processes of a trial: one, several that communicate, or several that never do.

The catalogue says how a backend's replicas are spread over processes; this module lists
the processes for a number of replicas, and which of them are measured. A measured
process is a *rank* and writes a rank file; the others serve and write nothing. A worker
runs one replica, or as many as the study says. The control ``solo`` has a process per
replica whatever its backend, and they never communicate.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from harness import catalog
from harness.errors import PlanError
from results.records.models import Control

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.catalog import BackendInfo
    from results.records.models import TrialSpec


Member = tuple[str, int]
"""Kind and index, as in ``TF_CONFIG``."""

SHARE_VARIABLE: Final = "REPLICATOR_HARNESS_REPLICAS_PER_WORKER"
"""In the identity of a trial whose workers run several replicas each: how many."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    """The processes of one trial."""

    # Kind and index of each, in the order of ``LocalCluster.members``; empty for a
    # trial of one process without a cluster.
    members: tuple[Member, ...]
    num_ranks: int  # How many of them are measured: the first ones.
    # Replicas of each worker; of a process without a cluster, one is counted, since it
    # runs all of the trial's.
    replicas_per_worker: int = 1
    # Whether they are programs that know nothing of each other.
    is_separate: bool = False

    @property
    def are_several(self) -> bool:
        """Whether one process starts the others."""
        return bool(self.members)

    @property
    def is_cluster(self) -> bool:
        """Whether processes communicate with each other."""
        return self.are_several and not self.is_separate

    def count(self, kind: str) -> int:
        """Members of one kind."""
        return sum(member_kind == kind for member_kind, _ in self.members)

    def runs_replicas(self, member: Member) -> bool:
        """Whether a member computes, rather than coordinates or stores variables."""
        return member[0] == "worker"

    def num_replicas_here(self, num_replicas: int) -> int:
        """The replicas of each process that is measured; 0 if others compute."""
        if not self.members:
            return num_replicas
        measured = self.members[: self.num_ranks]
        computing = [member for member in self.members if self.runs_replicas(member)]
        return self.replicas_per_worker * (set(computing) <= set(measured))

    def rank(self, member: Member) -> int | None:
        """The rank of a member, or None where it only serves."""
        place = self.members.index(member)
        return place if place < self.num_ranks else None


def processes_of(
    backend: BackendInfo,
    num_replicas: int,
    control: Control = Control.NONE,
    replicas_per_worker: int = 1,
) -> Processes:
    """Returns the processes of a trial: its workers, and any servers."""
    if control is Control.SOLO:
        programs = tuple(("worker", index) for index in range(num_replicas))
        return Processes(members=programs, num_ranks=num_replicas, is_separate=True)
    share = min(replicas_per_worker, num_replicas)
    num_workers = num_replicas // share
    workers = tuple(("worker", index) for index in range(num_workers))
    kinds: Mapping[str, Processes] = {
        catalog.ONE_PROCESS: Processes(members=(), num_ranks=1),
        catalog.WORKERS: Processes(
            members=workers, num_ranks=num_workers, replicas_per_worker=share
        ),
        catalog.SERVED_WORKERS: Processes(
            members=workers, num_ranks=1, replicas_per_worker=share
        ),
        catalog.PARAMETER_SERVERS: Processes(
            members=(("chief", 0), *workers, ("ps", 0)),
            num_ranks=1,
            replicas_per_worker=share,
        ),
    }
    return kinds[backend.processes]


def processes_of_trial(spec: TrialSpec) -> Processes:
    """Returns the processes of a trial as it was planned.

    A program of the user's starts its own: one process of ours reads what they print.
    """
    if spec.program is not None:
        return Processes(members=(), num_ranks=1)
    catalog.adopt(spec)
    return processes_of(
        catalog.backend(spec.backend),
        spec.num_replicas,
        spec.control,
        replicas_per_worker(spec.variables),
    )


def share_identity(num_replicas: int | None) -> dict[str, str]:
    """Returns the variable for the identity of trials; none for one replica a worker.

    Figures of different shares are therefore never of the same case.
    """
    return {SHARE_VARIABLE: str(num_replicas)} if (num_replicas or 1) > 1 else {}


def replicas_per_worker(variables: Mapping[str, str]) -> int:
    """Returns what ``share_identity`` has written."""
    return int(variables.get(SHARE_VARIABLE, 1))


def check_share(
    variables: Mapping[str, str],
    backends: Sequence[BackendInfo],
    replicas: Iterable[int],
    device: str,
    *,
    is_own: bool = False,
) -> None:
    """Checks that workers can run as many replicas as the identity says."""
    share = replicas_per_worker(variables)
    if share == 1:
        return
    option = f"--replicas-per-worker {share}"
    with_workers = [b for b in backends if b.processes != catalog.ONE_PROCESS]
    if not with_workers and not is_own:
        raise PlanError(
            f"{option} has no effect on {', '.join(b.name for b in backends)}, whose"
            " replicas are all in one process; leave it out, or add a backend with"
            " workers, such as multi_worker"
        )
    for info in with_workers:
        if device == "cpu" and info.one_cpu_replica_because:
            raise PlanError(
                f"{option} does not work on backend {info.name!r} with --device cpu:"
                f" {info.one_cpu_replica_because}; leave the option or the backend out"
            )
    for num_replicas in replicas:
        if num_replicas > share and num_replicas % share:
            below = num_replicas - num_replicas % share
            raise PlanError(
                f"{option}: {num_replicas} replicas are not divisible by {share}; use"
                f" {below} or {below + share} replicas"
            )


# By default TensorFlow launches the kernels of all GPUs from the pool that also runs
# input pipelines and the host's part of a step: a busy pipeline then delays launches,
# and GPUs wait. So every GPU gets threads of its own for launches, and the pools get
# the rest of the trial's cores. TensorFlow takes this from environment variables only,
# which are therefore part of the identity of a trial.

LAUNCH_THREADS_PER_GPU = 2
"""One launches while the other waits for a copy or an allocation."""
_DEFAULTS = {
    "TF_GPU_THREAD_MODE": "gpu_private",
    "TF_GPU_THREAD_COUNT": str(LAUNCH_THREADS_PER_GPU),
}


def with_gpu_threads(variables: Mapping[str, str], device: str) -> dict[str, str]:
    """Returns the variables of a trial's identity, completed for its device."""
    return {**(_DEFAULTS if device == "gpu" else {}), **variables}


def of_gpu_threads(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a trial's identity that choose its launch threads."""
    return {name: variables[name] for name in _DEFAULTS if name in variables}


def num_pool_threads(num_cores: int, num_gpus: int) -> int:
    """Returns how many threads of a pool have a core of their own beside launches."""
    return max(1, num_cores - LAUNCH_THREADS_PER_GPU * num_gpus)
