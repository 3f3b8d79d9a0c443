"""Reductions of values per replica outside steps, in one process or over workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import gathering, reductions
from replicator.errors import StrategyError
from replicator.strategy.extended import reduce_op_of
from replicator.strategy.values import is_per_replica, local_values
from replicator.validation.arguments import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Reductions:
    """The reductions of one strategy: over workers they are steps, traced once each."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, Callable[..., Any]] = {}

    def reduce(
        self, strategy: Any, repl: Any, reduce_op: Any, value: Any, axis: Any
    ) -> Any:
        """Reduces one value over replicas; see ``ReplicatorStrategy.reduce``."""
        op = reduce_op_of(reduce_op)
        own = local_values(value, 1)
        if repl.num_replicas > 1 and not is_per_replica(value) and len(own) == 1:
            if repl.num_local_replicas > 1 and op == "sum" and axis is None:
                raise StrategyError(
                    f"strategy.reduce(SUM) of {shown(value)}, which is not a value "
                    "per replica; reduce what strategy.run() returns, or multiply by "
                    "strategy.num_replicas_in_sync"
                )
            if repl.num_local_replicas > 1:
                own = own * repl.num_local_replicas
        values = [v if tf.is_tensor(v) else tf.convert_to_tensor(v) for v in own]
        if repl.num_programs > 1:
            step = self._step(("reduce", op, _hashable(axis)))
            return _first(strategy.run(step, args=(value,)))
        if axis is None:
            return _combined(op, values)
        return _over_axis(op, values, axis)

    def gather(self, strategy: Any, repl: Any, value: Any, axis: int) -> Any:
        """Joins one value over replicas; see ``ReplicatorStrategy.gather``."""
        if repl.num_programs > 1:
            step = self._step(("gather", axis))
            return _first(strategy.run(step, args=(value,)))
        own = local_values(value, 1)
        if len(own) == 1 and repl.num_local_replicas > 1:
            own = own * repl.num_local_replicas
        return tf.concat(own, axis=axis)

    def _step(self, key: tuple[Any, ...]) -> Callable[..., Any]:
        if key not in self._steps:
            kind, *options = key
            self._steps[key] = (_reduction if kind == "reduce" else _joining)(*options)
        return self._steps[key]


def _combined(op: str, values: list[Any]) -> Any:
    shapes = {str(v.shape) for v in values}
    if len(shapes) > 1:
        raise StrategyError(
            f"strategy.reduce({op.upper()}, value, axis=None) of values of different "
            f"shapes, {', '.join(sorted(shapes))}; write axis=0, which reduces over "
            "examples as well, or strategy.gather(value, axis=0)"
        )
    total = tf.add_n(values) if len(values) > 1 else tf.identity(values[0])
    if op == "sum" or len(values) == 1:
        return total
    count = tf.cast(len(values), total.dtype)
    return total // count if total.dtype.is_integer else total / count


def _over_axis(op: str, values: list[Any], axis: Any) -> Any:
    total = tf.add_n([tf.reduce_sum(value, axis=axis) for value in values])
    if op == "sum":
        return total
    count = tf.add_n([_size(value, axis) for value in values])
    return tf.math.truediv(total, tf.cast(count, total.dtype))


def _size(value: Any, axis: Any) -> tf.Tensor:
    axes = [axis] if isinstance(axis, int) else list(axis)
    return tf.reduce_prod(
        tf.gather(tf.shape(value), [a % len(value.shape) for a in axes])
    )


def _reduction(op: str, axis: Any) -> Callable[[Any], Any]:
    def reduce(value: Any) -> Any:
        if axis is None:
            if op == "mean" and value.dtype.is_integer:
                total = reductions.all_sum(value)
                return total // tf.distribute.get_replica_context().num_replicas_in_sync
            return reductions.all_reduce(value, op)
        total = reductions.all_sum(tf.reduce_sum(value, axis=axis))
        if op == "sum":
            return total
        count = reductions.all_sum(_size(value, axis))
        return tf.math.truediv(total, tf.cast(count, total.dtype))

    reduce.__qualname__ = f"reduce({op!r})"
    return reduce


def _joining(axis: int) -> Callable[[Any], Any]:
    def gather(value: Any) -> Any:
        return gathering.all_concat(value, axis)

    return gather


def _hashable(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _first(value: Any) -> Any:
    return local_values(value, 1)[0]
