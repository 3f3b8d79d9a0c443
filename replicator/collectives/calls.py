"""Collectives that users call, over nests and over items.

Reductions are in ``reductions.py``. Item i of ``map_reduce`` and ``map_gather`` runs on
replica ``i % num_replicas`` only: each replica takes its own branch on ``replica_id``,
and every replica executes the collective that combines the results. ``fn`` is
single-device code; gradients flow back to the variables that the replica of an item has
read. They are those of the sum of the losses of all replicas: where these compute the
same loss from the results, their mean over replicas is that of a single device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replicator.collectives import differentiable, kinds, reductions
from replicator.collectives.differentiable import as_written, over_nest
from replicator.core import context as context_lib
from replicator.core.step import tensor_of
from replicator.core.validation import check_takes_one, format_value, is_integer


@as_written
def reduce_scatter(value: Any, op: str = "sum") -> Any:
    """Reduces a value over replicas and gives each replica its part of the rows.

    ``all_gather`` of the results is the ``all_reduce`` of the values. Replicas of one
    program send each other parts only. Between worker processes TensorFlow's rings
    reduce whole tensors, so there as many bytes are sent as by ``all_reduce``.

    Args:
      value: A nest of dense tensors of the same structure and shapes on every replica,
        whose first dimension is a multiple of the number of replicas in sync.
      op: ``sum``, ``mean``, ``min`` or ``max``, of the types that ``all_reduce`` takes.

    Returns:
      A nest of the same structure: rows ``r * k`` to ``(r + 1) * k`` of the reduced
      tensors on replica r, if each replica gets k rows.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor.
      ValueError: Rows that cannot be divided equally, a leaf is ``tf.IndexedSlices``,
        or ``op`` is unknown or not defined for a type.
    """
    context_lib.require("reduce_scatter")
    context_lib.check_reduce_op(op)
    return over_nest(kinds.ReduceScatter(op=op), value, "divides")


@as_written
def all_gather(value: Any) -> Any:
    """Stacks a value over replicas, in the order of ``replica_id``.

    Args:
      value: A nest of dense tensors of any type, with the same shapes on every replica.

    Returns:
      A nest of tensors of shape ``[num_replicas] + dims``, identical on all replicas.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor.
      ValueError: A leaf is ``tf.IndexedSlices``.
    """
    return over_nest(kinds.AllGather(), value, "stacks")


@as_written
def permute(value: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Sends the value of each source replica to its target replica.

    ``permute(x, [(r, (r + 1) % R) for r in range(R)])`` sends values around a ring;
    without the last pair, down a pipeline. Replicas of one program send each other only
    what the pairs say. Between worker processes, values are gathered if a pair joins
    two workers.

    Args:
      value: A nest of dense tensors of any type, of the same structure and shapes on
        every replica.
      pairs: Source and target, Python ints in [0, num_replicas_in_sync). A replica is
        the source of at most one pair and the target of at most one.

    Returns:
      A nest of the same structure and shapes: the value of its source on each target,
      zeros (``False``, empty strings) on replicas that are the target of no pair.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor, or ``pairs`` are not pairs of ints.
      ValueError: A replica that does not exist, or is a source or a target twice; a
        leaf is ``tf.IndexedSlices``.
    """
    num_replicas = context_lib.require("permute").num_replicas_in_sync
    is_listed = isinstance(pairs, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and list(map(is_integer, pair)) == [True, True]
        for pair in pairs
    )
    if not is_listed:
        raise TypeError(
            f"permute takes pairs of source and target, such as [(0, 1), (1, 0)], but "
            f"got {format_value(pairs)}; both are Python ints, because the permutation "
            "is fixed when the step is traced"
        )
    for index, role in enumerate(("source", "target")):
        replicas = [pair[index] for pair in pairs]
        for replica in replicas:
            if not 0 <= replica < num_replicas:
                raise ValueError(
                    f"permute got {role} {format_value(replica)}, but there are "
                    f"{num_replicas} replicas; use 0 to {num_replicas - 1}"
                )
            if replicas.count(replica) > 1:
                raise ValueError(
                    f"permute got replica {replica} as the {role} of "
                    f"{replicas.count(replica)} pairs; a replica sends to at most one "
                    "and receives from at most one: use broadcast to send to several"
                )
    in_order = tuple(sorted((source, target) for source, target in pairs))
    return over_nest(kinds.Permute(pairs=in_order), value, "sends")


