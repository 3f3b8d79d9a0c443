"""A measuring control: every replica gets the same batch in every step.

The batch is made once, by the pipeline of the workload, and kept in memory, so a step
has its real inputs without what it costs to read, decode and shuffle them. What a case
takes longer than this control is the input that its steps wait for. The copy from the
host to another device stays in the step. Learning means nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.delegating import Delegating
from workloads.spec import SanityCheck

if TYPE_CHECKING:
    from collections.abc import Callable

    import tensorflow as tf

    import replicator


class ReusingReplicator(Delegating):
    """A replicator whose pipelines repeat the first batch of each replica.

    Everything else is that of the replicator it was made of.

    Attributes:
      original: That replicator.
    """

    def make_input_iterator(
        self,
        input_fn: Callable[[replicator.InputContext], tf.data.Dataset],
        *args: Any,
        **options: Any,
    ) -> replicator.InputIterator:
        """Makes pipelines that repeat; see ``Replicator.make_input_iterator``."""

        def reusing_fn(context: replicator.InputContext) -> tf.data.Dataset:
            # A pipeline feeds its replicas in turn, so each gets its own batch again.
            num_fed = context.num_replicas_in_sync // context.num_input_pipelines
            return input_fn(context).take(num_fed).cache().repeat()

        return self.original.make_input_iterator(reusing_fn, *args, **options)


def not_checked(name: str) -> SanityCheck:
    """What stands for a check of the examples that were read."""
    return SanityCheck(
        name=name,
        is_passed=True,
        detail="not checked: this control repeats the first batch of each replica",
    )
