"""Base of the programs that read a data set: what they feed is checked."""

from __future__ import annotations

import abc
import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

import replicator
from workloads import device_inputs, reused_batch
from workloads.data import audit
from workloads.replicated import ReplicatedProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workloads.data.sources import Examples
    from workloads.spec import SanityCheck


class DataProgram(ReplicatedProgram):
    """Feeds examples of a data set to a replicator, and checks which ones.

    Attributes:
      source: The data set, or None for synthetic data.
      batch_per_example: What a batch size counts of one example of the data set: 1, or
        the tokens of a sequence.
    """

    source: Examples | None
    batch_per_example: int = 1

    def __init__(
        self,
        repl: replicator.Replicator,
        *,
        source: Examples | None,
        per_replica_batch_size: int,
    ) -> None:
        """Stores what is read; ``_open_inputs`` creates the pipelines.

        Args:
          repl: The replicator.
          source: The data set, or None for synthetic data.
          per_replica_batch_size: Examples per replica and step.
        """
        super().__init__(repl, per_replica_batch_size=per_replica_batch_size)
        self.source = source
        self._contexts: list[replicator.InputContext] = []
        # Ids stay on their devices until sanity(): reading them here would be measured.
        self._consumed: list[tuple[int, Any]] = []

    def _open_inputs(self) -> None:
        """Creates the pipelines; called when all is known that determines batches."""
        self._inputs = device_inputs.make_iterator(
            self._repl, self._input_fn, self._input_mode()
        )

    def _input_mode(self) -> replicator.InputReplicationMode:
        """Returns which replicas each pipeline feeds."""
        return replicator.InputReplicationMode.PER_WORKER

    def _input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        self._contexts.append(context)
        return self._dataset(context)

    @abc.abstractmethod
    def _dataset(self, context: replicator.InputContext) -> tf.data.Dataset:
        """Returns the batches of one pipeline."""

    def batches(self) -> Iterator[Any]:
        """Reads the batches of all replicas without training on them."""
        while True:
            yield self._inputs.get_next()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what is wrong with the data, where a pipeline fails."""
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            reason = self.source and self.source.explain(error)
            if reason is None:
                raise
            raise ValueError(reason) from error

    def _finish(self, outputs: dict[str, Any], num_steps: int) -> float:
        """Waits for the device work of steps, keeps ids, returns the mean loss."""
        return self._keep(outputs, num_steps)()

    def _keep(self, outputs: dict[str, Any], num_steps: int) -> Callable[[], float]:
        """Keeps the ids of steps; returns a function that waits for their loss."""
        # Reading the losses waits for the replicas; updates are part of the same graph.
        read_loss = self._reader_of(outputs["loss"])
        self._num_steps += num_steps
        num_consumed = (
            self._num_steps * self.global_batch_size // self.batch_per_example
        )
        is_first = not self._consumed
        if (self.source is not None and not self.reuses_batch) and (
            is_first or num_consumed <= self._first_epoch_size(self.source)
        ):
            self._consumed.append((num_consumed, outputs["example_id"]))
        return read_loss

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks the loss, the copies of the variables, and the examples."""
        checks = [*super().sanity()]
        if self.source is not None:
            checks.append(audit.check_shards(self.source, self._contexts))
            checks.append(
                reused_batch.not_checked(audit.CONSUMED)
                if self.reuses_batch
                else self._check_consumed(self.source)
            )
        return tuple(checks)

    def _check_consumed(self, source: Examples) -> SanityCheck:
        steps = (
            (num_consumed, [int(i) for ids in per_replica for i in ids.numpy()])
            for num_consumed, per_replica in self._consumed
        )
        return audit.check_consumed(
            steps, first_epoch_size=self._first_epoch_size(source)
        )

    def _first_epoch_size(self, source: Examples) -> int:
        # Every pipeline contributes the same number of examples to a step, so the
        # smallest shard ends first.
        num_pipelines = self._contexts[0].num_input_pipelines
        return source.num_train_examples // num_pipelines * num_pipelines
