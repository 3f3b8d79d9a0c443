"""map_reduce and map_gather: work items distributed over replicas.

Item i runs on replica ``i % num_replicas`` only: each replica takes its own branch on
``replica_id``, and the collective that combines the results is outside the branches,
so that every replica executes it. As in the paper, ``fn`` is single-device code;
gradients flow back to the variables that the replica of an item has read.

With a loss per replica, gradients are those of the sum of the losses, as for the other
collectives. So where every replica computes the same loss from the results, the mean of
the gradients over replicas is the gradient on a single device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.collectives import differentiable, reductions
from replicator.collectives.calls import broadcast
from replicator.core import context as context_lib
from replicator.core import validation
from replicator.core.step import tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.core.context import ReplicaContext


def map_reduce(fn: Callable[[Any], Any], items: Sequence[Any], op: str = "sum") -> Any:
    """Applies a function to work items, each on one replica, and reduces the results.

    Call it in replica context. A replica reduces the results of its own items first, so
    one value per replica is sent, however many items there are.

    Args:
      fn: Takes an item, returns a nest of dense tensors: the same structure, types and
        shapes for every item. It may read variables; it may not use collectives.
      items: A list or tuple of anything that ``fn`` takes: tensors, indices, layers,
        functions. Every replica must pass items of the same meaning.
      op: ``sum``, ``mean`` (over items), ``min`` or ``max``.

    Returns:
      A nest like that of ``fn``, reduced over all items, identical on all replicas. The
      replicas that have an extreme value share its gradient equally.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: ``items`` is not a list or tuple, ``fn`` is not a function of an item,
        or a result is not a dense tensor.
      ValueError: There are no items, results differ in structure, type or shape, or
        ``op`` is unknown or not defined for their type.
    """
    context = context_lib.require("map_reduce")
    context_lib.check_reduce_op(op)
    results = _Results("map_reduce", fn, items)
    if not items:
        raise ValueError(
            "map_reduce got no items, so the shape of the result is unknown; pass at "
            "least one item"
        )

    def branch(replica_id: int) -> Callable[[], list[tf.Tensor]]:
        own = range(replica_id, len(items), context.num_replicas)
        if own:
            return lambda: _reduce_own(results, own, op)
        # Replica 0 has item 0, and its branch is traced first.
        return lambda: [_neutral(spec, op) for spec in results.static_specs(0)]

    branches = [branch(replica_id) for replica_id in range(context.num_replicas)]
    if len(branches) == 1:
        reduced = branches[0]()
    else:
        reduced = _as_list(tf.switch_case(context.replica_id, branches))
    if op == "mean":
        total = reductions.all_sum(reduced)
        reduced = [
            tf.cast(t / tf.cast(len(items), t.dtype), spec.dtype)
            for t, spec in zip(total, results.specs[0], strict=True)
        ]
    else:
        reduced = reductions.all_reduce(reduced, op)
    return results.pack(0, reduced)


def map_gather(items: Sequence[Any], fn: Callable[[Any], Any]) -> list[Any]:
    """Applies a function to work items, each on one replica, and gathers the results.

    Call it in replica context. Results of different items may differ in structure, type
    and shape (such as inverses of matrices of several sizes).

    Args:
      items: A list or tuple of anything that ``fn`` takes: tensors, indices, layers,
        functions. Every replica must pass items of the same meaning.
      fn: Takes an item, returns a nest of dense tensors of static shape. It may read
        variables; it may not use collectives.

    Returns:
      The list of results, in the order of ``items``, identical on all replicas.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: ``items`` is not a list or tuple, ``fn`` is not a function of an item,
        or a result is not a dense tensor.
      ValueError: A result's shape is not known when the step is traced.
    """
    context = context_lib.require("map_gather")
    results = _Results("map_gather", fn, items)
    gathered: list[Any] = [None] * len(items)
    for owner in range(min(context.num_replicas, len(items))):
        own = range(owner, len(items), context.num_replicas)
        flat = broadcast(_compute_on(context, owner, own, results), owner)
        for index in own:
            count = len(results.specs[index])
            gathered[index] = results.pack(index, flat[:count])
            flat = flat[count:]
    return gathered


def _compute_on(
    context: ReplicaContext, owner: int, own: Sequence[int], results: _Results
) -> list[tf.Tensor]:
    """Computes items on one replica; the others return zeros that are not used."""

    def compute() -> list[tf.Tensor]:
        return [tensor for index in own for tensor in results.compute(index)]

    def skip() -> list[tf.Tensor]:
        specs = [spec for index in own for spec in results.static_specs(index)]
        return [tf.zeros(spec.shape, spec.dtype) for spec in specs]

    if context.num_replicas == 1:
        return compute()
    is_owner = tf.equal(context.replica_id, owner)
    return _as_list(tf.cond(is_owner, compute, skip))


def _as_list(outputs: Any) -> list[tf.Tensor]:
    """Undoes TensorFlow's unwrapping of a branch's list of one tensor."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


