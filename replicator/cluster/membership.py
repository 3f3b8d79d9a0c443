"""The cluster that this process is in, joined once, and its share of the host.

TensorFlow has one cluster per process, so what joining makes (a runtime, a watch, a
strategy) is made once, and shared by all replicators of the process.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, TypeVar, cast

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator.errors import ClusterConfigError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from replicator.cluster.configuration import ClusterConfig

_T = TypeVar("_T")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Requests of a cluster wait on these threads for locks and messages. TensorFlow starts
# one per core, and on one core nothing is left to run what they wait for.
LEAST_THREADS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Membership:
    role: str
    config: ClusterConfig
    made: Any


_JOINED: list[_Membership] = []


def join_once(role: str, config: ClusterConfig, join: Callable[[], _T]) -> _T:
    """Joins a cluster in a role; later calls return what the first one made."""
    # TensorFlow cannot leave a cluster: its context, its server and the incarnations by
    # which others know it are made once. A restarted job is a new generation of
    # processes, never a second cluster in an old one.
    for joined in _JOINED:
        if joined.role != role or _place(joined.config) != _place(config):
            raise ClusterConfigError(
                f"this process is already {_describe(joined.role, joined.config)}, "
                f"and cannot become {_describe(role, config)}; TensorFlow allows one "
                "cluster per process: start a new process"
            )
        return cast("_T", joined.made)
    made = join()
    _JOINED.append(_Membership(role=role, config=config, made=made))
    return made


def resolver_of(config: ClusterConfig) -> Any:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(
            {kind: list(addresses) for kind, addresses in config.addresses.items()}
        ),
        task_type=config.kind,
        task_id=config.index,
        rpc_layer="grpc",
    )


def _place(config: ClusterConfig) -> tuple[dict[str, tuple[str, ...]], str, int]:
    return dict(config.addresses), config.kind, config.index


def _describe(role: str, config: ClusterConfig) -> str:
    everyone = [a for of_kind in config.addresses.values() for a in of_kind]
    return f"{role} {config.kind} {config.index} of {', '.join(everyone)}"


def choose_gpus(
    num_visible: int,
    *,
    num_needed: int,
    local_worker_id: int,
    num_workers_on_host: int,
    is_limited: bool,
) -> range:
    """Returns the indices of a worker's GPUs among those that it sees.

    Workers that all see the same GPUs take them in the order of their local ranks. A
    launcher that shows every worker only its own, through ``CUDA_VISIBLE_DEVICES``, has
    already divided them.
    """
    if num_visible >= num_workers_on_host * num_needed:
        first = local_worker_id * num_needed
        return range(first, first + num_needed)
    if num_visible == num_needed and is_limited:
        return range(num_needed)
    raise DeviceError(
        f"{num_workers_on_host} workers of one host need {num_needed} GPUs each, but"
        f" worker {local_worker_id} there sees {num_visible}; start fewer workers per"
        f" host or fewer replicas, or set {_VISIBLE} for each worker to GPUs of its own"
    )


def claim_gpus(cluster: ClusterConfig, num_needed: int | None) -> None:
    """Shows TensorFlow only the GPUs that belong to this worker.

    TensorFlow takes the memory of every GPU that it sees; so this is done before it
    starts, and not only when replicas are placed. Without GPUs nothing happens.
    """
    if _tf_workers.has_started():  # joining the cluster explains it
        return
    visible = tf.config.get_visible_devices("GPU")
    if not visible or cluster.num_workers_on_host == 1:
        return
    own = choose_gpus(
        len(visible),
        num_needed=num_needed or max(1, len(visible) // cluster.num_workers_on_host),
        local_worker_id=cluster.local_worker_id,
        num_workers_on_host=cluster.num_workers_on_host,
        is_limited=_VISIBLE in os.environ,
    )
    tf.config.set_visible_devices([visible[index] for index in own], "GPU")


def needed_threads() -> int:
    """The threads between operations of a process that is part of a cluster."""
    chosen = tf.config.threading.get_inter_op_parallelism_threads()
    return max(chosen or len(os.sched_getaffinity(0)), LEAST_THREADS)


def describe_threads() -> str:
    """The threads and cores of this process, as a clause."""
    num_cores = len(os.sched_getaffinity(0))
    num_threads = tf.config.threading.get_inter_op_parallelism_threads() or num_cores
    return f"this process has {num_threads} inter-op threads and {num_cores} cores"


def ensure_threads() -> None:
    """Gives this process enough threads between operations."""
    if tf.config.threading.get_inter_op_parallelism_threads() == needed_threads():
        return
    try:
        tf.config.threading.set_inter_op_parallelism_threads(needed_threads())
    except RuntimeError:
        if len(os.sched_getaffinity(0)) < LEAST_THREADS:
            raise DeviceError(
                "TensorFlow runs already, with fewer threads than parameter servers "
                "need, so the first step might never end; create the replicator before "
                "the first tensor, or call tf.config.threading."
                f"set_inter_op_parallelism_threads({LEAST_THREADS}) at the start"
            ) from None
