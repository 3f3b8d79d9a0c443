"""The processes of a trial, and the cores, threads and devices of each.

One core is one logical CPU of the affinity mask, limited by the cgroup quota. The
number of cores per replica is constant over a sweep, so that a ratio between two
replica counts compares replicas with equal resources.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Final, Literal

from harness import catalog
from harness.errors import PlanError
from results.records.models import Control, Placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.catalog import BackendInfo
    from harness.machine.machine_state import CpuTopology, LogicalCpu
    from results.records.models import TrialSpec


# The catalogue says how a backend's replicas are spread over processes. A process that
# is measured is a *rank* and writes a rank file; the others serve and write nothing.

Member = tuple[str, int]
"""Kind and index, as in ``TF_CONFIG``."""

SHARE_VARIABLE: Final = "REPLICATOR_HARNESS_REPLICAS_PER_WORKER"
"""In the identity of a trial whose workers run several replicas each: how many."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    # In the order of ``LocalCluster.members``; empty for one process without a cluster.
    members: tuple[Member, ...]
    num_ranks: int  # How many of them are measured: the first ones.
    replicas_per_worker: int = 1  # 1 of a process without a cluster, which runs all.
    # Whether they are programs that know nothing of each other.
    is_separate: bool = False

    @property
    def are_several(self) -> bool:
        return bool(self.members)

    @property
    def is_cluster(self) -> bool:
        return self.are_several and not self.is_separate

    def count(self, kind: str) -> int:
        return sum(member_kind == kind for member_kind, _ in self.members)

    def num_replicas_here(self, num_replicas: int) -> int:
        """The replicas of each process that is measured; 0 if others compute."""
        if not self.members:
            return num_replicas
        serving = self.members[self.num_ranks :]
        return self.replicas_per_worker * (not any(map(runs_replicas, serving)))

    def rank(self, member: Member) -> int | None:
        """The rank of a member, or None where it only serves."""
        index = self.members.index(member)
        return index if index < self.num_ranks else None


def runs_replicas(member: Member) -> bool:
    """Whether a member computes, rather than coordinates or stores variables."""
    return member[0] == "worker"


ONE_PROCESS: Final = Processes(members=(), num_ranks=1)


