"""Joins the cluster: all workers start TensorFlow's servers within a timeout."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import TYPE_CHECKING

from replicator._tf import signals
from replicator._tf import workers as _tf_workers
from replicator.cluster import membership, port_filter
from replicator.cluster.configuration import split_address
from replicator.cluster.liveness import reachability
from replicator.cluster.workers.runtime import WorkerRuntime
from replicator.cluster.workers.worker_state import WorkerState
from replicator.errors import ClusterError, UnreachableError

if TYPE_CHECKING:
    from replicator.cluster.configuration import ClusterConfig

_LOG = logging.getLogger(__name__)
DEFAULT_TIMEOUT_SEC = 300.0
DEFAULT_HEARTBEAT_TIMEOUT_SEC = 10.0
# TensorFlow's server gets at least this long, however long the workers took to start.
_SHORTEST_WAIT_SEC = 5.0


def join(
    config: ClusterConfig,
    *,
    timeout_sec: float = DEFAULT_TIMEOUT_SEC,
    heartbeat_timeout_sec: float = DEFAULT_HEARTBEAT_TIMEOUT_SEC,
) -> WorkerRuntime:
    """Makes this process a worker of its cluster, together with all others."""

    def make() -> WorkerState:
        deadline = time.monotonic() + timeout_sec
        meet(config, timeout_sec)
        _start(config, deadline, heartbeat_timeout_sec)
        _LOG.info(
            "joined %d workers as worker %d", config.num_workers, config.worker_id
        )
        return WorkerState(config)

    state = membership.join_once("between-graph", config, make)
    return WorkerRuntime(state, timeout_sec)


def meet(config: ClusterConfig, timeout_sec: float) -> None:
    """Waits until every worker listens, this one included.

    TensorFlow's server also waits for the others, but without a timeout; so this
    process listens at its address itself until all workers do.
    """
    if _tf_workers.has_started():
        raise ClusterError(
            "TensorFlow has already run in this process, but a cluster must be joined "
            "before that; create the replicator first, before any tensor, variable or "
            "list of devices"
        )
    reach = port_filter.check(config)
    reachability.check_port_is_free(config.address)
    _, port = split_address(config.address)
    backlog = 2 * config.num_workers + 16
    with socket.create_server(("", port), backlog=backlog) as listener:
        port_filter.restrict(listener, reach)
        reachability.wait_for(_workers(config), timeout_sec)


def _workers(config: ClusterConfig) -> dict[str, tuple[str, ...]]:
    kinds = ("chief", "worker")
    return {k: config.addresses[k] for k in kinds if k in config.addresses}


def _start(
    config: ClusterConfig, deadline: float, heartbeat_timeout_sec: float
) -> None:
    """Starts TensorFlow's server in a thread, because its wait has no timeout."""
    failures: list[BaseException] = []

    def start() -> None:
        try:
            _tf_workers.join_workers(
                _workers(config),
                config.kind,
                config.index,
                heartbeat_timeout_sec=heartbeat_timeout_sec,
            )
        except Exception as error:  # noqa: BLE001 (raised again by the caller)
            failures.append(error)

    thread = threading.Thread(target=start, name="join-cluster", daemon=True)
    with port_filter.guarded(config), signals.kept():
        thread.start()
        thread.join(max(deadline - time.monotonic(), _SHORTEST_WAIT_SEC))
        _check_joined(thread, failures)


def _check_joined(thread: threading.Thread, failures: list[BaseException]) -> None:
    if thread.is_alive():
        raise UnreachableError(
            "all workers responded, but not all joined the cluster in time: one exited "
            "while it was starting; see its output, and start all of them again"
        )
    if failures:
        raise ClusterError(
            f"TensorFlow could not join the cluster: {failures[0]}; check TF_CONFIG on "
            "every worker, and start all of them again"
        ) from failures[0]
