"""Private names of TensorFlow about clusters of workers."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, TypeVar

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.core.framework.device_attributes_pb2 import DeviceAttributes
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.distribute import values as values_lib
from tensorflow.python.eager import context as eager_context

_T = TypeVar("_T")


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
    """Starts this worker's server, with collective ops and the coordination service."""
    # Blocks until all workers have come (test_between_graph).
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
    context.enable_collective_ops(
        tensorflow_server_pb2.ServerDef(
            cluster=tf.train.ClusterSpec(dict(addresses)).as_cluster_def(),
            default_session_config=context.config,
            job_name=kind,
            task_index=index,
            protocol="grpc",
        )
    )
    context.ensure_initialized()


def put_value(key: str, value: str, timeout_sec: float) -> None:
    """Puts a value for all workers to read (test_between_graph)."""
    context = eager_context.context()
    _within(timeout_sec, lambda: context.set_config_key_value(key, value))


def get_value(key: str, timeout_sec: float) -> str:
    """Reads a value that a worker has put, waiting for it (test_between_graph)."""
    wait = max(int(timeout_sec * 1000), 1)
    return str(eager_context.context().get_config_key_value(key, wait))


def delete_value(key: str, timeout_sec: float) -> None:
    """Deletes a value (test_between_graph)."""
    context = eager_context.context()
    _within(timeout_sec, lambda: context.delete_config_key_value(key))


def in_thread(call: Callable[[], _T]) -> futures.Future[_T]:
    """Starts a call in which TensorFlow may wait forever."""
    result: futures.Future[_T] = futures.Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 (whoever waits raises it)
            result.set_exception(error)

    threading.Thread(target=run, name="may-wait-forever", daemon=True).start()
    return result


def _within(timeout_sec: float, ask: Callable[[], None]) -> None:
    """Asks the first worker, which may hang."""
    try:
        in_thread(ask).result(timeout_sec)
    except futures.TimeoutError:
        what = f"the first worker did not answer within {timeout_sec:g} s"
        raise tf.errors.DeadlineExceededError(None, None, what) from None


def check_peer(kind: str, index: int, timeout_sec: float) -> None:
    """Asks another worker whether it is well (test_faults)."""
    eager_context.context().check_collective_ops_peer_health(
        f"/job:{kind}/replica:0/task:{index}", int(timeout_sec * 1000)
    )


def abort_collectives(message: str) -> None:
    """Ends this process's collectives, now and later, with an error (test_faults)."""
    # Workers that wait for this one in a collective get the error too.
    eager_context.context().abort_collective_ops(tf.errors.ABORTED, message)


def incarnations(status: bytes) -> frozenset[int]:
    """The numbers of a process in its ``GetStatusResponse``; none if malformed."""
    try:
        # The devices are its field 1, repeated, which is what a BytesList has.
        devices = tf.train.BytesList.FromString(status).value
        numbers = [
            DeviceAttributes.FromString(device).incarnation for device in devices
        ]
    except DecodeError:
        return frozenset()
    return frozenset(numbers) - {0}


# What TensorFlow attaches to a failure that it passes on from elsewhere, such as that
# of a collective which ended because another worker failed (test_between_graph).
DERIVED = b"type.googleapis.com/tensorflow.DerivedStatus"

# Lines in which the error of a graph says where it arose, and how often
# (test_between_graph).
_PLACES = re.compile(
    r'Graph execution error:|Detected at node|<stack traces|File "|\d+ root error'
)
# What AutoGraph and Keras add to an error while a function is traced.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_START = re.compile(r"[A-Za-z_.]*(Error|Exception): ")
# What it puts in front of each.
_ROOT = re.compile(r"\(\d+\) [A-Z_]+: +")


def is_derived(error: tf.errors.OpError) -> bool:
    """Whether an error follows from another one, whatever its status code."""
    return DERIVED in (error.experimental_payloads or {})


def reason_of(error: BaseException) -> str:
    """The first line of an error's message that says something."""
    # Leaves out the name of the node (``{{node ...}} ``) and of the eager op, and the
    # lines of the program that a graph adds in front.
    message = str(getattr(error, "message", None) or error)
    lines = [line.strip() for line in message.splitlines()]
    said = "\n".join(line for line in lines if not _PLACES.match(line))
    line = _ROOT.sub("", first_line(said), count=1) or type(error).__name__
    return line.rpartition("}} ")[2].partition(" [Op:")[0]


def trace_reason_of(error: Exception) -> str:
    """The line that says why a trace failed, without what AutoGraph and Keras add."""
    text = _COLOURS.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if _START.match(line)]
    lines = lines[starts[-1] :] if starts else lines
    lines = [line for line in lines if "Exception encountered" not in line]
    return _START.sub("", lines[0]) if lines else type(error).__name__


def first_line(text: str) -> str:
    """The first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


# Its coordination service catches SIGTERM, in order to tell all workers of a preemption
# that nobody reads here: the signal would end nothing, neither a worker that an engine
# cancels nor one whose program has a handler of its own.


@contextlib.contextmanager
def kept_sigterm() -> Iterator[None]:
    """Restores what SIGTERM does when the block ends (test_conformance)."""
    # Python lets only the main thread do that; in others nothing is restored.
    try:
        yield
    finally:
        # What the program has set, which TensorFlow does not tell Python of.
        handler = signal.getsignal(signal.SIGTERM)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)


# A strategy and Keras reduce by three private methods of its ``extended``. Here they
# return what a reduction would if all replicas held the same value: the own value for a
# mean, R times the own value for a sum.


def remove_communication(strategy: Any) -> None:
    """Makes all reductions of a mirrored strategy local, for good."""
    extended, count = strategy.extended, strategy.num_replicas_in_sync

    def reduce_to(op: Any, value: Any, destinations: Any, options: Any) -> Any:
        del destinations, options
        return tf.nest.map_structure(lambda leaf: _local_value(leaf, op, count), value)

    def batch_reduce_to(op: Any, pairs: Any, options: Any) -> list[Any]:
        return [reduce_to(op, value, None, options) for value, _ in pairs]

    def replica_ctx_all_reduce(op: Any, value: Any, options: Any = None) -> Any:
        return reduce_to(op, value, None, options)

    extended._reduce_to = reduce_to  # noqa: SLF001 (see the top of this file)
    extended._batch_reduce_to = batch_reduce_to  # noqa: SLF001
    extended._replica_ctx_all_reduce = replica_ctx_all_reduce  # noqa: SLF001


def _local_value(value: Any, op: Any, count: int) -> Any:
    """What the reduction of a value is if all replicas have the same one."""
    # Rows of ``tf.IndexedSlices`` are joined, so there are R times as many.
    is_sum = op == tf.distribute.ReduceOp.SUM
    if isinstance(value, values_lib.DistributedValues):
        if isinstance(value, values_lib.Mirrored) and not is_sum:
            return value
        return values_lib.Mirrored([_local_value(v, op, count) for v in value.values])
    if not isinstance(value, tf.IndexedSlices):
        value = tf.convert_to_tensor(value)
        return value * tf.cast(count, value.dtype) if is_sum else value
    own = value.values if is_sum else value.values / tf.cast(count, value.values.dtype)
    return tf.IndexedSlices(
        values=tf.concat([own] * count, axis=0),
        indices=tf.concat([value.indices] * count, axis=0),
        dense_shape=value.dense_shape,
    )
