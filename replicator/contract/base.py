"""The contract of every replicator."""

from __future__ import annotations

import abc
import contextlib
from typing import TYPE_CHECKING, Any

from replicator._tf.dispatch import profiled
from replicator.contract import output_reduction, programs, summary
from replicator.inputs import audit, prefetch
from replicator.inputs.context import (
    InputContext,
    InputReplicationMode,
    check_mode,
    own_contexts,
    pipeline_contexts,
)
from replicator.inputs.iterator import InputIterator, counted
from replicator.optimizer.options import OptimizerOptions
from replicator.optimizer.wrapper import ReplicatedOptimizer
from replicator.placement import devices as device_lib
from replicator.step import context as context_lib
from replicator.step import logical
from replicator.validation import user_functions
from replicator.variables.checkpoint_contract import CheckpointedBackend

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Iterator, Sequence

    import tensorflow as tf

    from replicator.checkpoint.manager import CheckpointManager


class Replicator(CheckpointedBackend, abc.ABC):
    """Runs a single-device step function on many replicas.

    Write ``input_fn`` and ``step_fn`` for one device; make variables inside
    ``context()``; call ``run`` in a loop. All methods belong in cross-replica context.

    Attributes:
      num_replicas: Copies of the computation, in the whole job.
      num_local_replicas: Those that this process runs; ``run`` returns their values.
      first_replica_id: Id of the first of them.
      num_workers: Machines (worker processes) of the job.
      worker_id: Which of them this process is.
      logical_devices_per_replica: Devices that one replica is split over.
      num_steps_run: Steps that ``run`` has finished.
    """

    num_replicas: int
    first_replica_id: int = 0
    num_workers: int = 1
    worker_id: int = 0
    logical_devices_per_replica: int = 1
    num_steps_run: int = 0

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose updates are aggregated each step."""
        return self.num_replicas

    @property
    def num_local_replicas(self) -> int:
        """Replicas that this process runs."""
        return self.num_replicas

    @property
    def num_programs(self) -> int:
        """Processes that run the user's program; workers that only serve are none."""
        return self.num_workers

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what the job writes once: checkpoints, logs."""
        return self.worker_id == 0

    @contextlib.contextmanager
    def context(self) -> Iterator[Replicator]:
        """Makes variables created inside it belong to this replicator."""
        with context_lib.enter_replicator(self):
            yield self

    def logical_device(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Places variables on a logical device; see ``replicator.logical_device``.

        Raises:
          DeviceError: No such logical device.
        """
        logical.check_index(index, self.logical_devices_per_replica)
        return contextlib.nullcontext()

    def make_input_iterator(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
        mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
        *,
        prefetch_to_device: int = 0,
    ) -> InputIterator:
        """Calls ``input_fn`` as often as ``mode`` says and keeps the pipelines' place.

        Args:
          input_fn: Takes an ``InputContext``, returns a ``tf.data.Dataset`` whose
            elements are batches of one replica.
          mode: How many pipelines there are and how they are dealt to replicas.
          prefetch_to_device: Batches that wait on each replica's device, read and
            copied while earlier steps run; 0 reads when a step begins.

        Returns:
          What ``run`` takes as ``inputs``.

        Raises:
          InputModeError: ``SINGLE``, where no process feeds all replicas; prefetching,
            where the backend cannot.
          TypeError: ``input_fn`` is no function of an ``InputContext``, or returned
            something else than a dataset.
          ValueError: Pipelines yield different structures or types, or
            ``prefetch_to_device`` is no number of batches.
        """
        user_functions.check_input_fn(input_fn, "make_input_iterator")
        check_mode(mode)
        num_batches = prefetch.check_num_batches(prefetch_to_device)
        return self._make_input_iterator(input_fn, mode, num_batches)

    def _make_input_iterator(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
        mode: InputReplicationMode,
        num_prefetched: int,
    ) -> InputIterator:
        """Makes the pipelines of this process; arguments were checked."""
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
        """How the batches of this process's replicas get ahead of their steps."""
        if not num_batches:
            return None
        return prefetch.DevicePrefetch(
            num_batches=num_batches,
            devices=tuple(self._input_devices()),
            sources=tuple(sources),
        )

    def _input_devices(self) -> Sequence[str]:
        """The device of each local replica where its batches arrive."""
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

        All pipelines of the whole job are read in this process, one after the other,
        before anything trains; the epoch ends where ``run`` would end it. Every key is
        held in memory.

        Args:
          input_fn: As for ``make_input_iterator``, without ``repeat``.
          mode: As for ``make_input_iterator``.
          key_fn: Takes a per-replica batch, returns one key per example (integers or
            strings): a vector of shape ``[examples]``.
          num_examples: Examples that there are. None takes those that were read, so
            that examples which no pipeline reads go unnoticed.

        Returns:
          The counts; print it for one line.

        Raises:
          InputAuditError: Examples are missing or repeated; says which pipelines, and
            how to mend it; its ``audit`` has the counts.
          TypeError: ``key_fn`` is no function of a batch.
          ValueError: ``num_examples`` is no integer.
        """
        user_functions.check_input_fn(input_fn, "audit_inputs")
        check_mode(mode)
        return audit.audit(
            input_fn,
            pipeline_contexts(mode, self.num_replicas, self.num_workers),
            self.num_replicas,
            key_fn=key_fn,
            num_examples=num_examples,
        )

    def run(
        self,
        step_fn: Callable[..., Any],
        inputs: InputIterator | Any = None,
        *more: Any,
        num_steps: int = 1,
        **others: Any,
    ) -> Any:
        """Runs the step function once per replica and step.

        Args:
          step_fn: Single-device code: takes one per-replica batch (nothing when
            ``inputs`` is None), returns a nest of tensors. Pass the same function
            object on every call: it is traced once.
          inputs: An ``InputIterator``, a nest of ``PerReplica``, or None.
          *more: Refused, with what to write for ``strategy.run(step, args=...)``.
          num_steps: Steps to run in this one call; above 1, ``inputs`` must be an
            ``InputIterator`` or None.
          **others: Refused as well.

        Returns:
          The last step's nest of ``PerReplica``.

        Raises:
          ReplicatorError: Misuse inside the step; the message says how to mend it.
          TypeError: A step that cannot be called with one batch, or other arguments.
          tf.errors.OutOfRangeError: An input pipeline came to its end.
        """
        programs.check_caller()
        if more or others:
            user_functions.check_no_more("run", more, others)
        programs.check_num_steps(num_steps, inputs)
        signature, specs = programs.split_inputs(inputs, self.num_local_replicas)
        # A profile shows the range "replicator/run" as a step of this number.
        with counted(inputs, num_steps), profiled("replicator/run", self.num_steps_run):
            outputs = self._run(step_fn, inputs, signature, specs, num_steps)
        self.num_steps_run += num_steps
        return outputs

    @abc.abstractmethod
    def _run(
        self,
        step_fn: Callable[..., Any],
        inputs: InputIterator | Any,
        signature: Hashable,
        specs: list[Any],
        num_steps: int,
    ) -> Any:
        """Runs steps over inputs that were checked; see ``run``.

        Args:
          step_fn: Single-device code.
          inputs: As in ``run``.
          signature: What a program for such inputs is known by.
          specs: The nests of ``tf.TypeSpec`` that ``step_fn`` takes: one, or none.
          num_steps: Steps to run.
        """

    def reduce(self, op: str, value: Any) -> Any:
        """Combines what ``run`` returned over replicas.

        Args:
          op: ``sum``, ``mean``, ``min`` or ``max``.
          value: A nest of ``PerReplica``; other leaves are returned as they are.

        Returns:
          A nest of tensors of the per-replica shapes.

        Raises:
          TypeError: Values that are no dense tensors.
          ValueError: Unknown ``op``; values of other shapes, or of a type without it.
        """
        return output_reduction.reduce_here(op, value, self.num_local_replicas)

    def wrap_optimizer(
        self,
        optimizer: Any,
        *,
        compression: str | None = None,
        accumulation_steps: int = 1,
        global_clipnorm: float | None = None,
        sharded_update: bool = False,
        loss_scale: float | str | None = None,
    ) -> ReplicatedOptimizer:
        """Makes ``apply_gradients`` average over replicas first (sum / R), once.

        Args:
          optimizer: A Keras optimizer; its state stays in it.
          compression: ``bfloat16`` or ``float16``: gradients cross between memories in
            16 bits, weights stay as they are; see ``collectives/compression.py``.
          accumulation_steps: Calls of ``apply_gradients`` that make one update, with
            the average of their gradients; see ``optimizer/accumulation.py``.
          global_clipnorm: Largest norm of all averaged gradients together.
          sharded_update: Each variable is updated, and its optimizer state kept, by one
            replica; see ``optimizer/sharded_update.py``.
          loss_scale: Factor by which ``optimizer.scale_loss(loss)`` multiplies, and by
            which gradients are divided, or ``dynamic``; see ``loss_scale.py``.

        Returns:
          An optimizer with the same attributes, for use inside step functions.

        Raises:
          OptimizerOptionError: A wrong value, one that the optimizer has an own option
            for, or one that this backend cannot do.
          TypeError: ``optimizer`` is no Keras optimizer.
        """
        options = OptimizerOptions(
            compression=compression,
            accumulation_steps=accumulation_steps,
            global_clipnorm=global_clipnorm,
            sharded_update=sharded_update,
            loss_scale=loss_scale,
        )
        return self._wrap_optimizer(optimizer, options)

    def _wrap_optimizer(
        self, optimizer: Any, options: OptimizerOptions
    ) -> ReplicatedOptimizer:
        """Wraps with options that are not checked; backends refuse what they lack."""
        return ReplicatedOptimizer(
            optimizer, num_replicas=self.num_replicas, options=options
        )

    def make_checkpoint_manager(
        self,
        directory: str | os.PathLike[str],
        *,
        max_to_keep: int | None = 5,
        inputs: InputIterator | None = None,
        **trackables: Any,
    ) -> CheckpointManager:
        """Makes what saves and restores training, on any backend and replica count.

        Args:
          directory: Where checkpoints are; made on the first save. All workers of a
            job must see it.
          max_to_keep: Checkpoints to keep, oldest deleted first; None keeps all.
          inputs: The input iterator whose position belongs to the training.
          **trackables: What to save, by name: ``model=model, optimizer=optimizer``
            (wrapped or not), ``tf.Module``s, ``tf.Variable``s.

        Returns:
          The manager; see ``CheckpointManager``.

        Raises:
          TypeError: Something that TensorFlow cannot save; ``directory`` is no path.
          ValueError: Nothing to save, or ``max_to_keep`` is less than 1.
        """
        from replicator.checkpoint.manager import CheckpointManager

        return CheckpointManager(
            self, directory, trackables, max_to_keep=max_to_keep, inputs=inputs
        )

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Collects one string from every worker, in all of them, by worker id.

        Also a barrier: nobody leaves before everybody came.
        """
        return [payload]

    def summary(self) -> str:
        """Describes the topology: workers, replicas, devices, bytes of variables."""
        return summary.describe(self, [], None)

    @abc.abstractmethod
    def explain(self) -> str:
        """Describes the collectives of the steps that were traced so far."""

    @abc.abstractmethod
    def assert_in_sync(self) -> None:
        """Checks that all copies of every mirrored variable are bit-identical.

        Raises:
          ReplicasOutOfSyncError: Some differ; the message names them.
        """
