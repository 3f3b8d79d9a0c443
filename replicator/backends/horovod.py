"""Horovod behind the replicator contract (Sergeev and Del Balso 2018).

A peer for comparison: each process has one replica and one GPU, as ``horovodrun`` or
``mpirun`` started it; its step is one ``tf.function``; Horovod's own operations join
the processes and fuse what is small. ``wrap_optimizer`` averages the gradients where
``horovod.tensorflow.DistributedOptimizer`` does, once and before the update.

Written against Horovod 0.28's documented interface. What differs from it, and why:

- gradients of collectives are those of ``collectives/primitives.py``: Horovod averages
  in the gradient of a gather and of a broadcast, where the paper and TensorFlow sum;
- the replica id is ``rank_op()``: its other operations count as stateless, so that
  TensorFlow may run one of them once, as a constant, where its operand is one. A
  constant rank would make an operand constant on some processes only.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import tensorflow as tf

from replicator.backends.between_graph import BetweenGraphReplicator
from replicator.backends.single import SingleDeviceReplicator
from replicator.catalog import BACKENDS
from replicator.cluster import exchange as worker_sync
from replicator.collectives import wire_types
from replicator.collectives.wire_types import Wire
from replicator.errors import (
    BackendNotInstalledError,
    DeviceError,
    OptimizerOptionError,
)
from replicator.step import context, logical
from replicator.step.context import wire_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from replicator.optimizer.options import OptimizerOptions
    from replicator.optimizer.wrapper import ReplicatedOptimizer

_OPS = {"sum": "Sum", "mean": "Average", "min": "Min", "max": "Max"}


class HorovodReplicaContext(context.ReplicaContext):
    """Collectives by Horovod's operations, each with a name that all processes share.

    Horovod matches the operations of processes by name; those that it makes up follow
    the tensors' names.
    """

    def __init__(self, hvd: ModuleType) -> None:
        self._hvd = hvd
        self._num_named = 0
        self.num_replicas = self.num_replicas_in_sync = hvd.size()

    @property
    def replica_id(self) -> tf.Tensor:
        """The rank of the process that runs the step, int32."""
        return tf.cast(self._hvd.rank_op(), tf.int32)

    def all_reduce(self, tensors: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        """Reduces by ``allreduce``."""
        return [self._all_reduce(tensor, op, None) for tensor in tensors]

    def compressed_all_reduce(
        self, tensors: Sequence[tf.Tensor], op: str, wire_dtype: tf.DType
    ) -> list[tf.Tensor]:
        """Reduces by ``allreduce`` in float16.

        Raises:
          OptimizerOptionError: Another ``wire_dtype``.
        """
        if wire_dtype != tf.float16:
            _refuse_compression(wire_dtype.name)
        return [self._all_reduce(tensor, op, wire_dtype) for tensor in tensors]

    def _all_reduce(
        self, tensor: tf.Tensor, op: str, wire_dtype: tf.DType | None
    ) -> tf.Tensor:
        dtype = tensor.dtype
        if op in ("min", "max") and dtype == tf.uint64:
            # Flipping the highest bit makes the order of unsigned that of signed.
            signed = _flip(tf.bitcast(tensor, tf.int64))
            return tf.bitcast(_flip(self._all_reduce(signed, op, None)), dtype)
        wire = wire_types.added(dtype)
        narrow = tf.float32 if dtype == tf.bfloat16 else wire_of(dtype, wire_dtype)
        if narrow != dtype:
            wire = Wire("Cast", narrow)
        reduced = self._hvd.allreduce(
            wire.convert(tensor),
            op=getattr(self._hvd, _OPS[op]),
            name=self._name(op),
        )
        return wire.restore(reduced, dtype)

    def all_gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenates by ``allgather``, in the order of ranks."""
        return [self._all_gather(tensor) for tensor in tensors]

    def _all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        stacked = self._all_concat(tf.expand_dims(tensor, 0))
        shape = tf.TensorShape([self.num_replicas]).concatenate(tensor.shape)
        return tf.ensure_shape(stacked, shape)

    def all_concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenates by ``allgather``, which takes any number of rows."""
        return [self._all_concat(tensor) for tensor in tensors]

    def _all_concat(self, tensor: tf.Tensor) -> tf.Tensor:
        wire = wire_types.moved(tensor.dtype, "all_gather")
        sent = wire.convert(tensor)
        gathered = self._hvd.allgather(sent, name=self._name("gather"))
        return wire.restore(gathered, tensor.dtype)

    def broadcast(
        self, tensors: Sequence[tf.Tensor], source_replica_id: int
    ) -> list[tf.Tensor]:
        """Sends the tensors of one rank by ``broadcast``."""
        return [self._broadcast(tensor, source_replica_id) for tensor in tensors]

    def _broadcast(self, tensor: tf.Tensor, source: int) -> tf.Tensor:
        wire = wire_types.moved(tensor.dtype, "broadcast")
        received = self._hvd.broadcast(
            wire.convert(tensor), source, name=self._name("broadcast")
        )
        return wire.restore(received, tensor.dtype)

    def logical_device(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Only device 0: a process has one."""
        logical.check_index(index, self.num_logical_devices)
        return contextlib.nullcontext()

    def _name(self, kind: str) -> str:
        """The same on all processes, since all trace the same collectives in order."""
        self._num_named += 1
        return f"replicator_{self._num_named}_{kind}"


