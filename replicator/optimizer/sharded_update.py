"""sharded_update: each replica updates its share of the variables, for all.

The first stage of ZeRO (Rajbhandari et al. 2020). Every variable gets an owner among
the replicas that keep copies, balanced by bytes. The optimizer state of a variable
exists once, on its owner's device; the averaged gradient is needed there only; the
owner's new value is copied to the others. So with R owners each keeps and computes 1/R
of it. Where replicas share one copy of the variables (the CPUs of one machine), there
is one update and one copy of its state anyway, and nothing changes.

Between worker processes (``multi_worker``) owners are the replicas of all workers. The
averaged gradients reach every worker, since TensorFlow's rings add up but do not
scatter (only NCCL would); each updates its share and broadcasts the new values to the
others, in buckets. So half as many bytes again travel as without sharding, and each
process has the optimizer state of its share only: on other workers that state reads as
empty. ``make_checkpoint_manager`` brings it together on the chief while it saves, and
shares it out again after restoring, on any number of workers; a plain
``tf.train.Checkpoint`` cannot. A step must update in every call, without
``accumulation_steps`` or a dynamic loss scale, and nothing else in it may use the
state.

State that Keras optimizers keep per variable through ``add_variable_from_reference``
is sharded: that of all of them, but for the small factors of Adafactor. An update in a
branch (``accumulation_steps``, a dynamic loss scale, Keras' own accumulation) is one
node of the graph, which one owner computes for all; its state is sharded all the same,
but not over processes.

State stays that of the Keras optimizer, under the same names: checkpoints go from
sharded to unsharded optimizers and back.
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


class ShardedUpdate:
    """Makes the state of one optimizer where its variables' owners are."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership

    @contextlib.contextmanager
    def building(self, optimizer: Any, variables: Sequence[Any]) -> Iterator[None]:
        """Assigns owners, and places the state that ``optimizer`` makes inside it."""
        self._ownership.assign([_tf_compat.unwrap(v) for v in variables])
        with slots.placed(optimizer, self._scope, self._ownership.own_slot):
            yield

    def _scope(self, variable: Any) -> contextlib.AbstractContextManager[Any] | None:
        if self._ownership.owner(variable) is None:
            return None
        return tf.variable_creator_scope(_on(self._ownership.device(variable)))


def _on(device: str) -> Callable[..., Any]:
    """A creator that places variables; Keras colocates state with its variable."""

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        with tf.device(device):
            return next_creator(**kwargs)

    return creator
