"""The contract of every replicator."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator.backends import programs, sharding, summary
from replicator.backends.programs import Call
from replicator.checkpoint.position import Job
from replicator.core import context as context_lib
from replicator.core import devices, validation
from replicator.core.validation import format_value, holding, is_integer
from replicator.errors import InputModeError, MeasuringControlError, StrategyError
from replicator.inputs import context as inputs_lib
from replicator.inputs.context import InputContext, InputFn, InputReplicationMode
from replicator.inputs.iterator import InputIterator, counted
from replicator.optimizer import other_libraries
from replicator.optimizer.options import OptimizerOptions
from replicator.optimizer.wrapper import ReplicatedOptimizer

if TYPE_CHECKING:
    import os

    from replicator.checkpoint.manager import CheckpointManager
    from replicator.inputs.audit import InputAudit
    from replicator.strategy.verify import FitCheck


# Controls exist to be timed beside the replicator of the same backend: the difference
# is the communication that the step waits for. What belongs to training is refused.

EXPLANATION = (
    "without_communication: a measuring control, whose replicas diverge. Nothing is "
    "communicated: every collective of the plan is replaced by the replica's own value"
)


def refuse(replicator: Job, what: str) -> None:
    """Rejects what needs replicas that communicate."""
    if replicator.without_communication:
        raise MeasuringControlError(
            f"{what} does not work with without_communication=True: the replicas of "
            "this measuring control do not communicate, so they diverge; create the "
            "replicator without this option to train"
        )


class InputRequest(NamedTuple):
    """The checked arguments of ``make_input_iterator``."""

    input_fn: InputFn
    mode: InputReplicationMode
    num_prefetched: int


class Replicator(Job, abc.ABC):
    """Runs a single-device step function on many replicas.

    Write ``input_fn`` and ``step_fn`` for one device; create variables inside
    ``context()``; call ``run`` in a loop. Call all methods in cross-replica context.

    Attributes:
      num_replicas: Replicas of the whole job.
      num_local_replicas: Replicas of this process; ``run`` returns their values.
      first_replica_id: Id of the first local replica.
      num_workers: Worker processes of the job, usually one per machine.
      worker_id: Index of this process among them.
      logical_devices_per_replica: Devices that one replica is split over.
      num_steps_run: Steps that ``run`` has finished; of a dispatch without an
        ``InputIterator`` that failed, none.
      without_communication: Whether this is a measuring control: its replicas do not
        communicate, and diverge.
    """

    num_steps_run: int = 0
    _strategy: tf.distribute.Strategy | None = None
    _divides_last_step = True
    _no_prefetch_because = ""  # Why it cannot prefetch to devices, or empty.
    # Of a replica, by logical device, where variables are placed; empty for anywhere.
    _places: Sequence[str | None] = ()

    @contextlib.contextmanager
    def context(self) -> Iterator[Replicator]:
        """Makes variables created inside it belong to this replicator."""
        with holding("replicator", self):
            yield self

    def logical_device(self, index: int) -> context_lib.Scope:
        """Places variables on a logical device; see ``replicator.logical_device``.

        Raises:
          DeviceError: No such logical device.
        """
        count = self.logical_devices_per_replica
        return context_lib.logical_scope(index, count, self._places)

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
          *more: Rejected; the error shows the equivalent of ``strategy.run``.
          num_steps: Steps to run in this call, in one dispatch; above 1, ``inputs``
            must be an ``InputIterator`` or None.
          **others: Rejected as well.

        Returns:
          The last step's nest of ``PerReplica``.

        Raises:
          OtherReplicatorError: Inputs or an optimizer of another replicator.
          ReplicatorError: Misuse inside the step; the message says how to fix it.
          TypeError: A step that cannot be called with one batch, or other arguments.
          tf.errors.OutOfRangeError: An input pipeline is at its end.
        """
        call = Call(step_fn, inputs, num_steps).checked(self, "run", more, others)
        begun = getattr(inputs, "num_steps", 0)
        # A profile shows the range "replicator/run" as a step of this number.
        try:
            with (
                holding("maker", self.replicator_id),
                counted(inputs, num_steps),
                tf.profiler.experimental.Trace(
                    "replicator/run", step_num=self.num_steps_run, _r=1
                ),
                self._guard(),
            ):
                outputs = self._run(call)
        except BaseException as error:
            # The step that failed has a batch, and one without data has none.
            is_end = isinstance(error, tf.errors.OutOfRangeError)
            read = getattr(inputs, "num_steps", 0) - begun
            self.num_steps_run += read if is_end else max(read - 1, 0)
            raise
        self.num_steps_run += num_steps
        return outputs

    @abc.abstractmethod
    def _run(self, call: Call) -> Any:
        """Runs steps; see ``run``."""

    def _guard(self) -> context_lib.Scope:
        """Raises an error that names a lost process, where others serve this one."""
        return contextlib.nullcontext()

    @property
    def feeds_gpus(self) -> bool:
        """Whether this process feeds GPUs, to which it can prefetch batches."""
        return any(map(devices.is_gpu, self._input_devices()))

    def make_input_iterator(
        self,
        input_fn: InputFn,
        mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
        *,
        prefetch_to_device: int = 0,
    ) -> InputIterator:
        """Builds the input pipelines and tracks their position, for ``run``.

        Args:
          input_fn: Takes an ``InputContext``, returns a ``tf.data.Dataset`` whose
            elements are batches of one replica.
          mode: How often it is called, and which replicas each pipeline feeds.
          prefetch_to_device: Batches that are prefetched to each replica's device while
            earlier steps run; 0 reads a batch when its step begins.

        Raises:
          InputModeError: ``SINGLE``, if no process feeds all replicas; prefetching, if
            the backend does not support it.
          TypeError: ``input_fn`` is not a function of an ``InputContext``, or does not
            return a dataset.
          ValueError: Pipelines yield different structures or types, or
            ``prefetch_to_device`` is not a number of batches.
        """
        validation.check_input_fn(input_fn, "make_input_iterator")
        inputs_lib.check_mode(mode)
        if not is_integer(prefetch_to_device, least=0, most=validation.INT32_MAX):
            raise ValueError(
                f"prefetch_to_device {format_value(prefetch_to_device)} must be an "
                "integer of at least 0 (batches to prefetch to the device of each "
                "replica); use 1 or 2, or 0 for none"
            )
        if prefetch_to_device and self._no_prefetch_because:
            raise InputModeError(
                f"prefetch_to_device={prefetch_to_device!r} does not work with "
                f"{type(self).__name__}, {self._no_prefetch_because}; end the dataset "
                f"of input_fn with .prefetch({prefetch_to_device}) instead"
            )
        asked = InputRequest(input_fn, mode, prefetch_to_device)
        inputs = self._make_input_iterator(asked)
        inputs.owner = self.replicator_id
        return inputs

    def _make_input_iterator(self, asked: InputRequest) -> InputIterator:
        return InputIterator(
            asked.input_fn,
            self._own_contexts(asked.mode),
            self.num_local_replicas,
            num_prefetched=asked.num_prefetched,
            targets=self._input_devices() if asked.num_prefetched else (),
        )

    def _own_contexts(self, mode: InputReplicationMode) -> Sequence[InputContext]:
        return inputs_lib.own_contexts(
            mode, self.num_replicas, self.num_programs, self.worker_id
        )

    def _input_devices(self) -> Sequence[str]:
        """The device of each local replica that receives its batches."""
        return devices.resolve(self.num_local_replicas, None, distinct=False)

    def audit_inputs(
        self,
        input_fn: InputFn,
        mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
        *,
        key_fn: Callable[[Any], Any],
        num_examples: int | None = None,
    ) -> InputAudit:
        """Reads one epoch and checks that each example is fed exactly once.

        This process reads all pipelines of the whole job, one after the other, before
        training; the epoch ends where ``run`` would end it. All keys are kept in
        memory. Print the returned counts for a one-line summary.

        Args:
          input_fn: As for ``make_input_iterator``, without ``repeat``.
          mode: As for ``make_input_iterator``.
          key_fn: Takes a per-replica batch, returns one key per example (integers or
            strings): a vector of shape ``[examples]``.
          num_examples: Examples in the data set. None counts the examples that were
            read, so examples that no pipeline reads are not detected.

        Raises:
          InputAuditError: Examples are missing or repeated; the message names the
            pipelines and the fix; its ``audit`` has the counts.
          TypeError: ``key_fn`` is not a function of a batch.
          ValueError: ``num_examples`` is not an integer.
        """
        validation.check_input_fn(input_fn, "audit_inputs")
        inputs_lib.check_mode(mode)
        from replicator.inputs import audit  # of tests and notebooks alone

        return audit.audit(
            input_fn,
            inputs_lib.pipeline_contexts(mode, self.num_replicas, self.num_workers),
            self.num_replicas,
            key_fn=key_fn,
            num_examples=num_examples,
            divides=self._divides_last_step,
        )

    def reduce(self, op: str, value: Any) -> Any:
        """Reduces return values of ``run`` over all replicas, to per-replica shapes.

        With a program per worker, every worker calls it, in the same order, with values
        of the same structure; a measuring control then reduces those of its own
        process, without waiting for the others.

        Args:
          op: ``sum``, ``mean``, ``min`` or ``max``.
          value: A nest of ``PerReplica``; other leaves are returned unchanged.

        Raises:
          TypeError: Values that are not dense tensors.
          ValueError: Unknown ``op``; values of different shapes, or of a type that
            ``op`` does not support.
        """
        with self._guard():
            return programs.reduce(self, op, value)

    def wrap_optimizer(
        self,
        optimizer: Any,
        *,
        compression: str | None = None,
        accumulation_steps: int = 1,
        global_clipnorm: float | None = None,
        sharded_update: bool | str = False,
        loss_scale: float | str | None = None,
    ) -> ReplicatedOptimizer:
        """Makes ``apply_gradients`` average gradients over replicas (sum / R) once.

        The returned optimizer, for use inside step functions, has the same attributes.

        Args:
          optimizer: Of Keras, or of tf_keras, Sonnet or ``tf.compat.v1``, which take
            ``compression`` and ``global_clipnorm`` only; it keeps its state.
          compression: ``bfloat16`` or ``float16``: gradients are sent between memories
            in 16 bits, weights are unchanged; see ``collectives/transport.py``.
          accumulation_steps: Calls of ``apply_gradients`` per update, which uses the
            average of their gradients; see ``optimizer/stages.py``.
          global_clipnorm: Upper limit of the norm of all averaged gradients together.
          sharded_update: What one replica keeps of each variable, for all: ``state``
            (or True), ``gradients`` as well, or ``parameters`` too; it updates the
            variable. See ``optimizer/stages.py``.
          loss_scale: Factor by which ``optimizer.scale_loss(loss)`` multiplies, and by
            which gradients are divided, or ``dynamic``; see the same file.

        Raises:
          MeasuringControlError: ``sharded_update``, where replicas do not communicate.
          OptimizerOptionError: An invalid value, one that conflicts with an option of
            the optimizer itself, or one that this backend does not support.
          TypeError: ``optimizer`` is not a Keras optimizer.
        """
        options = OptimizerOptions(
            compression=compression,
            accumulation_steps=accumulation_steps,
            global_clipnorm=global_clipnorm,
            sharded_update=sharded_update,
            loss_scale=loss_scale,
        )
        if options.level is not None:  # an owner's updates would not reach the others
            refuse(self, "sharded_update")
        wrapped = self._wrap_optimizer(optimizer, options)
        wrapped.owner = self.replicator_id
        return wrapped

    def _wrap_optimizer(self, optimizer: Any, options: OptimizerOptions) -> Any:
        """Wraps with unchecked options; backends reject those that they lack."""
        other = other_libraries.wrapped(optimizer, options)
        return other or ReplicatedOptimizer(optimizer, options=options)

    def as_strategy(self) -> tf.distribute.Strategy:
        """Returns this replicator in the spelling of ``tf.distribute``.

        ``with repl.as_strategy().scope():``, Keras' ``compile`` and ``fit``, and code
        that was written for a ``tf.distribute.Strategy`` use this replicator.

        Raises:
          StrategyError: The backend's replicas do not update together.
        """
        if self._strategy is None:
            self._strategy = self._make_strategy()
        return self._strategy

    def _make_strategy(self) -> tf.distribute.Strategy:
        raise StrategyError(
            f"{type(self).__name__} has no strategy: its steps cannot be part of a "
            'tf.function; use create("in_graph"), create("multi_worker") or '
            'create("single")'
        )

    def scope(self, *, verify: bool = False) -> Any:
        """``as_strategy().scope()``: models made inside it train on all replicas.

        Args:
          verify: Whether ``fit`` first does what ``verify_fit`` does, with its first
            batch, and raises ``StrategyError`` before it trains anything where a row
            differs. Rows that cannot be compared are a warning.
        """
        strategy = self.as_strategy()
        return strategy.scope(verify=True) if verify else strategy.scope()

    def verify_fit(
        self, model: Any, batch: Any, tolerance: float | None = None
    ) -> FitCheck:
        """Measures whether ``fit`` of a model on these replicas is ``fit`` on one.

        Runs the training step of the model, as it was compiled, with one replica and
        with all on the same batch, and returns a table of gradients (or updates),
        metrics and logs; print it. Weights, state of optimizers, metrics and random
        generators are restored. Dropout and augmentation draw nothing meanwhile. With
        several workers, each calls it with the same batch.

        Args:
          model: A ``keras.Model`` that was made and compiled in ``scope()``.
          batch: A global batch as ``train_step`` gets it, such as ``(x, y)``, or ``(x,
            y, sample_weight)``; its examples must not all be equal.
          tolerance: The largest relative difference that is taken for rounding; None
            for that of the model's type: 1e-4 with float32.

        Raises:
          StrategyError: Not such a model or batch, or a backend with one replica.
        """
        from replicator.strategy.verify import verify_fit  # with all of fit()

        return verify_fit(self.as_strategy(), model, batch, tolerance)

    def make_checkpoint_manager(
        self,
        directory: str | os.PathLike[str],
        *,
        max_to_keep: int | None = 5,
        inputs: InputIterator | None = None,
        **trackables: Any,
    ) -> CheckpointManager:
        """Makes a manager that saves training, for any backend and replica count.

        Args:
          directory: Directory of the checkpoints, created on the first save. All
            workers of a job must be able to access it.
          max_to_keep: Checkpoints to keep, oldest deleted first; None keeps all.
          inputs: The input iterator whose position is saved with the training.
          **trackables: What to save, by name: ``model=model, optimizer=optimizer``
            (wrapped or not), ``tf.Module``s, ``tf.Variable``s.

        Raises:
          MeasuringControlError: The replicas do not communicate.
          OtherReplicatorError: Inputs or an optimizer of another replicator.
          TypeError: Something that TensorFlow cannot save; ``directory`` is not a path.
          ValueError: Nothing to save, or ``max_to_keep`` is less than 1.
        """
        from replicator.checkpoint.manager import CheckpointManager

        refuse(self, "make_checkpoint_manager()")
        return CheckpointManager(
            self, directory, trackables, max_to_keep=max_to_keep, inputs=inputs
        )

    def summary(self, device_memory: int | None = None) -> str:
        """Describes the topology: workers, replicas, devices, bytes of variables.

        With ``sharded_update``, also a table of the bytes per device by level.

        Args:
          device_memory: Bytes of a device: marks the levels that fit.

        Raises:
          ValueError: ``device_memory`` is not a positive integer.
        """
        most = validation.INT64_MAX
        if not (device_memory is None or is_integer(device_memory, least=1, most=most)):
            raise ValueError(
                f"device_memory={format_value(device_memory)} must be a positive "
                "integer, the bytes of a device that weights, gradients and optimizer "
                "state may take"
            )
        return "\n".join([*summary.head(self), *self._described(device_memory)])

    def _described(self, device_memory: int | None) -> list[str]:
        """The lines of ``summary`` about this process's replicas and variables."""
        where = "variables: on the devices where they were created"
        return [where, *sharding.table([], device_memory)]

    def timeline(self, path: str | os.PathLike[str]) -> context_lib.Scope:
        """Records what this process computes meanwhile, into a trace of Chrome.

        ``with repl.timeline("trace.json"):`` around some steps. Perfetto and
        ``chrome://tracing`` open the file. TensorFlow's profiler measures, and each
        event has in its arguments which ``replica``, ``bucket`` of a collective,
        ``stage`` and ``task`` of a pipeline, and ``op`` it is of. Run each step once
        before: tracing it is slow. Every worker writes the path that it gives.

        Args:
          path: Of the file, in a folder that exists.

        Raises:
          TypeError: No path.
          ValueError: A folder, or a file in none.
          RuntimeError: Another profile of this process is running.
        """
        return summary.timeline(path)

    @abc.abstractmethod
    def explain(self) -> str:
        """Describes the collectives of all steps that have been traced."""

    def counts(self) -> dict[str, int]:
        """Counts what each run of the same code has alike, of all traced steps.

        Each step counts once: ``collectives`` that it starts (buckets of tensors) and
        ``collective_bytes`` that each replica gives to them, in the types in which they
        are sent. ``variable_bytes`` are all copies of this process. Of a ``Pipeline``
        also ``activation_bytes`` that a replica keeps for a backward pass, at most.
        Empty where the backend does not know its plan.
        """
        return {}

    def assert_in_sync(self) -> None:
        """Checks that all copies of every mirrored variable are bit-identical.

        With a program per worker a collective: every worker calls it, and all raise.
        Where replicas share their variables it holds by construction.

        Raises:
          MeasuringControlError: The replicas do not communicate.
          ReplicasOutOfSyncError: Some differ; the message names them.
        """
        refuse(self, "assert_in_sync()")
        with self._guard():
            self._compare_copies()

    def _compare_copies(self) -> None:
        """Compares; see ``assert_in_sync``."""


