"""sharded_update: each replica updates a part of the variables for all replicas.

These are the stages of ZeRO (Rajbhandari et al. 2020). The
update is traced as for one device, and each node is emitted only where its result is
needed; this module only says where state is, and what owners keep. Every variable gets
an owner among the replicas that keep copies, balanced by bytes.

- ``state``: the optimizer state of a variable exists once, on its owner's device; the
  owner's new value is copied to the others. If replicas share one copy of the variables
  (the CPUs of one machine), there is one update and one copy of its state anyway, and
  nothing changes, at any level.
- ``gradients``: the averaged gradient is on the owner's device alone, and what follows
  from it alone, such as its norm, is computed there.
- ``parameters``: so is the variable itself; others gather it when they need it.

Between worker processes (``multi_worker``) owners are the replicas of all workers. The
averaged gradients reach every worker, because TensorFlow's rings all-reduce but do not
reduce-scatter; each worker updates its part and broadcasts the new values to the
others, in buckets. So 1.5 times as many bytes are sent as without sharding, and each
process has the optimizer state of its part only: on other workers that state reads as
empty. ``make_checkpoint_manager`` gathers it on the chief while it saves, and
distributes it again after restoring, on any number of workers; a plain
``tf.train.Checkpoint`` cannot. With ``state`` a step must update in every call, without
``accumulation_steps`` or a dynamic loss scale, and nothing else in it may use the
state. With ``gradients``, buckets have one owner each, and others drop them.

State that Keras optimizers keep per variable through ``add_variable_from_reference``
is sharded: that of all of them, except the small factors of Adafactor. With ``state``,
an update in a branch (``accumulation_steps``, a dynamic loss scale, Keras' own
accumulation) is one node of the graph, which one owner computes for all; its state is
sharded nevertheless, but not over processes. With more, each owner has a branch.

The Keras optimizer keeps the state, under the same names: a checkpoint of a sharded
optimizer restores into an unsharded one and vice versa.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.optimizer import slots
from replicator.optimizer.accumulation import when
from replicator.step import context as context_lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from replicator.optimizer.fused import FusedUpdate
    from replicator.variables.ownership import Ownership


def kept_by_owners(grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Averaged gradients that only the owners of their variables keep."""
    context = context_lib.require("apply_gradients")

    def kept(grad: Any, variable: Any) -> Any:
        if not isinstance(grad, tf.IndexedSlices):
            return context.owned(grad, variable)
        values, indices = (
            context.owned(t, variable) for t in (grad.values, grad.indices)
        )
        return tf.IndexedSlices(values, indices, grad.dense_shape)

    return [
        kept(grad, _tf_compat.unwrap(variable))
        for grad, variable in zip(grads, variables, strict=True)
    ]


def by_owner(ownership: Ownership, variables: Sequence[Any]) -> list[list[int]]:
    """Positions of the variables of each owner."""
    groups: dict[Any, list[int]] = {}
    for place, variable in enumerate(map(_tf_compat.unwrap, variables)):
        groups.setdefault(ownership.owner(variable), []).append(place)
    return list(groups.values())


def update_if(
    condition: tf.Tensor,
    fused_update: FusedUpdate,
    averaged: Sequence[Any],
    variables: Sequence[Any],
    groups: Sequence[Sequence[int]],
) -> None:
    """Updates where a condition holds, each owner its variables.

    A branch is one node of the graph, which one owner runs: so there is one for each.
    """
    prepared = fused_update.prepare(1)
    for group in groups:
        grads, mine = ([every[p] for p in group] for every in (averaged, variables))
        update = functools.partial(fused_update.update, grads, mine, prepared)
        when(condition, update)
    when(condition, fused_update.count)


@contextlib.contextmanager
def building(
    ownership: Ownership,
    optimizer: Any,
    variables: Sequence[Any],
    *,
    shards_parameters: bool = False,
) -> Iterator[None]:
    """Assigns owners, and places the state that ``optimizer`` creates inside it."""
    inner = [_tf_compat.unwrap(variable) for variable in variables]
    ownership.assign(inner)
    if shards_parameters:
        ownership.store(inner)
        if not context_lib.in_replica_context():
            ownership.settle()

    def scope(variable: Any) -> contextlib.AbstractContextManager[Any] | None:
        if ownership.owner(variable) is None:
            return None
        return tf.variable_creator_scope(_on(ownership.device(variable)))

    with slots.placed(optimizer, scope, ownership.own_slot):
        yield


def _on(device: str) -> Callable[..., Any]:
    """A creator that places variables; Keras colocates state with its variable."""

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        with tf.device(device):
            return next_creator(**kwargs)

    return creator