class _Peers:
    """The other processes, reached by Horovod's exchange of objects."""

    def __init__(self, hvd: ModuleType) -> None:
        self._hvd = hvd

    def exchange(self, what: str, text: str) -> list[str]:
        """Gives a text to all processes and gets theirs; see ``worker_sync.Peers``."""
        message = json.dumps({"what": what, "text": text})
        answers = [
            json.loads(answer)
            for answer in self._hvd.allgather_object(message, name="replicator_text")
        ]
        worker_sync.check_same_place(self, [answer["what"] for answer in answers])
        return [answer["text"] for answer in answers]

    def name_of(self, worker_id: int) -> str:
        """What to call a process in messages."""
        return f"rank {worker_id}"


class HorovodReplicator(BetweenGraphReplicator, SingleDeviceReplicator):
    """Horovod, the peer in which every process has one replica (``horovod``).

    Variables start with the values of rank 0. Every process keeps its own afterwards,
    and outside steps reads its own; seeds are the program's business.
    """

    def __init__(self, *, num_replicas: int | None = None) -> None:
        """Joins the other processes.

        Args:
          num_replicas: Processes of the job; None takes what the launcher started.

        Raises:
          BackendNotInstalledError: Horovod cannot be imported.
          DeviceError: The launcher started another number of processes, or this
            machine has GPUs and fewer than processes.
        """
        self._hvd = _import_horovod()
        self._hvd.init()
        size = self._hvd.size()
        if num_replicas not in (None, size):
            raise DeviceError(
                f"num_replicas={num_replicas!r} does not fit: the launcher started "
                f"{size} processes of one replica each; start {num_replicas} "
                f"(horovodrun -np {num_replicas} python ...), or leave num_replicas out"
            )
        _take_own_gpu(self._hvd.local_rank())
        super().__init__()
        self.num_replicas = self.num_workers = size
        self.worker_id = self.first_replica_id = self._hvd.rank()
        self._numbered: list[weakref.ref[tf.Variable]] = []

    @property
    def num_local_replicas(self) -> int:
        """One: a process is a replica."""
        return 1

    @functools.cached_property
    def _peers(self) -> _Peers:
        return _Peers(self._hvd)

    def _numbered_mirrored(self) -> Iterator[tuple[int, Any]]:
        for number, known in enumerate(self._numbered):
            variable = known()
            if variable is not None and variable.trainable:
                yield number, variable

    def _replica_context(self) -> HorovodReplicaContext:
        return HorovodReplicaContext(self._hvd)

    def _prepare(self, variables: Sequence[tf.Variable]) -> None:
        """Gives variables that are new here the values of rank 0."""
        known = {id(variable()) for variable in self._numbered}
        sender = self._replica_context()
        for variable in variables:
            if id(variable) not in known:
                self._numbered.append(weakref.ref(variable))
                variable.assign(sender.broadcast([variable.read_value()], 0)[0])

    def _wrap_optimizer(
        self, optimizer: Any, options: OptimizerOptions
    ) -> ReplicatedOptimizer:
        """Averages by Horovod; see ``Replicator.wrap_optimizer``.

        Raises:
          OptimizerOptionError: An option that Horovod has not.
        """
        options.refuse("horovod", type(self).__name__)
        if options.compression == "bfloat16":
            _refuse_compression("bfloat16")
        return super()._wrap_optimizer(optimizer, options)

    def explain(self) -> str:
        """Says where Horovod shows what it does."""
        return (
            f"Horovod, rank {self.worker_id} of {self.num_replicas}: it fuses and "
            "orders its collectives while it runs; HOROVOD_TIMELINE=file.json "
            "records them"
        )


def _import_horovod() -> ModuleType:
    """Imports Horovod, which nothing else here needs.

    Raises:
      BackendNotInstalledError: It is not there, or was built for another TensorFlow.
    """
    try:
        return importlib.import_module("horovod.tensorflow")
    except Exception as error:  # its native part fails in many ways
        raise BackendNotInstalledError(
            f"backend 'horovod' needs Horovod built for TensorFlow {tf.__version__}, "
            f"but importing horovod.tensorflow failed ({type(error).__name__}: "
            f"{error}); install it with HOROVOD_WITH_TENSORFLOW=1 pip install "
            "--no-cache-dir --no-build-isolation horovod (release 0.28.1 does not "
            "compile against TensorFlow 2.21: a later source must), or use the "
            "multi_worker backend"
        ) from error


def _take_own_gpu(local_rank: int) -> None:
    """Leaves this process the GPU of its rank on the machine, if there are GPUs.

    Raises:
      DeviceError: There are fewer GPUs than processes, or TensorFlow has them already.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    if local_rank >= len(gpus):
        raise DeviceError(
            f"local rank {local_rank} has no GPU: this machine has {len(gpus)}, and "
            f"each process takes one; start at most {len(gpus)} processes here"
        )
    try:
        tf.config.set_visible_devices(gpus[local_rank], "GPU")
        tf.config.experimental.set_memory_growth(gpus[local_rank], enable=True)
    except RuntimeError as error:
        raise DeviceError(
            "TensorFlow has already taken all GPUs of this machine; make the "
            "HorovodReplicator first, before any tensor, variable or list of devices"
        ) from error


def _flip(signed: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(signed, tf.int64.min)


def _refuse_compression(name: str) -> NoReturn:
    reason = BACKENDS["horovod"].lacks["gradient_compression"]
    raise OptimizerOptionError(
        f"compression={name!r} does not work under HorovodReplicator: {reason}; use "
        "compression='float16'"
    )
