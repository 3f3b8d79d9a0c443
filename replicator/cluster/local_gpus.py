"""Which GPUs of a host belong to which of the workers that share it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator.errors import DeviceError

if TYPE_CHECKING:
    from replicator.cluster.configuration import ClusterConfig

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def choose(
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

    Args:
      num_visible: GPUs that this process sees.
      num_needed: GPUs of each worker.
      local_worker_id: Index of this worker among those of the host.
      num_workers_on_host: How many they are.
      is_limited: Whether ``CUDA_VISIBLE_DEVICES`` is set.

    Raises:
      DeviceError: They are too few.
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


def claim(cluster: ClusterConfig, num_needed: int | None) -> None:
    """Shows TensorFlow only the GPUs that belong to this worker.

    TensorFlow takes the memory of every GPU that it sees; so this is done before it
    starts, and not only when replicas are placed. Without GPUs nothing happens.

    Args:
      cluster: The cluster; says which worker of its host this is.
      num_needed: GPUs of each worker; None divides those of the host equally.

    Raises:
      DeviceError: The host has too few.
    """
    if _tf_workers.has_started():  # joining the cluster explains it
        return
    visible = tf.config.get_visible_devices("GPU")
    if not visible or cluster.num_workers_on_host == 1:
        return
    own = choose(
        len(visible),
        num_needed=num_needed or max(1, len(visible) // cluster.num_workers_on_host),
        local_worker_id=cluster.local_worker_id,
        num_workers_on_host=cluster.num_workers_on_host,
        is_limited=_VISIBLE in os.environ,
    )
    tf.config.set_visible_devices([visible[index] for index in own], "GPU")
