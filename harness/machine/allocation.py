"""The processes of a trial, and the cores, threads and devices of each.

One core is one logical CPU of the affinity mask, limited by the cgroup quota. The
number of cores per replica is constant over a sweep, so that a ratio between two
replica counts compares replicas with equal resources.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Final

from harness import catalog
from harness.errors import PlanError
from results.records.models import Control, Placement, TrialSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.machine.machine_state import CpuTopology, LogicalCpu


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
    backend: catalog.BackendInfo,
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
    backends: Sequence[catalog.BackendInfo],
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


def place_trial(
    topology: CpuTopology,
    spec: TrialSpec,
    processes: Processes,
    *,
    num_hosts: int = 1,
    gpu_nodes: Sequence[int | None] = (),
) -> Placement:
    """Returns the placement of one trial on hosts that are all the same.

    - A host has the cores of its replicas, or all that are available when there are
      fewer (then it is oversubscribed). One process gets them all.
    - Of several, each process that runs replicas gets its own. Coordinators and
      parameter servers mostly wait: they may use all that are taken on their host.
    - Intra-op threads: ``cores_per_replica``, divided by the devices of a replica: an
      operation of one must not take a core of another.
    - Inter-op threads: one per device of each replica, at most one per core, since they
      run concurrently; in a cluster one more, so that it communicates meanwhile; of a
      program of the control ``independent`` as of a single replica.
    - On GPUs, both pools get the cores that threads which launch kernels leave, and a
      replica gets cores of the NUMA node of its GPU, as far as it has enough.
    """
    each, num_devices = spec.cores_per_replica, spec.devices_per_replica
    members, share = processes.members, processes.replicas_per_worker
    num_available = topology.num_available_cores
    slots = near_gpus(_ordered(topology, each), each, gpu_nodes)
    hosts, is_oversubscribed = [], False
    block = members_per_host(len(members), num_hosts)
    for first in range(0, max(len(members), 1), block):
        here = members[first : first + block]
        num_replicas = _num_replicas(processes, here) or 1
        num_wanted = each * (num_replicas if members else spec.num_replicas)
        is_oversubscribed |= num_wanted > num_available
        chosen = [cpu.cpu for cpu in slots[: min(num_wanted, num_available)]]
        cpusets, num_given = [], 0
        for member in here:
            own = chosen
            if runs_replicas(member):  # with too few, they are assigned round-robin
                wanted = range(num_given, num_given + min(share * each, len(chosen)))
                own = [chosen[index % len(chosen)] for index in wanted]
                num_given += share * each
            cpusets.append(own)
        hosts.append(cpusets or [chosen])
    num_intra_op_threads = max(1, each // num_devices)
    num_inter_op_threads = min(spec.num_replicas * num_devices, len(hosts[0][0]))
    if processes.is_cluster:
        num_inter_op_threads = share * num_devices + 1
    elif processes.is_separate:
        num_inter_op_threads = num_devices
    if spec.device == "gpu":
        num_intra_op_threads = num_pool_threads(each, 1)
        num_gpus = share if members else spec.num_replicas
        num_left = num_pool_threads(min(map(len, hosts[0])), num_gpus)
        num_inter_op_threads = max(num_inter_op_threads, num_left)
    return Placement(
        cpusets=tuple(tuple(sorted(cores)) for host in hosts for cores in host),
        cores_per_replica=each,
        num_intra_op_threads=num_intra_op_threads,
        num_inter_op_threads=num_inter_op_threads,
        num_available_cores=num_available,
        cgroup_quota_cores=topology.quota_cores,
        is_oversubscribed=is_oversubscribed,
        device_sharing="exclusive" if spec.device == "gpu" else "shared",
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
    is_short = topology.num_available_cores > topology.num_physical_cores
    if is_short and cores_per_replica > 1:
        return by_place
    siblings: dict[tuple[int, int], list[LogicalCpu]] = collections.defaultdict(list)
    for cpu in by_place:
        siblings[cpu.package, cpu.core].append(cpu)
    return sorted(by_place, key=lambda c: siblings[c.package, c.core].index(c))


def members_per_host(num_members: int, num_hosts: int) -> int:
    """Returns how many consecutive members a host gets, as evenly as blocks allow."""
    return max(1, -(-num_members // num_hosts))


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