def processes_of(
    backend: BackendInfo,
    num_replicas: int,
    control: Control = Control.NONE,
    replicas_per_worker: int = 1,
) -> Processes:
    if control is Control.INDEPENDENT:
        programs = tuple(("worker", index) for index in range(num_replicas))
        return Processes(members=programs, num_ranks=num_replicas, is_separate=True)
    if backend.processes == catalog.ONE_PROCESS:
        return ONE_PROCESS
    share = min(replicas_per_worker, num_replicas)
    members = tuple(("worker", index) for index in range(num_replicas // share))
    num_ranks = len(members) if backend.processes == catalog.WORKERS else 1
    if backend.processes == catalog.PARAMETER_SERVERS:
        members = (("chief", 0), *members, ("ps", 0))
    return Processes(members=members, num_ranks=num_ranks, replicas_per_worker=share)


def processes_of_trial(spec: TrialSpec) -> Processes:
    """Returns the processes of a trial; for your program, the one that reads it."""
    if spec.program is not None:
        return ONE_PROCESS
    catalog.adopt(spec)
    return processes_of(
        catalog.backend(spec.backend),
        spec.num_replicas,
        spec.control,
        replicas_per_worker(spec.variables),
    )


def share_identity(num_replicas: int | None) -> dict[str, str]:
    """Returns the variable for the identity of trials; none for a replica a worker."""
    return {SHARE_VARIABLE: str(num_replicas)} if (num_replicas or 1) > 1 else {}


def replicas_per_worker(variables: Mapping[str, str]) -> int:
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
    option = f"--set replicas-per-worker={share}"
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
# input pipelines, so a busy pipeline delays launches. Every GPU gets threads of its own
# for them, and the pools get the rest of the trial's cores. TensorFlow takes this from
# variables only, which are therefore part of the identity of a trial.

LAUNCH_THREADS_PER_GPU = 2
"""One launches while the other waits for a copy or an allocation."""
_DEFAULTS = {
    "TF_GPU_THREAD_MODE": "gpu_private",
    "TF_GPU_THREAD_COUNT": str(LAUNCH_THREADS_PER_GPU),
}


def with_gpu_threads(variables: Mapping[str, str], device: str) -> dict[str, str]:
    """Returns the variables of a trial's identity, completed for its device."""
    return {**(_DEFAULTS if device == "gpu" else {}), **variables}


def gpu_thread_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a trial's identity that choose its launch threads."""
    return {name: variables[name] for name in _DEFAULTS if name in variables}


def num_pool_threads(num_cores: int, num_gpus: int) -> int:
    """Returns how many threads of a pool have a core of their own beside launches."""
    return max(1, num_cores - LAUNCH_THREADS_PER_GPU * num_gpus)


def cores_per_replica(
    num_available_cores: int, replicas: Iterable[int], devices_per_replica: int = 1
) -> int:
    """Returns the cores of each replica: the largest case that fits gets all there are.

    If none fits, each device of a replica gets one core.
    """
    counts = [n * devices_per_replica for n in replicas]
    fitting = [n for n in counts if n <= num_available_cores]
    each = num_available_cores // max(fitting, default=num_available_cores)
    return max(1, each) * devices_per_replica


def place(
    topology: CpuTopology,
    *,
    num_replicas: int,
    cores_per_replica: int,
    device: Literal["cpu", "gpu"],
    processes: Processes = ONE_PROCESS,
    gpu_nodes: Sequence[int | None] = (),
    devices_per_replica: int = 1,
) -> Placement:
    """Returns the placement of one trial.

    - A trial has ``num_replicas * cores_per_replica`` cores, or all that are available
      when there are fewer (then it is oversubscribed). One process gets them all.
    - Of several, each process that runs replicas gets its own. Coordinators and
      parameter servers mostly wait: they may use all cores of the trial.
    - Intra-op threads: ``cores_per_replica``, divided by the devices of a replica: an
      operation of one must not take a core of another.
    - Inter-op threads: one per device of each replica, at most one per core, since they
      run concurrently; in a cluster one more, so that it communicates meanwhile; of a
      program of the control ``independent`` as of a single replica.
    - On GPUs, both pools get the cores that threads which launch kernels leave, and a
      replica gets cores of the NUMA node of its GPU, as far as it has enough.
    """
    slots = near_gpus(
        _ordered(topology, cores_per_replica), cores_per_replica, gpu_nodes
    )
    num_wanted = num_replicas * cores_per_replica
    num_available = topology.num_available_cores
    chosen = [cpu.cpu for cpu in slots[: min(num_wanted, num_available)]]
    num_devices = num_replicas * devices_per_replica
    cpusets, num_inter_op_threads = [chosen], min(num_devices, len(chosen))
    if processes.are_several:
        share = processes.replicas_per_worker
        own = share * devices_per_replica
        num_inter_op_threads = own + 1 if processes.is_cluster else devices_per_replica
        num_own = share * cores_per_replica
        cpusets = [  # with too few, they are assigned round-robin
            [
                chosen[(member[1] * num_own + place) % len(chosen)]
                for place in range(min(num_own, len(chosen)))
            ]
            if runs_replicas(member)
            else chosen
            for member in processes.members
        ]
    num_intra_op_threads = max(1, cores_per_replica // devices_per_replica)
    if device == "gpu":
        several = processes.are_several
        num_gpus = processes.replicas_per_worker if several else num_replicas
        num_intra_op_threads = num_pool_threads(cores_per_replica, 1)
        num_left = num_pool_threads(min(map(len, cpusets)), num_gpus)
        num_inter_op_threads = max(num_inter_op_threads, num_left)
    return Placement(
        cpusets=tuple(tuple(sorted(cores)) for cores in cpusets),
        cores_per_replica=cores_per_replica,
        num_intra_op_threads=num_intra_op_threads,
        num_inter_op_threads=num_inter_op_threads,
        num_available_cores=num_available,
        cgroup_quota_cores=topology.quota_cores,
        is_oversubscribed=num_wanted > num_available,
        device_sharing="exclusive" if device == "gpu" else "shared",
    )


def near_gpus(
    slots: Sequence[LogicalCpu], num_per_gpu: int, nodes: Sequence[int | None]
) -> list[LogicalCpu]:
    """Returns the CPUs in an order in which each GPU's are on its own NUMA node."""
    left = list(slots)
    wanted: list[list[LogicalCpu]] = []
    for node in nodes:  # all get those of their own node before any takes others
        near = [cpu for cpu in left if cpu.node == node][:num_per_gpu]
        wanted.append(near)
        left = [cpu for cpu in left if cpu not in near]
    ordered: list[LogicalCpu] = []
    for near in wanted:
        num_missing = num_per_gpu - len(near)
        ordered += [*near, *left[:num_missing]]
        left = left[num_missing:]
    return ordered + left


def _ordered(topology: CpuTopology, cores_per_replica: int) -> list[LogicalCpu]:
    """Returns the CPUs in the order in which replicas take them: physical cores first.

    Where these are too few, a replica of two or more cores gets both threads of a core,
    so that replicas never share one.
    """
    by_place = sorted(topology.cpus, key=lambda c: (c.node, c.package, c.core, c.cpu))
    num_seen: dict[tuple[int, int], int] = {}
    sibling_rank: dict[int, int] = {}
    for cpu in by_place:
        core = (cpu.package, cpu.core)
        sibling_rank[cpu.cpu] = num_seen.get(core, 0)
        num_seen[core] = sibling_rank[cpu.cpu] + 1
    are_enough = topology.num_available_cores <= topology.num_physical_cores
    if are_enough or cores_per_replica == 1:
        return sorted(by_place, key=lambda c: sibling_rank[c.cpu])
    return by_place


def members_per_host(num_members: int, num_hosts: int) -> int:
    """Returns how many consecutive members a host gets, as evenly as blocks allow."""
    return max(1, -(-num_members // num_hosts))


def place_trial(
    topology: CpuTopology,
    spec: TrialSpec,
    processes: Processes,
    *,
    num_hosts: int = 1,
    gpu_nodes: Sequence[int | None] = (),
) -> Placement:
    """Returns the placement of a trial whose hosts are all the same."""
    place_on_one = functools.partial(
        place,
        topology,
        cores_per_replica=spec.cores_per_replica,
        devices_per_replica=spec.devices_per_replica,
        device=spec.device,
        gpu_nodes=gpu_nodes,
    )
    members = processes.members
    block = members_per_host(len(members), num_hosts)
    if block >= len(members):
        return place_on_one(num_replicas=spec.num_replicas, processes=processes)
    parts = []
    for first in range(0, len(members), block):
        here = members[first : first + block]
        # Numbered on their own: cores are their host's.
        kinds = [kind for kind, _ in here]
        own = [(kind, kinds[:place].count(kind)) for place, kind in enumerate(kinds)]
        num_ranks = min(processes.num_ranks, len(own))
        part = dataclasses.replace(processes, members=tuple(own), num_ranks=num_ranks)
        num_replicas = _num_replicas(processes, here) or 1
        parts.append(place_on_one(num_replicas=num_replicas, processes=part))
    return parts[0].model_copy(
        update={
            "cpusets": tuple(cores for part in parts for cores in part.cpusets),
            "is_oversubscribed": any(part.is_oversubscribed for part in parts),
        }
    )


def num_replicas_on_first(
    processes: Processes, num_replicas: int, num_hosts: int
) -> int:
    """Returns how many replicas compute on the first host, and so need its GPUs."""
    if not processes.are_several:
        return num_replicas
    block = members_per_host(len(processes.members), num_hosts)
    return _num_replicas(processes, processes.members[:block])


def _num_replicas(processes: Processes, members: Sequence[Member]) -> int:
    return processes.replicas_per_worker * sum(map(runs_replicas, members))
