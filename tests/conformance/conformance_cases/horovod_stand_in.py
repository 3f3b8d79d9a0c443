"""What ``replicator`` uses of ``horovod.tensorflow``, over sockets between processes.

Horovod has no build for this TensorFlow, so this module takes its place. It knows the
types that Horovod's operations are registered for, and refuses as Horovod does what
processes do not do in the same way; it demands more in that all must come in the same
order. The process of rank 0 reduces. Processes learn their rank from ``TF_CONFIG``.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import threading
import time
from multiprocessing import connection

import numpy as np
import tensorflow as tf

Average, Sum, Min, Max = 0, 1, 3, 4  # the numbers are Horovod's own

_KEY = b"horovod stand-in"
_WAIT_SEC = 60.0
_POLL_SEC = 0.05
_REDUCED = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
_MOVED = [*_REDUCED, "uint16", "int16", "bool"]


class _Job:
    rank = 0
    size = 1
    to_root = None


def init():
    """Connects this process to that of rank 0; once, like Horovod."""
    if _Job.to_root is not None:
        return
    config = json.loads(os.environ["TF_CONFIG"])
    workers = config["cluster"]["worker"]
    _Job.rank, _Job.size = config["task"]["index"], len(workers)
    host, _, port = workers[0].rpartition(":")
    if _Job.rank == 0:
        listener = connection.Listener((host, int(port)), authkey=_KEY)
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
    while _Job.to_root is None:  # the owner of the cluster bounds the wait
        with contextlib.suppress(ConnectionRefusedError):
            _Job.to_root = connection.Client((host, int(port)), authkey=_KEY)
        time.sleep(_POLL_SEC)
    _Job.to_root.send(_Job.rank)


def size():
    """Processes of the job."""
    return _Job.size


def rank():
    """Which of them this is."""
    return _Job.rank


def local_rank():
    """Which of those on this machine this is: all are here."""
    return _Job.rank


def rank_op():
    """The rank, unknown until the graph runs."""
    value = tf.numpy_function(lambda: np.int32(_Job.rank), [], tf.int32)
    value.set_shape([])
    return value


def allreduce(tensor, *, op, name):
    """Reduces over all processes."""
    return _call("allreduce", tensor, op, name, _REDUCED, tensor.shape)


def allgather(tensor, *, name):
    """Concatenates along the first dimension."""
    shape = [None, *tensor.shape[1:]]
    return _call("allgather", tensor, None, name, _MOVED, shape)


def broadcast(tensor, root_rank, *, name):
    """Gives all processes the tensor of one."""
    return _call("broadcast", tensor, root_rank, name, _MOVED, tensor.shape)


def allgather_object(value, *, name):
    """Collects one object of each process."""
    payload = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = _exchange("allgather", None, f"{name}.size", np.array([len(payload)]))
    joined = _exchange("allgather", None, f"{name}.bytes", payload)
    ends = np.cumsum(sizes)
    return [
        pickle.loads(joined[end - length : end].tobytes())
        for length, end in zip(sizes, ends, strict=True)
    ]


def _call(kind, tensor, parameter, name, allowed, shape):
    """An operation without a gradient, in program order; works eagerly too."""
    if tensor.dtype.name not in allowed:
        raise TypeError(f"Horovod's {kind} has no kernel for {tensor.dtype.name}")
    result = tf.numpy_function(
        lambda array: _exchange(kind, parameter, name, array), [tensor], tensor.dtype
    )
    result.set_shape(shape)
    return result


def _exchange(kind, parameter, name, array):
    array = np.asarray(array)
    _Job.to_root.send((kind, parameter, name, array))
    error, result = _Job.to_root.recv()
    if error:
        raise RuntimeError(error)
    return result


def _serve(listener):
    peers = [listener.accept() for _ in range(_Job.size)]
    peers.sort(key=lambda peer: peer.recv())
    while True:
        try:
            requests = [_receive(peer) for peer in peers]
        except EOFError:
            return  # a process ended
        try:
            answer = None, _combine(requests)
        except ValueError as error:
            answer = str(error), None
        for peer in peers:
            peer.send(answer)


def _receive(peer):
    return peer.recv() if peer.poll(_WAIT_SEC) else ("nothing", None, "", np.zeros(0))


def _combine(requests):
    """What Horovod's operation gives, or the mismatch that it reports."""
    kind, parameter, name, first = requests[0]
    arrays = [request[3] for request in requests]
    is_gather = kind == "allgather"
    for other_kind, other_parameter, other_name, array in requests[1:]:
        shapes = [a.shape[1:] if is_gather else a.shape for a in (first, array)]
        ours = kind, parameter, name, first.dtype, shapes[0]
        theirs = other_kind, other_parameter, other_name, array.dtype, shapes[1]
        if ours != theirs:
            raise ValueError(f"Mismatched operations: {ours} and {theirs}")
    if is_gather:
        return np.concatenate(arrays)
    if kind == "broadcast":
        return arrays[parameter]
    with np.errstate(over="ignore"):
        if parameter in (Sum, Average):
            total = np.sum(arrays, axis=0, dtype=first.dtype)
            return (
                total
                if parameter == Sum
                else np.divide(total, first.dtype.type(_Job.size))
            )
    extreme = np.min if parameter == Min else np.max
    return extreme(arrays, axis=0)
