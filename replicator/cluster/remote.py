"""Remote devices: makes this process the client of a cluster of TensorFlow servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.cluster import membership, port_filter
from replicator.cluster.liveness import reachability
from replicator.cluster.liveness.watch import WorkerWatch
from replicator.errors import ClusterConfigError, DeviceError, UnreachableError
from replicator.placement import devices as device_lib
from replicator.placement.topology import per_worker

if TYPE_CHECKING:
    from replicator.cluster.configuration import ClusterConfig

CONNECT_TIMEOUT_SEC = 120.0
_TRAINING_KINDS = ("chief", "worker")


def connect(config: ClusterConfig, timeout_sec: float) -> WorkerWatch:
    """Makes this process the client of the cluster's servers, once."""
    _check_client(config)
    return membership.join_once(
        "the client of servers,", config, lambda: _connect(config, timeout_sec)
    )


def worker_devices(config: ClusterConfig) -> list[str]:
    """Device prefix of each worker, such as ``/job:worker/replica:0/task:1``."""
    return [f"/job:{kind}/replica:0/task:{index}" for kind, index in config.workers]


def replica_devices(
    workers: list[str], num_replicas: int, num_logical_devices: int = 1
) -> list[list[str]]:
    """Gives every worker an equal share of the devices that replicas need."""
    share = per_worker(num_replicas, len(workers), num_logical_devices)
    listed = [device.name for device in tf.config.list_logical_devices()]
    has_gpus = any(map(device_lib.is_gpu, listed))
    devices: list[str] = []
    for worker_id, worker in enumerate(workers):
        mine = [
            name
            for name in listed
            if name.startswith(f"{worker}/")
            and (device_lib.is_gpu(name) if has_gpus else device_lib.is_cpu(name))
        ]
        if len(mine) < share and (has_gpus or num_logical_devices > 1):
            raise DeviceError(_too_few(worker_id, worker, mine, share, has_gpus))
        # Replicas may share a CPU; the parts of one replica may not.
        devices += mine[:share] if len(mine) >= share else mine[:1] * share
    return [
        devices[r * num_logical_devices : (r + 1) * num_logical_devices]
        for r in range(num_replicas)
    ]


def _too_few(
    worker_id: int, worker: str, mine: list[str], share: int, has_gpus: bool
) -> str:
    kind, help_text = (
        ("GPUs", "hide the GPUs of all workers (CUDA_VISIBLE_DEVICES='')")
        if has_gpus
        else ("CPU devices", f"start its server with --num-cpu-devices {share}")
    )
    return (
        f"{share} replicas or logical devices per worker need {share} {kind} on each, "
        f"but worker {worker_id} ({worker}) has {len(mine)}; use fewer, or {help_text}"
    )


def _check_client(config: ClusterConfig) -> None:
    if not config.is_chief:
        raise ClusterConfigError(
            f"this process is {config.kind} {config.index}, but with "
            f"pattern='in_graph' only {config.name_of(0)} runs the training program; "
            "run `python -m replicator.server` here, with the same TF_CONFIG"
        )


def _connect(config: ClusterConfig, timeout_sec: float) -> WorkerWatch:
    addresses = {
        kind: of_kind
        for kind, of_kind in config.addresses.items()
        if kind in _TRAINING_KINDS
    }
    check_nothing_is_made()
    reachability.check_port_is_free(config.address)
    try:
        reachability.wait_for(addresses, timeout_sec, own=config.address)
    except UnreachableError as error:
        raise UnreachableError(
            f"{error}; every worker except 0 runs `python -m replicator.server`"
        ) from None
    with port_filter.guarded(config):
        _tf_compat.connect_to_cluster(addresses, config.kind, config.index)
    servers = list(enumerate(worker_devices(config)))[1:]
    return WorkerWatch(
        {
            device: (config.name_of(worker_id), config.address_of(worker_id))
            for worker_id, device in servers
        }
    )


def check_nothing_is_made() -> None:
    """Rejects variables: TensorFlow loses them when a process joins a cluster."""
    names = _tf_compat.live_variables()
    if names:
        raise ClusterConfigError(
            f"{len(names)} variables exist already ({', '.join(names[:3])}) and would "
            "be lost when this process joins its cluster; create the replicator first, "
            "and models, optimizers and random generators afterwards"
        )