class ProgramReplicator(Replicator):
    """A base class: its steps are programs, which a strategy runs and emits too."""

    _programs: programs.ProgramCache
    _one_replica: type[Replicator] | None = None  # What ``fit`` is verified by.

    @abc.abstractmethod
    def build_step(self, step_fn: Callable[..., Any], specs: Sequence[Any]) -> Any:
        """Builds a step, for any number of steps per dispatch."""

    @abc.abstractmethod
    def _dispatch(self, program: Any, call: Call, source: Any) -> Any:
        """Runs the steps of a call, which read a source."""

    def _run(self, call: Call) -> Any:
        program = self._programs.get(
            call, lambda: self.build_step(call.step_fn, call.specs)
        )
        source = call.source(range(self.num_local_replicas))
        return self._dispatch(program, call, source)

    def run_step(self, program: Any, name: str, batches: Sequence[Any]) -> list[Any]:
        """Runs a step of the strategy once, on the inputs of each replica."""
        source = list(map(list, batches)) if any(batches) else None
        outputs = self._dispatch(program, Call(name=name), source)
        return [[leaf[r] for leaf in outputs] for r in range(len(batches))]

    def _make_strategy(self) -> tf.distribute.Strategy:
        from replicator.strategy.strategy import ReplicatorStrategy  # with fit()

        return ReplicatorStrategy(self, self._one_replica)
