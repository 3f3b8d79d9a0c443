"""The stock strategies of ``tf.distribute`` behind the replicator contract.

They are peers for comparison, so they follow their own documentation: datasets through
``distribute_datasets_from_function``, steps through ``strategy.run`` inside a
``tf.function``, gradients reduced by the Keras optimizer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import data as _tf_data
from replicator._tf import distribute as _tf_distribute
from replicator._tf import keras_parts as _tf_keras_parts
from replicator._tf import workers
from replicator._tf.dispatch import Dispatch
from replicator.backends import base, programs, sharding, summary
from replicator.backends.multi_worker import BetweenGraphReplicator
from replicator.cluster import environment, membership, port_filter
from replicator.cluster import workers as workers_lib
from replicator.collectives.kinds import TENSORS, CollectiveKind
from replicator.collectives.transport import positions_by_dtype
from replicator.core import context as context_lib
from replicator.core import devices as devices_lib
from replicator.core import step as step_lib
from replicator.core.context import StepGenerator
from replicator.core.validation import format_value, holding
from replicator.errors import CollectiveControlFlowError, DeviceError
from replicator.inputs.batches import as_value, can_fill
from replicator.inputs.iterator import InputIterator, Source
from replicator.optimizer.other_libraries import StrategyOptimizer
from replicator.variables.coherence import report_out_of_sync
from replicator.variables.kinds import Kind, declared_kind
from replicator.variables.table import LocalState

if TYPE_CHECKING:
    from replicator.backends.programs import Call
    from replicator.cluster.configuration import ClusterConfig
    from replicator.optimizer.options import OptimizerOptions


# Names a node by which a vectorized loop finds a collective in its body.
_FENCE = "replicator_stock_collective"


class StrategyReplicaContext(context_lib.ReplicaContext):
    """Collectives by the replica context of ``tf.distribute``."""

    has_static_shapes = False  # Whether a step is traced for known shapes only.
    # A stock reduction has no group for int32, which TensorFlow keeps on the host, and
    # none for narrower integers; sums wrap the same after the cast.
    wire_integer = tf.int64

    def __init__(self, num_replicas: int, *, is_local: bool = False) -> None:
        self.num_replicas = self.num_replicas_in_sync = num_replicas
        # Whether it is of a measuring control: as if all replicas held the own values.
        self._is_local = is_local

    @property
    def replica_id(self) -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        return tf.convert_to_tensor(replica.replica_id_in_sync_group, dtype=tf.int32)

    def communicate(
        self,
        kind: CollectiveKind,
        tensors: Sequence[tf.Tensor],
        needed_if: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        del needed_if
        count = self.num_replicas
        if count == 1 or self._is_local:  # one replica of a strategy cannot reduce
            own = 0 if count == 1 else self.replica_id
            return [kind.local_result(TENSORS, t, own, count) for t in tensors]
        fenced = [_tf_distribute.marker(t, t.shape, name=_FENCE) for t in tensors]
        return kind.by_sums(self, fenced)

    def stack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Stacks each tensor over replicas: the sum of zeros with the own slice."""
        # R times the bytes of a gather. The stock one fails on virtual CPU devices: it
        # needs more devices than the strategy has.
        mine = tf.equal(tf.range(self.num_replicas), self.replica_id)
        wide = []
        for tensor in tensors:
            mask = tf.reshape(mine, [self.num_replicas] + [1] * len(tensor.shape))
            value = tf.expand_dims(tensor, 0)
            wide.append(tf.where(mask, value, tf.zeros_like(value)))
        return self.reduce(wide, "sum")

    def reduce(self, tensors: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        """Sums or averages, one type at a time: a stock reduction mixes none."""
        results: dict[int, tf.Tensor] = {}
        for places in positions_by_dtype(tensors).values():
            reduced = self._reduce_alike([tensors[i] for i in places], op)
            results.update(zip(places, reduced, strict=True))
        return [results[index] for index in range(len(tensors))]

    def _reduce_alike(self, tensors: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        dtype = tensors[0].dtype
        if dtype.is_complex:  # which a stock reduction does not know
            parts = [part(t) for part in (tf.math.real, tf.math.imag) for t in tensors]
            reduced = self._reduce_alike(parts, op)
            count = len(tensors)
            return list(map(tf.complex, reduced[:count], reduced[count:]))
        wide = self.wire_integer if dtype.is_integer else dtype
        # An identity has a device, by which the strategy finds its destination.
        sent = [tf.identity(tf.cast(tensor, wide)) for tensor in tensors]
        replica = tf.distribute.get_replica_context()
        reduced = replica.all_reduce(tf.distribute.ReduceOp(op.upper()), sent)
        return [tf.cast(value, dtype) for value in reduced]

    def collective_of(self, marker: str) -> Any:
        """Rejects collectives in vectorized loops: stock ones cannot be rewritten."""
        if _FENCE in marker:
            raise CollectiveControlFlowError(
                "a collective was called inside tf.vectorized_map, tape.jacobian or "
                "tape.batch_jacobian, which rewrite the graph of one replica, so the "
                "collectives of tf.distribute would be lost; pass "
                "experimental_use_pfor=False to the Jacobian, move the collective out "
                "of the loop, or use the in_graph backend"
            )
        return None


class StrategyInputIterator(InputIterator):
    """Pipelines that a strategy distributes to its replicas."""

    stateless_reason = "iterators of tf.distribute cannot be saved"
    pads_last_step = False  # the strategy feeds batches without examples itself
    _reads_per_step = 1  # which gives the batches of all replicas

    def __init__(
        self, strategy: tf.distribute.Strategy, options: Any, *args: Any, **how: Any
    ) -> None:
        self._strategy, self._options = strategy, options
        super().__init__(*args, **how)

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

    def _get_next(self) -> Any:
        local = self._strategy.experimental_local_results
        has_any_size = can_fill(self.element_spec)

        def group(spec: Any, leaf: Any) -> step_lib.PerReplica[Any]:
            common = spec if has_any_size else None
            return step_lib.PerReplica(local(leaf), owner=self.owner, spec=common)

        batch = self._read(0)
        return tf.nest.map_structure(group, self.element_spec, batch)


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
                f"{format_value(strategy)}; pass for example "
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
        _tf_distribute.builds_from_specs(self.strategy)
        return self.strategy

    def _make_input_iterator(self, asked: base.InputRequest) -> InputIterator:
        """Distributes the pipelines; a stock strategy prefetches in its own way."""
        options = tf.distribute.InputOptions(
            experimental_fetch_to_device=True,
            experimental_per_replica_buffer_size=asked.num_prefetched,
        )
        return StrategyInputIterator(
            self.strategy,
            options if asked.num_prefetched else None,
            asked.input_fn,
            self._own_contexts(asked.mode),
            self.num_local_replicas,
        )

    def _wrap_optimizer(self, optimizer: Any, options: OptimizerOptions) -> Any:
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

    def _run(self, call: Call) -> Any:
        inputs = call.inputs
        shapes: tuple[str, ...] = ()
        if inputs is None or isinstance(inputs, InputIterator):
            source = call.source(())
        else:
            source = tf.nest.map_structure(self._distribute, inputs)
            # The strategy traces for shapes, and those of a last step are smaller.
            read = [leaf for leaf in tf.nest.flatten(inputs) if leaf.spec is not None]
            shapes = tuple(str(value.shape) for leaf in read for value in leaf)
        program, structure = self._programs.get(
            call, lambda: self._build(call), call.num_steps, shapes
        )
        with context_lib.forbidden_in_steps():
            try:
                flat = program(source)
            except tf.errors.OpError as error:
                is_finite = isinstance(inputs, InputIterator) and inputs.may_end
                if is_finite and isinstance(error, tf.errors.CancelledError):
                    # Of replicas that all come to the end, one may cancel the others
                    # first, and that is what the function then raises.
                    raise tf.errors.OutOfRangeError(
                        error.node_def, error.op, "End of sequence"
                    ) from error
                if not isinstance(error, tf.errors.OutOfRangeError):
                    self._repair()
                raise
        return step_lib.per_replica_nest(structure[0], flat, self.num_local_replicas)

    def _repair(self) -> None:
        """Makes mirrored copies equal again, of which a step that failed wrote some."""
        for variable in self._mirrored.values():
            if declared_kind(variable) is Kind.MIRRORED:
                first, *others = self._components(variable)
                for component in others:
                    component.assign(first)

    def _distribute(self, leaf: step_lib.PerReplica[Any]) -> Any:
        return self.strategy.experimental_distribute_values_from_function(
            lambda value_context: as_value(
                leaf[value_context.replica_id_in_sync_group % self.num_local_replicas]
            )
        )

    def _build(self, call: Call) -> tuple[Any, list[Any]]:
        run_steps, structure = self._flat_steps(call)
        return Dispatch(run_steps, autograph=True), structure

    def _flat_steps(self, call: Call) -> tuple[Callable[[Any], Any], list[Any]]:
        """What is traced to run steps under the strategy, and their structure then."""
        step_fn, num_steps = call.step_fn, call.num_steps
        replica_context = self.replica_context_class(
            self.strategy.num_replicas_in_sync, is_local=self.without_communication
        )
        replica_context.num_logical_devices = self.logical_devices_per_replica
        local = self.strategy.experimental_local_results
        generator = StepGenerator()  # of all replicas, each traced in its thread
        structure: list[Any] = [None]

        def step(*batch: Any) -> Any:
            with (  # in the thread of a replica
                holding("maker", self.replicator_id),
                context_lib.enter(replica_context),
                _tf_keras_parts.ignore_empty_batches(),
                generator.installed(),
            ):
                return step_lib.check_outputs(step_fn(*batch), step_fn)

        def run_steps(source: Any) -> list[tf.Tensor]:
            def flat_step() -> list[tf.Tensor]:
                batch = next(source) if hasattr(source, "__next__") else source
                if isinstance(source, Source):
                    batch = source.read(0, next)
                args = () if source is None else (batch,)
                outputs = self.strategy.run(step, args=args)
                structure[0] = step_lib.outline(outputs)
                leaves = [local(leaf) for leaf in step_lib.tensors_of(outputs)]
                return [value for replica in zip(*leaves) for value in replica]  # noqa: B905 (AutoGraph knows no strict zip)

            if num_steps == 1:
                return flat_step()
            # Traced once more, for the shapes that the loop will carry.
            traced = tf.function(flat_step).get_concrete_function()
            specs = [tf.TensorSpec(v.shape, v.dtype) for v in traced.outputs]
            return step_lib.repeat(lambda _: flat_step(), num_steps, specs)

        return run_steps, structure

    def local_state(self) -> list[LocalState]:
        return [
            LocalState(
                variable=variable,
                kind=Kind.LOCAL,
                values=tuple(v.numpy() for v in self._components(variable)),
            )
            for variable in self._mirrored.values()
            if self._is_local(variable)
        ]

    def restore_local_state(self, saved: Sequence[LocalState]) -> None:
        super().restore_local_state(saved)
        for state in saved:
            components = self._components(state.variable)
            if len(components) == len(state.values) == self.num_replicas:
                for component, value in zip(components, state.values, strict=True):
                    component.assign(value)

    def _is_local(self, variable: Any) -> bool:
        return bool(variable.synchronization == tf.VariableSynchronization.ON_READ)

    def _components(self, variable: Any) -> tuple[Any, ...]:
        return tuple(self.strategy.experimental_local_results(variable))

    def _described(self, device_memory: int | None) -> list[str]:
        devices = self.strategy.extended.worker_devices
        copies = [
            (copy, Kind.LOCAL if self._is_local(variable) else Kind.MIRRORED)
            for variable in self._mirrored.values()
            for copy in self._components(variable)
        ]
        return [
            *(f"  replica {i}: {device}" for i, device in enumerate(devices)),
            *summary.by_device(summary.sizes_of(copies)),
            *sharding.table([], device_memory),
        ]

    def explain(self) -> str:
        """Names the strategy, which does not show its plan."""
        if self.without_communication:
            return f"{type(self.strategy).__name__}: {base.EXPLANATION}"
        return (
            f"{type(self.strategy).__name__}, {self.num_replicas} replicas: stock "
            "tf.distribute plans its own collectives and does not show them"
        )

    def _compare_copies(self) -> None:
        differing = []
        for variable in self._mirrored.values():
            if self._is_local(variable) or not variable.trainable:
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
        names = devices_lib.resolve(num_replicas, devices, distinct=True)
        super().__init__(_tf_compat.mirrored_strategy(names))
        self.without_communication = without_communication
        if without_communication:
            workers.remove_communication(self.strategy)


class MultiWorkerMirroredReplicator(BetweenGraphReplicator, StrategyReplicator):
    """The stock between-graph peer (``tf_multi_worker``).

    Its replicas are the GPUs of each worker, or one CPU.

    Attributes:
      cluster: The workers, and which of them this process is.
    """

    def __init__(
        self,
        *,
        num_replicas: int | None = None,
        cluster: ClusterConfig | None = None,
        timeout_sec: float = workers_lib.DEFAULT_TIMEOUT_SEC,
    ) -> None:
        """Joins the cluster, together with all other workers.

        Args:
          num_replicas: Replicas of the whole job; by default, and at most, those that
            the strategy makes.
          cluster: The workers; None reads ``TF_CONFIG``.
          timeout_sec: Longest wait for another worker.

        Raises:
          ClusterError: The cluster cannot be joined; subclasses say why.
          DeviceError: The strategy makes another number of replicas.
        """
        self.cluster = environment.config_of(cluster)
        membership.claim_gpus(
            self.cluster, num_replicas and num_replicas // self.cluster.num_workers
        )
        strategy, state = membership.join_once(
            "stock between-graph", self.cluster, lambda: self._join(timeout_sec)
        )
        self._runtime = workers_lib.WorkerRuntime(state, timeout_sec)
        super().__init__(strategy)
        if num_replicas not in (None, self.num_replicas):
            raise DeviceError(
                f"num_replicas={num_replicas!r} does not match: the stock strategy "
                f"has {self.num_replicas} replicas on {self.cluster.num_workers} "
                "workers, one per GPU, or one per worker without GPUs; use that number"
            )
        self.num_workers = self.cluster.num_workers
        self.worker_id = self.cluster.worker_id
        self.first_replica_id = self.worker_id * self.num_local_replicas

    def _join(self, timeout_sec: float) -> tuple[Any, workers_lib.WorkerState]:
        workers_lib.meet_workers(self.cluster, timeout_sec)
        with port_filter.guarded(self.cluster), workers.kept_sigterm():
            # Without a time limit of its own, which would leave threads; see
            # ``Deadline``.
            strategy = tf.distribute.MultiWorkerMirroredStrategy(
                cluster_resolver=membership.resolver_of(self.cluster)
            )
        return strategy, workers_lib.WorkerState(self.cluster)

    def _run(self, call: Call) -> Any:
        # One more, since the strategy may trace here.
        with self._runtime.guard("a step", call.num_steps + 1):
            return super()._run(call)

    def _numbered_mirrored(self) -> Iterator[tuple[int, Any]]:
        for number, variable in enumerate(self._mirrored.values()):
            if variable.trainable:
                yield number, self._components(variable)[0]