class _Results:
    """The results of ``fn`` for each item, as flat tensors."""

    def __init__(
        self, caller: str, fn: Callable[[Any], Any], items: Sequence[Any]
    ) -> None:
        if not isinstance(items, (list, tuple)):
            raise TypeError(
                f"{caller} got items of type {type(items).__name__!r}; pass a list or "
                "a tuple (tf.unstack turns a tensor into a list)"
            )
        validation.check_takes_one(fn, caller, "fn", "an item")
        self._caller = caller
        self._fn = fn
        self._items = items
        self._structures: dict[int, Any] = {}
        # By emitted item, type and static shape of each tensor.
        self.specs: dict[int, list[tf.TensorSpec]] = {}

    def compute(self, index: int) -> list[tf.Tensor]:
        value = self._fn(self._items[index])
        leaves = tf.nest.flatten(value)
        if any(leaf is None for leaf in leaves):
            raise ValueError(
                f"{self._caller}: fn(items[{index}]) returned None instead of a "
                "tensor; return a nest of tensors"
            )
        said = f"{self._caller}: fn(items[{index}]) must return a nest of dense tensors"
        flat = [tensor_of(leaf, said) for leaf in leaves]
        self._structures[index] = tf.nest.map_structure(lambda _: 0, value)
        self.specs[index] = [tf.TensorSpec(t.shape, t.dtype) for t in flat]
        return flat

    def reducible(self, index: int) -> list[tf.Tensor]:
        """Emits one item's work, whose results can be reduced with those of item 0."""
        flat = self.compute(index)
        is_consistent = self._structures[0] == self._structures[index] and all(
            mine.dtype == first.dtype and mine.shape.is_compatible_with(first.shape)
            for mine, first in zip(self.specs[index], self.specs[0], strict=True)
        )
        if not is_consistent:
            raise ValueError(
                f"{self._caller}: fn(items[{index}]) is {self._describe(index)}, but "
                f"fn(items[0]) is {self._describe(0)}; all results of a reduction must "
                "have the same structure, type and shape (map_gather takes any)"
            )
        return flat

    def static_specs(self, index: int) -> list[tf.TensorSpec]:
        """Types and shapes of an item's results, for replicas without the item."""
        for spec in self.specs[index]:
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    f"{self._caller}: fn(items[{index}]) has shape {spec.shape}, but "
                    "replicas that do not compute it must know its shape when the step "
                    "is traced; state it with tf.ensure_shape(result, shape) in fn"
                )
        return self.specs[index]

    def pack(self, index: int, flat: Sequence[Any]) -> Any:
        """Gives flat tensors the structure of an item's result."""
        return tf.nest.pack_sequence_as(self._structures[index], list(flat))

    def _describe(self, index: int) -> Any:
        texts = [f"{s.dtype.name}{list(s.shape)}" for s in self.specs[index]]
        return self.pack(index, texts)


def _reduce_own(results: _Results, indices: Sequence[int], op: str) -> list[tf.Tensor]:
    columns = list(zip(*map(results.reducible, indices), strict=True))
    for column in columns:
        differentiable.check_reducible(column[0], op, "map_reduce")
    if op == "mean":  # divided, and narrowed again, when all of them are added up
        columns = [[differentiable.widened(x, op) for x in of] for of in columns]
    if op in ("sum", "mean"):
        return [tf.add_n(column) for column in columns]
    return [differentiable.combine(column, op) for column in columns]


def _neutral(spec: tf.TensorSpec, op: str) -> tf.Tensor:
    """The neutral element that a replica without items passes to a reduction."""
    dtype = spec.dtype
    if op in ("sum", "mean"):
        wide = differentiable.stand_in(dtype, op) if op == "mean" else dtype
        return tf.zeros(spec.shape, wide)
    least, most = (-np.inf, np.inf) if dtype.is_floating else (dtype.min, dtype.max)
    return tf.fill(spec.shape, tf.constant(most if op == "min" else least, dtype))
