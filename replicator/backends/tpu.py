"""Replicas on the cores of TPUs, by ``tf.distribute.TPUStrategy``.

The paper's ``TpuReplicator`` (Buchlovsky et al. 2019, section 3). All of it is the code
of ``StrategyReplicator``, which is tested on ``MirroredStrategy``; what is here is what
TPUs ask for: the system is initialised, cores are assigned, steps are compiled, so that
shapes must be static, and their reductions know fewer types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.backends.strategy import StrategyReplicaContext, StrategyReplicator
from replicator.cluster import tpu_system
from replicator.core import context, devices
from replicator.errors import StaticShapeError

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Sequence

    from replicator.inputs.context import InputFn, InputReplicationMode
    from replicator.inputs.iterator import InputIterator

_CHUNK_BITS = 16
_INT64_BITS = 64


class TpuReplicaContext(StrategyReplicaContext):
    """The stock collectives for the types that TPUs reduce.

    Attributes:
      wire_integer: The widest integer that the hardware sums.
    """

    wire_integer = tf.int32
    has_static_shapes = True

    def _reduce_one_type(
        self, tensors: Sequence[tf.Tensor], op: tf.distribute.ReduceOp
    ) -> list[tf.Tensor]:
        """Integers are sent as int32; TPUs cannot sum wider ones, which go in parts."""
        dtype = tensors[0].dtype
        if not dtype.is_integer:
            return super()._reduce_one_type(tensors, op)

        def reduce(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            replica = tf.distribute.get_replica_context()
            wide = [tf.cast(value, self.wire_integer) for value in values]
            sums = replica.all_reduce(op, wide)
            pairs = zip(sums, values, strict=True)
            return [tf.cast(total, value.dtype) for total, value in pairs]

        if dtype.size <= tf.int32.size:
            return reduce(tensors)
        return sum_in_parts(tensors, reduce)

    def logical_device(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Places ops on a core of this replica."""
        place = context.check_logical_index(index, self.num_logical_devices)
        return _logical_core(tf.distribute.get_strategy(), place)


class TpuReplicator(StrategyReplicator):
    """Replicas on TPU cores.

    Steps are compiled by XLA: every dimension must be known when a step is traced, so
    batch with ``drop_remainder=True``. ``run(num_steps=k)`` keeps k steps on the TPU in
    one dispatch, which TPUs need to be fast.

    Attributes:
      system: The initialised TPU.
      logical_devices_per_replica: Cores that one replica is split over.
    """

    replica_context_class = TpuReplicaContext

    def __init__(
        self,
        *,
        num_replicas: int | None = None,
        tpu: str | None = None,
        logical_devices_per_replica: int = 1,
    ) -> None:
        count = devices.check_num_logical(logical_devices_per_replica)
        self.system = tpu_system.connect(tpu)
        super().__init__(self.system.make_strategy(num_replicas, count))
        self.logical_devices_per_replica = count

    def logical_device(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Places variables on a core of each replica; see ``logical_device``."""
        place = context.check_logical_index(index, self.logical_devices_per_replica)
        return _logical_core(self.strategy, place)

    def _make_input_iterator(
        self, input_fn: InputFn, mode: InputReplicationMode, num_prefetched: int
    ) -> InputIterator:
        """Distributes pipelines of static shapes."""
        inputs = super()._make_input_iterator(input_fn, mode, num_prefetched)
        check_static(inputs.element_spec)
        return inputs


def check_static(element_spec: Any) -> None:
    """Rejects batches without static shapes, which a compiled step needs."""
    specs = tf.nest.flatten(element_spec, expand_composites=False)
    for index, spec in enumerate(specs):
        if isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined():
            continue
        raise StaticShapeError(
            f"component {index} of a batch is {spec}, but TPU steps are "
            "compiled, so every dimension must be known when the step is traced; use "
            "dataset.batch(size, drop_remainder=True), padded_batch with padded_shapes "
            "instead of ragged tensors, or dense instead of sparse ones"
        )


def sum_in_parts(
    tensors: Sequence[tf.Tensor],
    reduce: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Sums 64-bit integers over replicas by sums of int32.

    Each value is cut into four parts of 16 bits; their sums over up to 32,768 replicas
    fit into int32, and shifting them back adds up to the sum modulo 2^64.
    """
    wide = [tf.bitcast(tensor, tf.int64) for tensor in tensors]
    totals = [tf.zeros_like(tensor) for tensor in wide]
    mask = tf.constant((1 << _CHUNK_BITS) - 1, tf.int64)
    for start in range(0, _INT64_BITS, _CHUNK_BITS):
        shift = tf.constant(start, tf.int64)
        parts = [
            tf.bitwise.bitwise_and(tf.bitwise.right_shift(t, shift), mask) for t in wide
        ]
        sums = reduce([tf.cast(part, tf.int32) for part in parts])
        totals = [
            total + tf.bitwise.left_shift(tf.cast(part, tf.int64), shift)
            for total, part in zip(totals, sums, strict=True)
        ]
    return [
        tf.bitcast(total, tensor.dtype)
        for total, tensor in zip(totals, tensors, strict=True)
    ]


def _logical_core(
    strategy: tf.distribute.Strategy, index: int
) -> contextlib.AbstractContextManager[Any]:
    scope: contextlib.AbstractContextManager[Any]
    scope = strategy.extended.experimental_logical_device(index)
    return scope
