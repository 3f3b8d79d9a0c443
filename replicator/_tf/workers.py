"""Private names of TensorFlow about clusters of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.core.framework.device_attributes_pb2 import DeviceAttributes
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context as eager_context

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def has_started() -> bool:
    """Whether TensorFlow has made its devices, so that no cluster can be joined."""
    return eager_context.context()._context_handle is not None  # noqa: SLF001


def own_address() -> tuple[str, int]:
    """Kind and index of this process in its cluster (test_between_graph)."""
    server = eager_context.context()._collective_ops_server_def  # noqa: SLF001
    if server is None:
        return "localhost", 0
    return str(server.job_name), int(server.task_index)


def join_workers(
    addresses: Mapping[str, Sequence[str]],
    kind: str,
    index: int,
    *,
    heartbeat_timeout_sec: float,
) -> None:
    """Starts this worker's server, with collective ops and the coordination service.

    Blocks until all workers have come (test_between_graph).
    """
    context = eager_context.context()
    first = "chief" if "chief" in addresses else "worker"
    leader = f"/job:{first}/replica:0/task:0"
    context.configure_collective_ops(
        collective_leader=leader, device_filters=(f"/job:{kind}/task:{index}",)
    )
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=leader,
        heartbeat_timeout_in_ms=int(heartbeat_timeout_sec * 1000),
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=name, num_tasks=len(of_kind))
            for name, of_kind in addresses.items()
        ],
    )
    cluster = {name: list(of_kind) for name, of_kind in addresses.items()}
    context.enable_collective_ops(
        tensorflow_server_pb2.ServerDef(
            cluster=tf.train.ClusterSpec(cluster).as_cluster_def(),
            default_session_config=context.config,
            job_name=kind,
            task_index=index,
            protocol="grpc",
        )
    )
    context.ensure_initialized()


def put_value(key: str, value: str) -> None:
    """Puts a value for all workers to read (test_between_graph)."""
    eager_context.context().set_config_key_value(key, value)


def get_value(key: str, timeout_sec: float) -> str:
    """Reads a value that a worker has put, waiting for it (test_between_graph)."""
    wait = max(int(timeout_sec * 1000), 1)
    return str(eager_context.context().get_config_key_value(key, wait))


def delete_value(key: str) -> None:
    """Deletes a value (test_between_graph)."""
    eager_context.context().delete_config_key_value(key)


def check_peer(kind: str, index: int, timeout_sec: float) -> None:
    """Asks another worker whether it is well (test_faults)."""
    eager_context.context().check_collective_ops_peer_health(
        f"/job:{kind}/replica:0/task:{index}", int(timeout_sec * 1000)
    )


def abort_collectives(message: str) -> None:
    """Ends this process's collectives, now and later, with an error (test_faults).

    Workers that wait for this one in a collective get the error too.
    """
    eager_context.context().abort_collective_ops(tf.errors.ABORTED, message)


def incarnations(status: bytes) -> frozenset[int]:
    """The numbers of a process in its ``GetStatusResponse``; none if malformed."""
    try:
        # The devices are its field 1, repeated, which is what a BytesList has.
        devices = tf.train.BytesList.FromString(status).value
        found = [DeviceAttributes.FromString(device).incarnation for device in devices]
    except DecodeError:
        return frozenset()
    return frozenset(found) - {0}
