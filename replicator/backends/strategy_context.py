"""Collectives of a step under a stock strategy of ``tf.distribute``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import gradients as _tf_gradients
from replicator.collectives import vectorized
from replicator.collectives.buckets import positions_by_dtype
from replicator.errors import CollectiveControlFlowError
from replicator.step import context, logical

if TYPE_CHECKING:
    from collections.abc import Sequence

_TF_REDUCE = {"sum": tf.distribute.ReduceOp.SUM, "mean": tf.distribute.ReduceOp.MEAN}

_FENCE = "replicator_stock_collective"


def _fence(tensor: tf.Tensor) -> tf.Tensor:
    """A node by which a vectorized loop finds a collective in its body."""
    return _tf_gradients.marker(tensor, tensor.shape, name=_FENCE)


class StrategyReplicaContext(context.ReplicaContext):
    """Collectives by the replica context of ``tf.distribute``."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = self.num_replicas_in_sync = num_replicas
        vectorized.register()

    @property
    def replica_id(self) -> tf.Tensor:
        """The strategy's id of this replica, int32."""
        replica = tf.distribute.get_replica_context()
        return tf.convert_to_tensor(replica.replica_id_in_sync_group, dtype=tf.int32)

    def all_reduce(self, tensors: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        """Reduces by the strategy; minimum and maximum through a gather."""
        if self.num_replicas == 1:
            return list(tensors)  # a stock strategy of one replica cannot reduce
        tensors = [_fence(tensor) for tensor in tensors]
        if op in _TF_REDUCE:
            return self._reduce_by_type(tensors, _TF_REDUCE[op])
        reduce = tf.reduce_min if op == "min" else tf.reduce_max
        return [reduce(t, axis=0) for t in self.all_gather(tensors)]

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

    def all_gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums zeros with the own slice in its place.

        The stock gather fails on virtual CPU devices (it needs more devices than
        the strategy has), and a reduction is what every strategy can do.
        """
        mine = tf.equal(tf.range(self.num_replicas), self.replica_id)
        wide = []
        for tensor in tensors:
            mask = tf.reshape(mine, [self.num_replicas] + [1] * len(tensor.shape))
            value = tf.expand_dims(tensor, 0)
            wide.append(tf.where(mask, value, tf.zeros_like(value)))
        return self.all_reduce(wide, "sum")

    def all_concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums zeros with the own rows in their place, as ``all_gather`` does."""
        if self.num_replicas == 1:
            return list(tensors)
        num_rows = tf.shape(tensors[0])[0]
        (counts,) = self.all_gather([num_rows])
        before = tf.reduce_sum(counts[: self.replica_id])
        # One row more than there are: TensorFlow crashes on an empty reduction.
        after = tf.reduce_sum(counts) - before - num_rows + 1
        placed = [
            tf.pad(tensor, [[before, after], *([[0, 0]] * (len(tensor.shape) - 1))])
            for tensor in tensors
        ]
        return [rows[:-1] for rows in self.all_reduce(placed, "sum")]

    def broadcast(
        self, tensors: Sequence[tf.Tensor], source_replica_id: int
    ) -> list[tf.Tensor]:
        """Sums zeros with the source's value: ``tf.distribute`` has no broadcast."""
        is_source = tf.equal(self.replica_id, source_replica_id)
        masked = [tf.where(is_source, t, tf.zeros_like(t)) for t in tensors]
        return self.all_reduce(masked, "sum")

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

    def all_reduce(self, tensors: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        """Returns R times the tensors for a sum, otherwise the tensors."""
        if op != "sum":
            return list(tensors)
        return [tensor * tf.cast(self.num_replicas, tensor.dtype) for tensor in tensors]

    def all_gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns R copies of each tensor."""
        return [tf.stack([tensor] * self.num_replicas) for tensor in tensors]

    def all_concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the rows of each tensor R times."""
        return [tf.concat([tensor] * self.num_replicas, axis=0) for tensor in tensors]

    def broadcast(
        self, tensors: Sequence[tf.Tensor], source_replica_id: int
    ) -> list[tf.Tensor]:
        """Returns the tensors."""
        del source_replica_id
        return list(tensors)
