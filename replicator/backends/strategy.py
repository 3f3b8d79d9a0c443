"""The stock strategies of ``tf.distribute`` behind the replicator contract.

They are peers for comparison, so they follow their own documentation: datasets through
``distribute_datasets_from_function``, steps through ``strategy.run`` inside a
``tf.function``, gradients reduced by the Keras optimizer.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf import local_reduction
from replicator._tf.dispatch import Dispatch
from replicator.backends.strategy_context import (
    LocalReplicaContext,
    StrategyReplicaContext,
)
from replicator.backends.strategy_inputs import StrategyInputIterator
from replicator.contract import base, control, programs, sharding, summary
from replicator.inputs.context import own_contexts
from replicator.inputs.iterator import InputIterator
from replicator.inputs.reads import Source
from replicator.inputs.values import as_value
from replicator.optimizer.strategy_optimizer import StrategyOptimizer
from replicator.placement import devices as device_lib
from replicator.step import context, creation
from replicator.step.creation import StepGenerator
from replicator.step.tracing import repeat
from replicator.step.values import PerReplica, check_outputs, per_replica_nest
from replicator.validation.arguments import shown
from replicator.validation.maker import running
from replicator.variables.coherence import report_out_of_sync
from replicator.variables.kinds import Kind, declared_kind
from replicator.variables.table import LocalState

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from replicator.inputs.context import InputContext, InputReplicationMode
    from replicator.optimizer.options import OptimizerOptions
    from replicator.optimizer.wrapper import ReplicatedOptimizer


class StrategyReplicator(base.Replicator):
    """Runs steps under a given ``tf.distribute`` strategy.

    Attributes:
      strategy: The stock strategy.
    """

    replica_context_class: type[StrategyReplicaContext] = StrategyReplicaContext
    _wraps_alike = False

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        if not isinstance(strategy, tf.distribute.Strategy):
            raise TypeError(
                "StrategyReplicator takes a tf.distribute.Strategy, but got "
                f"{shown(strategy)}; pass for example "
                "tf.distribute.MirroredStrategy(), or write replicator.create(backend)"
            )
        self.strategy = strategy
        self.num_replicas = strategy.num_replicas_in_sync
        self._programs = programs.ProgramCache()
        self._mirrored: dict[int, Any] = {}

    @contextlib.contextmanager
    def context(self) -> Iterator[StrategyReplicator]:
        """Makes variables under the strategy's scope."""

        def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            variable = next_creator(**kwargs)
            self._mirrored[id(variable)] = variable
            return variable

        with (
            super().context(),
            self.strategy.scope(),
            tf.variable_creator_scope(creator),
        ):
            yield self

    def _make_strategy(self) -> tf.distribute.Strategy:
        """The stock strategy itself."""
        _tf_distribute.builds_from_specs(self.strategy)
        return self.strategy

    def _make_input_iterator(
        self,
        input_fn: Callable[[InputContext], tf.data.Dataset],
        mode: InputReplicationMode,
        num_prefetched: int,
    ) -> InputIterator:
        """Distributes the pipelines; a stock strategy prefetches in its own way."""
        contexts = own_contexts(
            mode, self.num_replicas, self.num_workers, self.worker_id
        )
        options = num_prefetched and tf.distribute.InputOptions(
            experimental_fetch_to_device=True,
            experimental_per_replica_buffer_size=num_prefetched,
        )
        return StrategyInputIterator(
            input_fn,
            mode,
            self.strategy,
            self.num_local_replicas,
            contexts,
            options or None,
        )

    def _wrap_optimizer(
        self, optimizer: Any, options: OptimizerOptions
    ) -> ReplicatedOptimizer:
        """Leaves reduction to Keras; see ``StrategyOptimizer``."""
        options.check(optimizer)
        options.refuse("tf_mirrored", type(self.strategy).__name__)
        num_accumulated = getattr(optimizer, "gradient_accumulation_steps", None)
        if num_accumulated:
            raise ValueError(
                f"gradient_accumulation_steps={num_accumulated!r} does not work with "
                f"{type(self.strategy).__name__}: Keras reduces gradients in a branch, "
                "which tf.distribute does not support; use the in_graph backend, or "
                "gradient_accumulation_steps=None"
            )
        return StrategyOptimizer(optimizer, options=options)

    def _run(
        self,
        step_fn: Callable[..., Any],
        inputs: InputIterator | Any,
        signature: Hashable,
        specs: list[Any],
        num_steps: int,
    ) -> Any:
        del specs  # the strategy takes them from its distributed inputs
        if isinstance(inputs, InputIterator):
            source = inputs.source
        elif inputs is None:
            source = None
        else:
            source = tf.nest.map_structure(self._distribute, inputs)
            # The strategy traces for shapes, and those of a last step are smaller.
            read = [leaf for leaf in tf.nest.flatten(inputs) if leaf.spec is not None]
            signature = signature, tuple(str(v.shape) for leaf in read for v in leaf)
        program = self._programs.get(
            step_fn, (signature, num_steps), lambda: self._build(step_fn, num_steps)
        )
        with creation.forbidden_in_steps():
            try:
                return program(source)
            except tf.errors.CancelledError as error:
                # Of replicas that all come to the end, one may cancel the others
                # first, and that is what the function then raises.
                if isinstance(inputs, InputIterator) and inputs.may_end:
                    raise tf.errors.OutOfRangeError(
                        error.node_def, error.op, "End of sequence"
                    ) from error
                self._repair()
                raise
            except tf.errors.OutOfRangeError:
                raise
            except tf.errors.OpError:
                self._repair()
                raise

    def _repair(self) -> None:
        """Makes copies that are to be equal the first one's, after a step that failed.

        Only some may have been written.
        """
        for variable in self._mirrored.values():
            if declared_kind(variable) is Kind.MIRRORED:
                first, *others = self._components(variable)
                for component in others:
                    component.assign(first)

    def _distribute(self, leaf: PerReplica[Any]) -> Any:
        return self.strategy.experimental_distribute_values_from_function(
            lambda value_context: as_value(
                leaf[value_context.replica_id_in_sync_group % self.num_local_replicas]
            )
        )

    def _build(self, step_fn: Callable[..., Any], num_steps: int) -> Any:
        run_steps, structure = self._flat_steps(step_fn, num_steps)
        dispatch = Dispatch(run_steps, autograph=True)

        def program(source: Any) -> Any:
            flat = dispatch(source)
            return per_replica_nest(
                structure[0], flat, self.num_local_replicas, tf.nest.map_structure
            )

        return program

    def _flat_steps(
        self, step_fn: Callable[..., Any], num_steps: int
    ) -> tuple[Callable[[Any], list[tf.Tensor]], list[Any]]:
        """What is traced to run steps under the strategy."""
        replica_context = self.replica_context_class(self.strategy.num_replicas_in_sync)
        replica_context.num_logical_devices = self.logical_devices_per_replica
        local = self.strategy.experimental_local_results
        generator = StepGenerator()  # of all replicas, each traced in its thread
        structure: list[Any] = [None]

        def step(*batch: Any) -> Any:
            with (  # in the thread of a replica
                running(self.maker),
                context.enter(replica_context),
                generator.installed(),
            ):
                return check_outputs(step_fn(*batch), step_fn)

        def run_steps(source: Any) -> list[tf.Tensor]:
            def flat_step() -> list[tf.Tensor]:
                batch = next(source) if hasattr(source, "__next__") else source
                if isinstance(source, Source):
                    batch = source.read(0, next)
                args = () if source is None else (batch,)
                outputs = self.strategy.run(step, args=args)
                structure[0] = tf.nest.map_structure(
                    lambda leaf: None if leaf is None else 0, outputs
                )
                leaves = [local(x) for x in tf.nest.flatten(outputs) if x is not None]
                return [value for replica in zip(*leaves) for value in replica]  # noqa: B905 (AutoGraph knows no strict zip)

            if num_steps == 1:
                return flat_step()
            specs = self._output_specs(flat_step)
            return repeat(lambda _: flat_step(), num_steps, specs)

        return run_steps, structure

    def _output_specs(
        self, flat_step: Callable[[], list[tf.Tensor]]
    ) -> list[tf.TensorSpec]:
        """Traces one step aside to learn the shapes that the loop will carry."""
        traced = tf.function(flat_step).get_concrete_function()
        return [tf.TensorSpec(v.shape, v.dtype) for v in traced.outputs]

    def local_state(self) -> list[LocalState]:
        """Reads the components of ``ON_READ`` variables made in ``context()``."""
        return [
            LocalState(
                variable=variable,
                kind=Kind.LOCAL,
                values=tuple(v.numpy() for v in self._components(variable)),
            )
            for variable in self._mirrored.values()
            if variable.synchronization == tf.VariableSynchronization.ON_READ
        ]

    def restore_local_state(self, saved: Sequence[LocalState]) -> None:
        """Sets the components; see ``Replicator.restore_local_state``."""
        super().restore_local_state(saved)
        for state in saved:
            components = self._components(state.variable)
            if len(components) == len(state.values) == self.num_replicas:
                for component, value in zip(components, state.values, strict=True):
                    component.assign(value)

    def _components(self, variable: Any) -> tuple[Any, ...]:
        return tuple(self.strategy.experimental_local_results(variable))

    def summary(self, device_memory: int | None = None) -> str:
        """Describes the strategy's devices and the bytes of variables on each."""
        sharding.check_memory(device_memory)
        devices = self.strategy.extended.worker_devices
        on_read = tf.VariableSynchronization.ON_READ
        described = summary.describe(
            self,
            [f"replica {i}: {device}" for i, device in enumerate(devices)],
            [
                summary.variable_copy(
                    component,
                    "replica-local"
                    if variable.synchronization == on_read
                    else "mirrored",
                )
                for variable in self._mirrored.values()
                for component in self._components(variable)
            ],
        )
        return "\n".join([described, *sharding.unmarked(device_memory)])

    def explain(self) -> str:
        """Names the strategy, which does not show its plan."""
        if self.without_communication:
            return f"{type(self.strategy).__name__}: {control.EXPLANATION}"
        return (
            f"{type(self.strategy).__name__}, {self.num_replicas} replicas: stock "
            "tf.distribute plans its own collectives and does not show them"
        )

    def assert_in_sync(self) -> None:
        """Compares the strategy's copies; see ``Replicator.assert_in_sync``."""
        control.refuse(self, "assert_in_sync()")
        differing = []
        for variable in self._mirrored.values():
            if variable.synchronization == tf.VariableSynchronization.ON_READ:
                continue
            if not variable.trainable:
                continue
            first, *others = [v.numpy() for v in self._components(variable)]
            if any(not np.array_equal(first, o, equal_nan=True) for o in others):
                differing.append(variable.name)
        report_out_of_sync(differing)


class MirroredReplicator(StrategyReplicator):
    """``tf.distribute.MirroredStrategy``, the stock in-graph peer (``tf_mirrored``)."""

    def __init__(
        self,
        *,
        num_replicas: int,
        devices: Sequence[str] | None = None,
        without_communication: bool = False,
    ) -> None:
        names = device_lib.resolve(num_replicas, devices, distinct=True)
        super().__init__(_tf_compat.mirrored_strategy(names))
        self.without_communication = without_communication
        if without_communication:
            local_reduction.remove_communication(self.strategy)
            self.replica_context_class = LocalReplicaContext
