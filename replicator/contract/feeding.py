"""The part of the backend contract that feeds replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator.inputs import audit, prefetch
from replicator.inputs.context import (
    InputContext,
    InputReplicationMode,
    check_mode,
    own_contexts,
    pipeline_contexts,
)
from replicator.inputs.iterator import InputIterator
from replicator.placement import devices as device_lib
from replicator.placement.topology import JobFacts
from replicator.validation import user_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import tensorflow as tf


class FedBackend(JobFacts):
    """Input pipelines of a backend, and who reads which of them."""

    _divides_last_step = True

    @property
    def feeds_gpus(self) -> bool:
        """Whether this process feeds GPUs, to which it can prefetch batches."""
        return any(device_lib.is_gpu(device) for device in self._input_devices())

    def make_input_iterator(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
        mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
        *,
        prefetch_to_device: int = 0,
    ) -> InputIterator:
        """Builds the input pipelines and tracks their position.

        Args:
          input_fn: Takes an ``InputContext``, returns a ``tf.data.Dataset`` whose
            elements are batches of one replica.
          mode: How often ``input_fn`` is called, and which replicas each pipeline
            feeds.
          prefetch_to_device: Batches that are prefetched to each replica's device while
            earlier steps run; 0 reads a batch when its step begins.

        Returns:
          The ``inputs`` argument of ``run``.

        Raises:
          InputModeError: ``SINGLE``, if no process feeds all replicas; prefetching, if
            the backend does not support it.
          TypeError: ``input_fn`` is not a function of an ``InputContext``, or does not
            return a dataset.
          ValueError: Pipelines yield different structures or types, or
            ``prefetch_to_device`` is not a number of batches.
        """
        user_functions.check_input_fn(input_fn, "make_input_iterator")
        check_mode(mode)
        num_batches = prefetch.check_num_batches(prefetch_to_device)
        inputs = self._make_input_iterator(input_fn, mode, num_batches)
        inputs.made_by = self.maker
        return inputs

    def _make_input_iterator(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
        mode: InputReplicationMode,
        num_prefetched: int,
    ) -> InputIterator:
        """Makes the pipelines of this process from checked arguments."""
        contexts = own_contexts(
            mode, self.num_replicas, self.num_programs, self.worker_id
        )
        return InputIterator(
            input_fn,
            mode,
            self.num_local_replicas,
            contexts=contexts,
            prefetch=self._prefetch(num_prefetched),
        )

    def _prefetch(
        self, num_batches: int, sources: Sequence[str] = ()
    ) -> prefetch.DevicePrefetch | None:
        """Returns how batches are prefetched to this process's replicas, if at all."""
        if not num_batches:
            return None
        return prefetch.DevicePrefetch(
            num_batches=num_batches,
            devices=tuple(self._input_devices()),
            sources=tuple(sources),
        )

    def _input_devices(self) -> Sequence[str]:
        """The device of each local replica that receives its batches."""
        return device_lib.resolve(self.num_local_replicas, None, distinct=False)

    def audit_inputs(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
        mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
        *,
        key_fn: Callable[[Any], Any],
        num_examples: int | None = None,
    ) -> audit.InputAudit:
        """Reads one epoch and checks that each example is fed exactly once.

        This process reads all pipelines of the whole job, one after the other, before
        training; the epoch ends where ``run`` would end it. All keys are kept in
        memory.

        Args:
          input_fn: As for ``make_input_iterator``, without ``repeat``.
          mode: As for ``make_input_iterator``.
          key_fn: Takes a per-replica batch, returns one key per example (integers or
            strings): a vector of shape ``[examples]``.
          num_examples: Examples in the data set. None counts the examples that were
            read, so examples that no pipeline reads are not detected.

        Returns:
          The counts; print it for a one-line summary.

        Raises:
          InputAuditError: Examples are missing or repeated; the message names the
            pipelines and the fix; its ``audit`` has the counts.
          TypeError: ``key_fn`` is not a function of a batch.
          ValueError: ``num_examples`` is not an integer.
        """
        user_functions.check_input_fn(input_fn, "audit_inputs")
        check_mode(mode)
        return audit.audit(
            input_fn,
            pipeline_contexts(mode, self.num_replicas, self.num_workers),
            self.num_replicas,
            key_fn=key_fn,
            num_examples=num_examples,
            divides=self._divides_last_step,
        )