@as_written
def broadcast(value: Any, source_replica_id: int = 0) -> Any:
    """Sends the value of one replica to all replicas.

    Args:
      value: A nest of tensors of any type, or ``tf.IndexedSlices``, with the same
        shapes on every replica; it is evaluated on all of them.
      source_replica_id: A Python int in [0, num_replicas_in_sync): the index of the
        source among the replicas in sync.

    Returns:
      A nest of the same structure and shapes, identical on all replicas.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: ``source_replica_id`` is not an int, or a leaf is not a dense tensor.
      ValueError: ``source_replica_id`` is out of range.
    """
    context = context_lib.require("broadcast")
    if not is_integer(source_replica_id):
        raise TypeError(
            f"source_replica_id {format_value(source_replica_id)} must be a Python "
            "int, because the source is fixed when the step is traced"
        )
    count = context.num_replicas_in_sync
    if not 0 <= source_replica_id < count:
        raise ValueError(
            f"source_replica_id {format_value(source_replica_id)} is out of range: "
            f"there are {count} replicas; use 0 to {count - 1}"
        )

    leaves = tf.nest.flatten(value)
    # Slices are sent as two tensors; their dense shape is known on all replicas.
    parts = [
        (leaf.values, leaf.indices) if isinstance(leaf, tf.IndexedSlices) else leaf
        for leaf in leaves
    ]
    kind = kinds.Broadcast(source_replica_id=source_replica_id)
    received = [
        tf.IndexedSlices(*sent, leaf.dense_shape) if isinstance(sent, tuple) else sent
        for leaf, sent in zip(leaves, over_nest(kind, parts, "sends"), strict=True)
    ]
    return tf.nest.pack_sequence_as(value, received)


@as_written
def all_to_all(value: Any) -> Any:
    """Exchanges parts: replica r gets the r-th part of the rows of every replica.

    Applied twice, it gives the value back. Replicas of one program send each other
    parts only. Between worker processes each worker gathers all tensors and keeps its
    parts.

    Args:
      value: A nest of dense tensors of any type, of the same structure and shapes on
        every replica, whose first dimension is a multiple of the number of replicas in
        sync.

    Returns:
      A nest of the same structure and shapes: on replica r, the r-th parts of all
      replicas, joined in the order of ``replica_id``.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor.
      ValueError: Rows that cannot be divided equally, or a leaf is
        ``tf.IndexedSlices``.
    """
    return over_nest(kinds.AllToAll(), value, "divides")


