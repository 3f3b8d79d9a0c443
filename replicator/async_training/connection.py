"""Connection: the client's side of a cluster with parameter servers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.async_training.faults import ServerWatch
from replicator.cluster import environment, membership, port_filter, remote
from replicator.cluster.liveness import reachability
from replicator.errors import ClusterConfigError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replicator.cluster.configuration import ClusterConfig

CONNECT_TIMEOUT_SEC = 60.0
_CLIENT_KIND = "chief"
_EXAMPLE = (
    '{"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"], '
    '"ps": ["10.0.0.3:2222"]}, "task": {"type": "chief", "index": 0}}'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Connection:
    """A client that is connected to its workers and servers."""

    cluster: ClusterConfig  # Who takes part.
    strategy: Any  # TensorFlow's strategy, which made the connection.
    coordinator: Any  # TensorFlow's coordinator, which hands functions to workers.
    watch: ServerWatch  # Over the parameter servers.

    @property
    def num_workers(self) -> int:
        """Workers that run steps; the client is not one of them."""
        return len(self.cluster.addresses["worker"])

    @property
    def num_servers(self) -> int:
        """Parameter servers."""
        return len(self.cluster.addresses["ps"])


def check_cluster(cluster: ClusterConfig) -> ClusterConfig:
    """Returns a cluster that can train over parameter servers."""
    for kind, what in (("worker", "worker"), ("ps", "parameter server")):
        if not cluster.addresses.get(kind):
            raise ClusterConfigError(
                f"TF_CONFIG has {_counts(cluster.addresses)}, but no {kind!r}: "
                f"training with parameter servers needs at least one {what}; write it "
                f"like '{_EXAMPLE}', and run `python -m replicator.server` there"
            )
    if cluster.kind != _CLIENT_KIND:
        raise ClusterConfigError(
            f"this process is {cluster.kind!r} {cluster.index}, but only the chief "
            "runs the training program with parameter servers (TF_CONFIG['task'] = "
            "{'type': 'chief', 'index': 0}); run `python -m replicator.server` here"
        )
    return cluster


def check_stock(num_replicas: Any, share: int, num_workers: int) -> None:
    """Rejects a number of replicas that the stock strategy does not have."""
    if num_replicas not in (None, share * num_workers):
        raise DeviceError(
            f"num_replicas {num_replicas!r} does not work: ParameterServerStrategy has "
            f"{share} per worker (one per GPU, or one without) on {num_workers} "
            f"workers; use {share * num_workers}"
        )


def connect(
    cluster: ClusterConfig | None = None,
    timeout_sec: float = CONNECT_TIMEOUT_SEC,
) -> Connection:
    """Connects this process to its workers and servers, once per process."""
    cluster = check_cluster(environment.config_of(cluster))
    return membership.join_once(
        "the client of parameter servers,",
        cluster,
        lambda: _connect(cluster, timeout_sec),
    )


def _connect(cluster: ClusterConfig, timeout_sec: float) -> Connection:
    served = {k: a for k, a in cluster.addresses.items() if k != _CLIENT_KIND}
    remote.check_nothing_is_made()
    reachability.check_port_is_free(cluster.address)
    reachability.wait_for(served, timeout_sec)
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
    names: dict[str, list[str]] = {"GPU": [], "CPU": []}
    for device in tf.config.list_logical_devices():
        spec = tf.DeviceSpec.from_string(device.name)
        if (spec.job, spec.task) == ("worker", worker):
            names.setdefault(str(spec.device_type), []).append(device.name)
    if names["GPU"]:
        if len(names["GPU"]) < num_replicas:
            raise DeviceError(
                f"worker {worker} has {len(names['GPU'])} GPUs for {num_replicas} "
                "replicas; use fewer replicas per worker"
            )
        return names["GPU"][:num_replicas]
    return [names["CPU"][r % len(names["CPU"])] for r in range(num_replicas)]


def client_device() -> str:
    """The CPU of this process."""
    return f"/job:{_CLIENT_KIND}/replica:0/task:0/device:CPU:0"


def _counts(addresses: Mapping[str, Any]) -> str:
    return ", ".join(f"{len(of_kind)} {kind!r}" for kind, of_kind in addresses.items())
