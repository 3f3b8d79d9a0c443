"""Collectives of a step under a stock strategy of ``tf.distribute``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import batch_norm as _tf_batch_norm
from replicator._tf import gradients as _tf_gradients
from replicator.collectives import vectorized
from replicator.collectives.buckets import positions_by_dtype
from replicator.collectives.linking import TENSORS
from replicator.collectives.sums import Sums
from replicator.errors import CollectiveControlFlowError
from replicator.step import context, logical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.collectives.kind import CollectiveKind

_TF_REDUCE = {"sum": tf.distribute.ReduceOp.SUM, "mean": tf.distribute.ReduceOp.MEAN}

_FENCE = "replicator_stock_collective"


def _fence(tensor: tf.Tensor) -> tf.Tensor:
    """A node by which a vectorized loop finds a collective in its body."""
    return _tf_gradients.marker(tensor, tensor.shape, name=_FENCE)


class StrategyReplicaContext(context.ReplicaContext):
    """Collectives by the replica context of ``tf.distribute``.

    Attributes:
      has_static_shapes: Whether every shape has to be known when a step is traced.
    """

    has_static_shapes = False

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = self.num_replicas_in_sync = num_replicas
        vectorized.register()
        _tf_batch_norm.keep_statistics_of_nothing(context.in_replica_context)

    @property
    def replica_id(self) -> tf.Tensor:
        """The strategy's id of this replica, int32."""
        replica = tf.distribute.get_replica_context()
        return tf.convert_to_tensor(replica.replica_id_in_sync_group, dtype=tf.int32)

    def communicate(
        self,
        kind: CollectiveKind,
        tensors: Sequence[tf.Tensor],
        needed_if: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        """Makes the collective of the strategy's sums."""
        del needed_if
        if self.num_replicas == 1:  # a stock strategy of one replica cannot reduce
            return [kind.of_own(TENSORS, tensor, 0, 1) for tensor in tensors]
        sums = Sums(
            num_replicas=self.num_replicas,
            replica_id=self.replica_id,
            reduce=lambda values, op: self._reduce_by_type(values, _TF_REDUCE[op]),
            has_static_shapes=self.has_static_shapes,
        )
        return kind.by_sums(sums, [_fence(tensor) for tensor in tensors])

    def _reduce_by_type(
        self, tensors: Sequence[tf.Tensor], op: tf.distribute.ReduceOp
    ) -> list[tf.Tensor]:
        """Reduces one type at a time: a stock reduction does not mix types."""
        results: dict[int, tf.Tensor] = {}
        for places in positions_by_dtype(tensors).values():
            reduced = self._reduce_one_type([tensors[i] for i in places], op)
            results.update(zip(places, reduced, strict=True))
        return [results[place] for place in range(len(tensors))]

    def _reduce_one_type(
        self, tensors: Sequence[tf.Tensor], op: tf.distribute.ReduceOp
    ) -> list[tf.Tensor]:
        replica = tf.distribute.get_replica_context()
        dtype = tensors[0].dtype
        if dtype.is_complex:  # which a stock reduction does not know
            parts = [part(t) for part in (tf.math.real, tf.math.imag) for t in tensors]
            reduced = self._reduce_one_type(parts, op)
            count = len(tensors)
            return list(map(tf.complex, reduced[:count], reduced[count:]))
        # A stock reduction has no group for int32, which TensorFlow keeps on the
        # host, and none for narrower integers; sums wrap the same after the cast.
        wide = tf.int64 if dtype.is_integer else dtype
        # An identity has a device, by which the strategy finds its destination.
        sent = [tf.identity(tf.cast(tensor, wide)) for tensor in tensors]
        reduced = replica.all_reduce(op, sent)
        return [tf.cast(value, dtype) for value in reduced]

    def collective_of(self, marker: str) -> Any:
        """Rejects collectives in vectorized loops: stock ones cannot be rewritten."""
        if _FENCE in marker:
            raise CollectiveControlFlowError(
                "a collective was called inside tf.vectorized_map, tape.jacobian or "
                "tape.batch_jacobian, which rewrite the graph of one replica, so the "
                "collectives of tf.distribute would be lost; pass "
                "experimental_use_pfor=False to the Jacobian, move the collective out "
                "of the loop, or use the in_graph backend"
            )
        return None

    def logical_device(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Only device 0: a stock strategy does not split a replica."""
        logical.check_index(index, self.num_logical_devices)
        return contextlib.nullcontext()


class LocalReplicaContext(StrategyReplicaContext):
    """The context of a measuring control: as if all replicas held the own values."""

    def communicate(
        self,
        kind: CollectiveKind,
        tensors: Sequence[tf.Tensor],
        needed_if: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        """Returns what a replica has where all hold its values."""
        del needed_if
        count, replica_id = self.num_replicas, self.replica_id
        return [kind.of_own(TENSORS, t, replica_id, count) for t in tensors]