def map_reduce(fn: Callable[[Any], Any], items: Sequence[Any], op: str = "sum") -> Any:
    """Applies a function to work items, each on one replica, and reduces the results.

    A replica reduces its own results first, so one value per replica is sent.

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

    def branch(replica_id: int) -> list[tf.Tensor]:
        own = range(replica_id, len(items), context.num_replicas)
        if not own:  # replica 0 has item 0, and its branch is traced first
            return [_neutral(spec, op) for spec in results.static_specs(0)]
        rows = []
        for index in own:
            rows.append(results.compute(index))
            results.check_consistent(index)
        columns = [list(column) for column in zip(*rows, strict=True)]
        for column in columns:
            differentiable.check_reducible(column[0], op, "map_reduce")
        if op not in ("sum", "mean"):
            return [differentiable.combine(column, op) for column in columns]
        if op == "mean":  # divided, and narrowed again, when all of them are added up
            widened = functools.partial(differentiable.widened, op=op)
            columns = [list(map(widened, column)) for column in columns]
        return [tf.add_n(column) for column in columns]

    branches = [functools.partial(branch, r) for r in range(context.num_replicas)]
    if len(branches) == 1:
        reduced = branch(0)
    else:
        reduced = _as_list(tf.switch_case(context.replica_id, branches))
    if op == "mean":
        total = reductions.all_sum(reduced)
        reduced = [
            tf.cast(t / tf.cast(len(items), t.dtype), spec.dtype)
            for t, spec in zip(total, tf.nest.flatten(results.specs[0]), strict=True)
        ]
    else:
        reduced = reductions.all_reduce(reduced, op)
    return tf.nest.pack_sequence_as(results.specs[0], reduced)


def map_gather(items: Sequence[Any], fn: Callable[[Any], Any]) -> list[Any]:
    """Applies a function to work items, each on one replica, and gathers the results.

    Results may differ in structure, type and shape (inverses of matrices of any size).

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

    def compute(own: range) -> list[tf.Tensor]:
        return [tensor for index in own for tensor in results.compute(index)]

    def skip(own: range) -> list[tf.Tensor]:  # zeros, which nobody uses
        specs = [spec for index in own for spec in results.static_specs(index)]
        return [tf.zeros(spec.shape, spec.dtype) for spec in specs]

    gathered: list[Any] = [None] * len(items)
    for owner in range(min(context.num_replicas, len(items))):
        own = range(owner, len(items), context.num_replicas)
        if context.num_replicas == 1:
            computed = compute(own)
        else:
            is_owner = tf.equal(context.replica_id, owner)
            branches = functools.partial(compute, own), functools.partial(skip, own)
            computed = _as_list(tf.cond(is_owner, *branches))
        flat = iter(broadcast(computed, owner))
        for index in own:
            spec = results.specs[index]
            leaves = [next(flat) for _ in tf.nest.flatten(spec)]
            gathered[index] = tf.nest.pack_sequence_as(spec, leaves)
    return gathered


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
        check_takes_one(fn, caller, "fn", "an item")
        self._caller, self._fn, self._items = caller, fn, items
        self.specs: dict[int, Any] = {}  # By emitted item, a nest of tf.TensorSpec.

    def compute(self, index: int) -> list[tf.Tensor]:
        value = self._fn(self._items[index])
        if any(leaf is None for leaf in tf.nest.flatten(value)):
            raise ValueError(
                f"{self._caller}: fn(items[{index}]) returned None instead of a "
                "tensor; return a nest of tensors"
            )
        said = f"{self._caller}: fn(items[{index}]) must return a nest of dense tensors"
        nest = tf.nest.map_structure(lambda leaf: tensor_of(leaf, said), value)
        self.specs[index] = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), nest
        )
        return list(tf.nest.flatten(nest))

    def check_consistent(self, index: int) -> None:
        """Rejects results that cannot be reduced with those of item 0."""

        def both(describe: Callable[[tf.TensorSpec], Any]) -> list[Any]:
            nests = self.specs[index], self.specs[0]
            return [tf.nest.map_structure(describe, nest) for nest in nests]

        mine, first = both(lambda _: 0)
        specs = map(tf.nest.flatten, both(lambda spec: spec))
        if mine != first or not all(map(tf.TensorSpec.is_compatible_with, *specs)):
            mine, first = both(lambda spec: f"{spec.dtype.name}{list(spec.shape)}")
            raise ValueError(
                f"{self._caller}: fn(items[{index}]) is {mine}, but fn(items[0]) is "
                f"{first}; all results of a reduction must have the same structure, "
                "type and shape (map_gather takes any)"
            )

    def static_specs(self, index: int) -> list[tf.TensorSpec]:
        """Types and shapes of an item's results, for replicas without the item."""
        specs = tf.nest.flatten(self.specs[index])
        for spec in specs:
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    f"{self._caller}: fn(items[{index}]) has shape {spec.shape}, but "
                    "replicas that do not compute it must know its shape when the step "
                    "is traced; state it with tf.ensure_shape(result, shape) in fn"
                )
        return list(specs)


def _neutral(spec: tf.TensorSpec, op: str) -> tf.Tensor:
    """The neutral element that a replica without items passes to a reduction."""
    dtype = spec.dtype
    if op in ("sum", "mean"):
        wide = differentiable.stand_in(dtype, op) if op == "mean" else dtype
        return tf.zeros(spec.shape, wide)
    least, most = (-np.inf, np.inf) if dtype.is_floating else (dtype.min, dtype.max)
    return tf.fill(spec.shape, tf.constant(most if op == "min" else least, dtype))
