"""Input iterators whose batches a stock strategy gives to its replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator.inputs import last_step
from replicator.inputs.iterator import InputIterator
from replicator.step.values import PerReplica

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.inputs.context import InputContext, InputReplicationMode


class StrategyInputIterator(InputIterator):
    """Pipelines that a strategy distributes to its replicas."""

    stateless_reason = "iterators of tf.distribute cannot be saved"
    fills = False  # the strategy feeds batches without examples itself

    def __init__(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
        mode: InputReplicationMode,
        strategy: tf.distribute.Strategy,
        num_replicas: int,
        contexts: Sequence[InputContext],
        options: tf.distribute.InputOptions | None = None,
    ) -> None:
        self._strategy = strategy
        self._options = options
        super().__init__(input_fn, mode, num_replicas, contexts=contexts)

    def _iterate(self, pipelines: Sequence[tf.data.Dataset]) -> tuple[Any, ...]:
        if len(pipelines) == 1:
            merged = pipelines[0]
        else:
            # The strategy feeds one dataset to its replicas round-robin, so choosing
            # the pipelines round-robin gives replica r the batches of pipeline r.
            turns = tf.data.Dataset.range(len(pipelines)).repeat()
            merged = tf.data.Dataset.choose_from_datasets(list(pipelines), turns)
        distributed = self._strategy.distribute_datasets_from_function(
            lambda _: merged, self._options
        )
        with _tf_data.untuned_device_buffers():
            return (iter(distributed),)

    def _reads_per_step(self, num_iterators: int) -> int:
        """Once: what it gives is the batches of all replicas."""
        del num_iterators
        return 1

    def _get_next(self) -> Any:
        local = self._strategy.experimental_local_results
        has_any_size = last_step.can_fill(self.element_spec)

        def group(spec: Any, leaf: Any) -> PerReplica[Any]:
            common = spec if has_any_size else None
            return PerReplica(local(leaf), made_by=self.made_by, spec=common)

        batch = self._counted_reads().next(0)
        return tf.nest.map_structure(group, self.element_spec, batch)
