"""The cluster that this process is in, joined once, and its share of the host."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import tensorflow as tf

from replicator import errors
from replicator._tf import compat as _tf_compat
from replicator._tf import workers as _tf_workers
from replicator.cluster import environment, liveness, port_filter
from replicator.core import devices as devices_lib

if TYPE_CHECKING:
    from replicator.cluster.configuration import ClusterConfig


_T = TypeVar("_T")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Requests of a cluster wait on these threads for locks and messages. TensorFlow starts
# one per core, and on one core nothing is left to run what they wait for.
LEAST_THREADS = 4


_JOINED: list[tuple[str, ClusterConfig, Any]] = []  # role, cluster, what was made


def join_once(role: str, config: ClusterConfig, join: Callable[[], _T]) -> _T:
    """Joins a cluster in a role; later calls return what the first one made."""
    # TensorFlow cannot leave a cluster: its context, its server and the incarnations by
    # which others know it are made once.
    for role_before, before, made in _JOINED:
        is_same = all(
            getattr(before, part) == getattr(config, part)
            for part in ("addresses", "kind", "index")
        )
        if role_before != role or not is_same:
            raise errors.ClusterConfigError(
                f"this process is already {_describe(role_before, before)}, "
                f"and cannot become {_describe(role, config)}; TensorFlow allows one "
                "cluster per process: start a new process"
            )
        return cast("_T", made)
    made = join()
    _JOINED.append((role, config, made))
    return made


def _describe(role: str, config: ClusterConfig) -> str:
    everyone = itertools.chain(*config.addresses.values())
    return f"{role} {config.kind} {config.index} of {', '.join(everyone)}"


def resolver_of(config: ClusterConfig) -> Any:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(dict(config.addresses)),
        task_type=config.kind,
        task_id=config.index,
        rpc_layer="grpc",
    )


def claim_gpus(cluster: ClusterConfig, num_needed: int | None) -> None:
    """Shows TensorFlow, which takes the memory of all it sees, this worker's GPUs."""
    if _tf_workers.has_started():  # joining the cluster explains it
        return
    visible = tf.config.get_visible_devices("GPU")
    num_workers, local_worker_id = cluster.num_workers_on_host, cluster.local_worker_id
    if not visible or num_workers == 1:
        return
    num_needed = num_needed or max(1, len(visible) // num_workers)
    # Workers that all see the same GPUs take them in the order of their local ranks. A
    # launcher that shows every worker only its own has already divided them.
    if len(visible) >= num_workers * num_needed:
        first = local_worker_id * num_needed
    elif len(visible) == num_needed and _VISIBLE in os.environ:
        first = 0
    else:
        raise errors.DeviceError(
            f"{num_workers} workers of one host need {num_needed} GPUs each, but"
            f" worker {local_worker_id} there sees {len(visible)}; start fewer workers "
            f"per host or fewer replicas, or set {_VISIBLE} for each worker to GPUs of "
            "its own"
        )
    tf.config.set_visible_devices(visible[first : first + num_needed], "GPU")


def _num_threads() -> int:
    chosen: int = tf.config.threading.get_inter_op_parallelism_threads()
    named = os.environ.get("TF_NUM_INTEROP_THREADS", "")  # which TensorFlow reads
    chosen = chosen or (int(named) if named.isdecimal() else 0)
    return chosen or len(os.sched_getaffinity(0))


def needed_threads() -> int:
    """The threads between operations of a process that is part of a cluster."""
    return max(_num_threads(), LEAST_THREADS)


def describe_threads() -> str:
    num_cores = len(os.sched_getaffinity(0))
    return f"this process has {_num_threads()} inter-op threads and {num_cores} cores"


def ensure_threads() -> None:
    """Gives this process enough threads between operations."""
    try:
        tf.config.threading.set_inter_op_parallelism_threads(needed_threads())
    except RuntimeError:
        if _num_threads() < LEAST_THREADS:
            raise errors.DeviceError(
                "TensorFlow runs already, with fewer threads than parameter servers "
                "need, so the first step might never end; create the replicator before "
                "the first tensor, or call tf.config.threading."
                f"set_inter_op_parallelism_threads({LEAST_THREADS}) at the start"
            ) from None


CONNECT_TIMEOUT_SEC = 120.0


def connect(config: ClusterConfig, timeout_sec: float) -> liveness.WorkerWatch:
    """Makes this process the client of the cluster's servers, once."""
    if not config.is_chief:
        raise errors.ClusterConfigError(
            f"this process is {config.kind} {config.index}, but with "
            f"pattern='in_graph' only {config.name_of(0)} runs the training program; "
            "run `python -m replicator.server` here, with the same TF_CONFIG"
        )

    def join() -> liveness.WorkerWatch:
        addresses = config.training_addresses
        check_nothing_is_made()
        liveness.check_port_is_free(config.address)
        try:
            liveness.wait_for(addresses, timeout_sec, own=config.address)
        except errors.UnreachableError as error:
            raise errors.UnreachableError(
                f"{error}; every worker except 0 runs `python -m replicator.server`"
            ) from None
        with port_filter.guarded(config):
            tf.config.experimental_connect_to_cluster(
                tf.train.ClusterSpec(addresses),
                job_name=config.kind,
                task_index=config.index,
                protocol="grpc",
            )
            # TensorFlow starts its server with its context, which waits until needed.
            tf.config.list_logical_devices()
        devices = worker_devices(config)
        return liveness.WorkerWatch(
            {
                devices[worker]: (config.name_of(worker), config.address_of(worker))
                for worker in range(1, config.num_workers)
            }
        )

    return join_once("the client of servers,", config, join)


def worker_devices(config: ClusterConfig) -> list[str]:
    """Device prefix of each worker, such as ``/job:worker/replica:0/task:1``."""
    return [f"/job:{kind}/replica:0/task:{index}" for kind, index in config.workers]


def replica_devices(
    workers: list[str], num_replicas: int, num_logical_devices: int = 1
) -> list[list[str]]:
    """Gives every worker an equal share of the devices that replicas need."""
    share = devices_lib.per_worker(num_replicas, len(workers), num_logical_devices)
    listed = [device.name for device in tf.config.list_logical_devices()]
    has_gpus = any(map(devices_lib.is_gpu, listed))
    counts = devices_lib.is_gpu if has_gpus else devices_lib.is_cpu
    devices: list[str] = []
    for worker_id, worker in enumerate(workers):
        mine = [
            name for name in listed if name.startswith(f"{worker}/") and counts(name)
        ]
        if len(mine) < share and (has_gpus or num_logical_devices > 1):
            kind = "CPU devices"
            help_text = f"start its server with --num-cpu-devices {share}"
            if has_gpus:
                kind = "GPUs"
                help_text = "hide the GPUs of all workers (CUDA_VISIBLE_DEVICES='')"
            raise errors.DeviceError(
                f"{share} replicas or logical devices per worker need {share} {kind} on"
                f" each, but worker {worker_id} ({worker}) has {len(mine)}; use fewer, "
                f"or {help_text}"
            )
        # Replicas may share a CPU; the parts of one replica may not.
        devices += mine[:share] if len(mine) >= share else mine[:1] * share
    return [
        devices[r * num_logical_devices : (r + 1) * num_logical_devices]
        for r in range(num_replicas)
    ]


def check_nothing_is_made() -> None:
    """Rejects variables: TensorFlow loses them when a process joins a cluster."""
    names = _tf_compat.live_variables()
    if names:
        raise errors.ClusterConfigError(
            f"{len(names)} variables exist already ({', '.join(names[:3])}) and would "
            "be lost when this process joins its cluster; create the replicator first, "
            "and models, optimizers and random generators afterwards"
        )


# Of a client of parameter servers, a lost worker can come back, because it has no state
# of its own. The variables of a lost server are lost, so the job has to restart from a
# checkpoint.


class ServerWatch(liveness.FailureDetector):
    """The client's watch over its parameter servers."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.error: errors.ServerLostError | None = None  # raised by all later calls
        self._addresses = tuple(addresses)
        self._peers = [liveness.Peer(address) for address in addresses]
        servers = {
            f"/job:ps/replica:0/task:{index}": (str(index), address)
            for index, address in enumerate(addresses)
        }
        # Ends calls that wait for one which hangs.
        super().__init__(liveness.WorkerWatch(servers), liveness.DETECTION_TIMEOUT_SEC)

    def check(self) -> None:
        """Raises the error of a server that was found to be lost."""
        if self.error is not None:
            raise self.error

    def find_lost(self) -> errors.ServerLostError | None:
        """Looks for a server whose process has exited or hangs."""
        for index, peer in enumerate(self._peers):
            if self.error is None and peer.has_ended():
                self.error = self._lost(index, "does not respond")
        if self.error is None and self._watch.lost:
            lost = self._watch.lost.values()
            name, timeout_sec = min(lost, key=lambda server: int(server[0]))
            self.error = self._lost(int(name), f"did not respond for {timeout_sec:g} s")
        return self.error

    def explain(self, error: BaseException) -> errors.ServerLostError | None:
        """The error that names the lost server which an error comes from, or None."""
        if self.error is not None:
            return self.error
        failed = _tf_compat.failed_server(error)
        if self.find_lost() is None and failed is not None:
            self.error = self._lost(failed, "was lost during a step")
        if self.error is not None:
            self.error.__cause__ = error
        return self.error

    def _lost(self, index: int, what: str) -> errors.ServerLostError:
        return errors.ServerLostError(
            f"parameter server {index} ({self._addresses[index]}) {what}, and its "
            "variables are lost; restart all servers and workers, restart the chief, "
            "and restore the last checkpoint"
        )


SERVERS_TIMEOUT_SEC = 60.0
_CLIENT_KIND = "chief"
CLIENT_DEVICE = f"/job:{_CLIENT_KIND}/replica:0/task:0/device:CPU:0"
_EXAMPLE = (
    '{"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"], '
    '"ps": ["10.0.0.3:2222"]}, "task": {"type": "chief", "index": 0}}'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Connection:
    """A client that is connected to its workers and servers."""

    cluster: ClusterConfig
    strategy: Any  # TensorFlow's, which made the connection.
    coordinator: Any  # TensorFlow's, which hands functions to workers.
    watch: ServerWatch

    @property
    def num_workers(self) -> int:
        """Workers that run steps; the client is not one of them."""
        return len(self.cluster.addresses["worker"])


def connect_to_servers(cluster: ClusterConfig | None, timeout_sec: float) -> Connection:
    """Connects this process to its workers and servers, once per process."""
    given = environment.config_of(cluster)
    counts = ", ".join(
        f"{len(hosts)} {kind!r}" for kind, hosts in given.addresses.items()
    )
    for kind, what in (("worker", "worker"), ("ps", "parameter server")):
        if not given.addresses.get(kind):
            raise errors.ClusterConfigError(
                f"TF_CONFIG has {counts}, but no {kind!r}: training with parameter "
                f"servers needs at least one {what}; write it like '{_EXAMPLE}', and "
                "run `python -m replicator.server` there"
            )
    if given.kind != _CLIENT_KIND:
        raise errors.ClusterConfigError(
            f"this process is {given.kind!r} {given.index}, but only the chief "
            "runs the training program with parameter servers (TF_CONFIG['task'] = "
            "{'type': 'chief', 'index': 0}); run `python -m replicator.server` here"
        )

    def join() -> Connection:
        served = {k: a for k, a in given.addresses.items() if k != _CLIENT_KIND}
        check_nothing_is_made()
        liveness.check_port_is_free(given.address)
        liveness.wait_for(served, timeout_sec)
        ensure_threads()
        with port_filter.guarded(given):
            strategy = tf.distribute.ParameterServerStrategy(resolver_of(given))
            tf.config.list_logical_devices()  # now its server listens for certain
        return Connection(
            cluster=given,
            strategy=strategy,
            coordinator=tf.distribute.coordinator.ClusterCoordinator(strategy),
            watch=ServerWatch(given.addresses["ps"]),
        )

    return join_once("the client of parameter servers,", given, join)


def devices_of_worker(worker: int, num_replicas: int) -> list[str]:
    """The devices of one worker's replicas: its GPUs, else its CPUs in turn."""
    prefix = f"/job:worker/replica:0/task:{worker}/device:"
    listed = [device.name for device in tf.config.list_logical_devices()]
    gpus = [name for name in listed if name.startswith(f"{prefix}GPU:")]
    cpus = [name for name in listed if name.startswith(f"{prefix}CPU:")]
    if gpus and len(gpus) < num_replicas:
        raise errors.DeviceError(
            f"worker {worker} has {len(gpus)} GPUs for {num_replicas} "
            "replicas; use fewer replicas per worker"
        )
    return [(gpus or cpus)[r % len(gpus or cpus)] for r in range(num_replicas)]


def server_devices(num_servers: int) -> tuple[str, ...]:
    """The CPU of every parameter server."""
    return tuple(
        f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(num_servers)
    )
