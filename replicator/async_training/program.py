"""Program: a traced step on the replicas of one worker."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import dispatch as _tf_dispatch
from replicator.async_training import pull
from replicator.async_training.connection import client_device
from replicator.engine.analysis import plan
from replicator.engine.analysis.analyze import Analysis
from replicator.engine.run.assembly import Assembly
from replicator.inputs.reads import next_batches
from replicator.step.tracing import repeat, traced_once
from replicator.variables.table import UsedVariables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.async_training.placement import Placement
    from replicator.async_training.step import ServerStep
    from replicator.async_training.table import WorkerTable
    from replicator.engine.analysis.plan import CollectivePlan
    from replicator.engine.graph.body import Ref
    from replicator.placement.topology import Topology

_COUNTER = itertools.count()
# Stands for the sequence numbers among a step's captures; every step increments them.
_SEQUENCE_NUMBERS = tf.TensorSpec([], tf.int64)


class ServerProgram:
    """One step on one worker; its state is on the servers.

    Attributes:
      step: The step as traced for all workers.
      plans: How each collective is carried out.
    """

    def __init__(
        self,
        step: ServerStep,
        topology: Topology,
        table: WorkerTable,
        placement: Placement,
    ) -> None:
        self.step = step
        self.plans: tuple[CollectivePlan, ...] = plan.make_plan(
            step.traced.collectives, topology
        )
        entries = {
            name: table.require(variable, table.kind(variable))
            for name, variable in step.traced.variables.items()
        }
        self._used = UsedVariables(entries, table)
        analysis = Analysis(
            traced=step.traced,
            body=step.body,
            invariance=step.invariance,
            entries=entries,
            liveness=None,
            plans=self.plans,
            shares=(),
        )
        self._num_replicas = topology.num_local_replicas
        self._assembly = _ServerAssembly(
            f"server_program_{next(_COUNTER)}", step, analysis, topology, placement
        )
        self._assembly.register()

    def is_stale(self) -> bool:
        """Whether another step has changed the kind of a variable used here."""
        return self._used.is_stale()

    def prepare(
        self, source_spec: Any, *, is_loop: bool
    ) -> Callable[[Any, Any, int], Any]:
        """Builds a function that runs steps; call it in cross-replica context."""
        function = self._make_runner(is_loop=is_loop)
        # Sequence numbers and number of steps in one tensor: one input less to send.
        counts = tf.TensorSpec([len(self.step.num_commits) + 1], tf.int64)
        with _tf_dispatch.graph_optimizer_off():
            concrete = function.get_concrete_function(source_spec, counts)

        def run(source: Any, sequence_numbers: Sequence[int], num_steps: int) -> Any:
            with tf.device(client_device()):
                counts = tf.constant([*sequence_numbers, num_steps], tf.int64)
            with _tf_dispatch.graph_optimizer_off():
                return concrete(source, counts)

        return run

    def pack(self, flat: Sequence[Any]) -> Any:
        """Turns the outputs of ``prepare``'s function into a nest of ``PerReplica``."""
        return self._assembly.pack(flat)

    def _make_runner(self, *, is_loop: bool) -> Any:
        assembly = self._assembly

        @traced_once
        def program(source: Any, counts: tf.Tensor) -> list[tf.Tensor]:
            sequence_numbers, num_steps = counts[:-1], tf.cast(counts[-1], tf.int32)

            def one_step(index: tf.Tensor) -> list[tf.Tensor]:
                used = sequence_numbers + tf.cast(index, tf.int64) * list(
                    self.step.num_commits
                )
                captured = [
                    used if c is _SEQUENCE_NUMBERS else c for c in assembly.captured
                ]
                batch = (
                    [] if source is None else next_batches(source, self._num_replicas)
                )
                return assembly.call(captured, batch)

            count = num_steps if is_loop else 1
            return repeat(one_step, count, assembly.output_specs)

        return program


class _ServerAssembly(Assembly):
    """The function of one worker, which reads variables where the step reads first."""

    def __init__(
        self,
        name: str,
        step: ServerStep,
        analysis: Analysis,
        topology: Topology,
        placement: Placement,
    ) -> None:
        super().__init__(name, analysis, topology)
        self._step = step
        self._placement = placement
        self._pulled: dict[str, Ref] = {}

    def _resolve(self, replica: int, placeholder: str) -> Ref | str:
        if placeholder not in self._pulled:
            for each in self._step.pulls:
                if any(placeholder in names for _, names, _ in each.reads):
                    self._emit(each)
        if placeholder in self._pulled:
            return self._pulled[placeholder]
        if placeholder == self._step.sequence_numbers_name:
            return self._argument((-1, placeholder), _SEQUENCE_NUMBERS)
        return super()._resolve(replica, placeholder)

    def _emit(self, each: pull.Pull) -> None:
        nodes, values = pull.emit(
            each,
            server_device=self._placement.devices[each.server],
            worker_device=self._topology.replica_devices[0],
            handle=lambda name: str(super(_ServerAssembly, self)._resolve(0, name)),
            clock=self.copies.order.name(0, each.clock),
        )
        self._more_nodes += nodes
        self._pulled.update(values)
