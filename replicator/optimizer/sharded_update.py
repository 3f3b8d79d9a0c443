"""sharded_update: each replica updates a part of the variables for all replicas.

This is stage 1 of ZeRO (Rajbhandari et al. 2020; record 0012). The update is traced as
for one device, and each node is emitted only where its result is needed; this module
only says where state is. Every variable gets an owner among
the replicas that keep copies, balanced by bytes. The optimizer state of a variable
exists once, on its owner's device; the averaged gradient is needed there only; the
owner's new value is copied to the others. So each of R owners keeps and computes 1/R
of the state and the update. If replicas share one copy of the variables (the CPUs of
one machine), there is one update and one copy of its state anyway, and nothing changes.

Between worker processes (``multi_worker``) owners are the replicas of all workers. The
averaged gradients reach every worker, because TensorFlow's rings all-reduce but do not
reduce-scatter (only NCCL would); each worker updates its part and broadcasts the new
values to the others, in buckets. So 1.5 times as many bytes are sent as without
sharding, and each process has the optimizer state of its part only: on other workers
that state reads as empty. ``make_checkpoint_manager`` gathers it on the chief while it
saves, and distributes it again after restoring, on any number of workers; a plain
``tf.train.Checkpoint`` cannot. A step must update in every call, without
``accumulation_steps`` or a dynamic loss scale, and nothing else in it may use the
state.

State that Keras optimizers keep per variable through ``add_variable_from_reference``
is sharded: that of all of them, except the small factors of Adafactor. An update in a
branch (``accumulation_steps``, a dynamic loss scale, Keras' own accumulation) is one
node of the graph, which one owner computes for all; its state is sharded nevertheless,
but not over processes.

The Keras optimizer keeps the state, under the same names: a checkpoint of a sharded
optimizer restores into an unsharded one and vice versa.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.optimizer import slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from replicator.variables.ownership import Ownership


@contextlib.contextmanager
def building(
    ownership: Ownership, optimizer: Any, variables: Sequence[Any]
) -> Iterator[None]:
    """Assigns owners, and places the state that ``optimizer`` creates inside it."""
    ownership.assign([_tf_compat.unwrap(variable) for variable in variables])

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
