"""Connection: the client's side of a cluster with parameter servers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.cluster import environment, liveness, membership, port_filter
from replicator.cluster.liveness import (
    DETECTION_TIMEOUT_SEC,
    FailureDetector,
    Peer,
    WorkerWatch,
)
from replicator.errors import ClusterConfigError, DeviceError, ServerLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.cluster.configuration import ClusterConfig


# A lost worker can come back, because it has no state of its own. The variables of a
# lost parameter server are lost, so the job has to restart from a checkpoint.


class ServerWatch(FailureDetector):
    """The client's watch over its parameter servers."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.error: ServerLostError | None = None  # raised by all later calls
        self._addresses = tuple(addresses)
        self._peers = [Peer(address) for address in addresses]
        servers = {
            f"/job:ps/replica:0/task:{index}": (str(index), address)
            for index, address in enumerate(addresses)
        }
        # Ends calls that wait for one which hangs.
        super().__init__(WorkerWatch(servers), DETECTION_TIMEOUT_SEC)

    def check(self) -> None:
        """Raises the error of a server that was found to be lost."""
        if self.error is not None:
            raise self.error

    def find_lost(self) -> ServerLostError | None:
        """Looks for a server whose process has exited or hangs."""
        for index, peer in enumerate(self._peers):
            if self.error is None and peer.has_ended():
                self.error = self._lost(index, "does not respond")
        if self.error is None and self._watch.lost:
            lost = self._watch.lost.values()
            name, timeout_sec = min(lost, key=lambda server: int(server[0]))
            self.error = self._lost(int(name), f"did not respond for {timeout_sec:g} s")
        return self.error

    def explain(self, error: BaseException) -> ServerLostError | None:
        """The error that names the lost server which an error comes from, or None."""
        if self.error is not None:
            return self.error
        failed = _tf_compat.failed_server(error)
        if self.find_lost() is None and failed is not None:
            self.error = self._lost(failed, "was lost during a step")
        if self.error is not None:
            self.error.__cause__ = error
        return self.error

    def _lost(self, index: int, what: str) -> ServerLostError:
        return ServerLostError(
            f"parameter server {index} ({self._addresses[index]}) {what}, and its "
            "variables are lost; restart all servers and workers, restart the chief, "
            "and restore the last checkpoint"
        )


CONNECT_TIMEOUT_SEC = 60.0
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


def connect(
    cluster: ClusterConfig | None = None,
    timeout_sec: float = CONNECT_TIMEOUT_SEC,
) -> Connection:
    """Connects this process to its workers and servers, once per process."""
    given = environment.config_of(cluster)
    counts = ", ".join(
        f"{len(hosts)} {kind!r}" for kind, hosts in given.addresses.items()
    )
    for kind, what in (("worker", "worker"), ("ps", "parameter server")):
        if not given.addresses.get(kind):
            raise ClusterConfigError(
                f"TF_CONFIG has {counts}, but no {kind!r}: training with parameter "
                f"servers needs at least one {what}; write it like '{_EXAMPLE}', and "
                "run `python -m replicator.server` there"
            )
    if given.kind != _CLIENT_KIND:
        raise ClusterConfigError(
            f"this process is {given.kind!r} {given.index}, but only the chief "
            "runs the training program with parameter servers (TF_CONFIG['task'] = "
            "{'type': 'chief', 'index': 0}); run `python -m replicator.server` here"
        )
    return membership.join_once(
        "the client of parameter servers,", given, lambda: _connect(given, timeout_sec)
    )


def _connect(cluster: ClusterConfig, timeout_sec: float) -> Connection:
    served = {k: a for k, a in cluster.addresses.items() if k != _CLIENT_KIND}
    membership.check_nothing_is_made()
    liveness.check_port_is_free(cluster.address)
    liveness.wait_for(served, timeout_sec)
    membership.ensure_threads()
    with port_filter.guarded(cluster):
        strategy = tf.distribute.ParameterServerStrategy(
            membership.resolver_of(cluster)
        )
        tf.config.list_logical_devices()  # now TensorFlow's server listens for certain
    return Connection(
        cluster=cluster,
        strategy=strategy,
        coordinator=tf.distribute.coordinator.ClusterCoordinator(strategy),
        watch=ServerWatch(cluster.addresses["ps"]),
    )


def worker_devices(worker: int, num_replicas: int) -> list[str]:
    """The devices of one worker's replicas: its GPUs, else its CPUs in turn."""
    prefix = f"/job:worker/replica:0/task:{worker}/device:"
    listed = [device.name for device in tf.config.list_logical_devices()]
    gpus = [name for name in listed if name.startswith(f"{prefix}GPU:")]
    cpus = [name for name in listed if name.startswith(f"{prefix}CPU:")]
    if gpus and len(gpus) < num_replicas:
        raise DeviceError(
            f"worker {worker} has {len(gpus)} GPUs for {num_replicas} "
            "replicas; use fewer replicas per worker"
        )
    return [(gpus or cpus)[r % len(gpus or cpus)] for r in range(num_replicas)]


def server_devices(num_servers: int) -> tuple[str, ...]:
    """The CPU of every parameter server."""
    return tuple(
        f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(num_servers)
    )
