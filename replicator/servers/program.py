"""Program: a traced step on the replicas of one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import _tf_compat, loop
from replicator.engine.program import Program
from replicator.inputs import deal
from replicator.servers import pull
from replicator.servers.connection import client_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.engine import invariance
    from replicator.engine.body import Body, Ref
    from replicator.engine.trace import TracedStep
    from replicator.engine.variables import Entry
    from replicator.servers.placement import Placement
    from replicator.servers.step import ServerStep
    from replicator.servers.table import WorkerTable
    from replicator.topology import Topology


class ServerProgram(Program):
    """One step on one worker; its state is on the servers.

    Attributes:
      step: The step as traced for all workers.
    """

    def __init__(
        self,
        step: ServerStep,
        topology: Topology,
        table: WorkerTable,
        placement: Placement,
    ) -> None:
        self.step = step
        self._placement = placement
        self._pulled: dict[str, Ref] = {}
        super().__init__(_traced_before, (), topology, table)  # type: ignore[arg-type]

    def prepare(
        self, source_spec: Any, *, is_loop: bool
    ) -> Callable[[Any, Any, int], Any]:
        """Builds a function that runs steps; call it in cross-replica context.

        Args:
          source_spec: The type of what the function will be given.
          is_loop: Whether it runs several steps.

        Returns:
          Takes the source, by server the tickets that the worker has used, and the
          number of steps; returns one flat list of outputs of all replicas.
        """
        function = self._make_runner(is_loop=is_loop)
        # With the number of steps behind the tickets: one input less to send.
        counts = tf.TensorSpec([len(self.step.num_commits) + 1], tf.int64)
        with _tf_compat.graph_optimizer_off():
            concrete = function.get_concrete_function(source_spec, counts)

        def run(source: Any, tickets: Sequence[int], num_steps: int) -> Any:
            with tf.device(client_device()):
                counts = tf.constant([*tickets, num_steps], tf.int64)
            with _tf_compat.graph_optimizer_off():
                return concrete(source, counts)

        return run

    def pack(self, flat: Sequence[Any]) -> list[Any]:
        """Turns the outputs of ``prepare``'s function into one nest per replica."""
        rest = iter(flat)
        return [
            tf.nest.map_structure(
                lambda leaf: None if leaf is None else next(rest),
                self._traced.structure,
            )
            for _ in self._replicas
        ]

    def _read(
        self, step_fn: Callable[..., Any], specs: Sequence[Any]
    ) -> tuple[TracedStep, Body]:
        del step_fn, specs  # traced once for all workers
        return self.step.traced, self.step.body

    def _analyze(self) -> invariance.Invariance:
        return self.step.invariance

    def _require_variables(self) -> dict[str, Entry]:
        return {
            name: self._table.require(variable, self._table.kind(variable))
            for name, variable in self._traced.variables.items()
        }

    def _resolve(self, replica: int, placeholder: str) -> Ref | str:
        if placeholder not in self._pulled:
            for each in self.step.pulls:
                if any(placeholder in names for _, names, _ in each.reads):
                    self._emit(each)
        if placeholder in self._pulled:
            return self._pulled[placeholder]
        if placeholder == self.step.tickets_name:
            return self._argument((-1, placeholder), _TICKETS)
        return super()._resolve(replica, placeholder)

    def _emit(self, each: pull.Pull) -> None:
        nodes, values = pull.emit(
            each,
            server_device=self._placement.devices[each.server],
            worker_device=self._topology.replica_devices[0],
            handle=lambda name: str(super(ServerProgram, self)._resolve(0, name)),
            clock=self._copies.name(0, each.clock),
        )
        self._more_nodes += nodes
        self._pulled.update(values)

    def _make_runner(self, *, is_loop: bool) -> Any:
        num_replicas = len(self._replicas)
        specs = list(self._traced.output_specs) * num_replicas

        @tf.function(autograph=False)
        def program(source: Any, counts: tf.Tensor) -> list[tf.Tensor]:
            tickets, num_steps = counts[:-1], tf.cast(counts[-1], tf.int32)

            def one_step(index: tf.Tensor) -> list[tf.Tensor]:
                used = tickets + tf.cast(index, tf.int64) * list(self.step.num_commits)
                captured = [used if c is _TICKETS else c for c in self._captured]
                batch = [] if source is None else deal(source, num_replicas)
                flat = tf.nest.flatten(batch, expand_composites=True)
                outputs = _tf_compat.call_function(
                    self._name, [*captured, *flat], [spec.dtype for spec in specs]
                )
                for output, spec in zip(outputs, specs, strict=True):
                    output.set_shape(spec.shape)
                return outputs

            return loop.repeat(one_step, num_steps if is_loop else 1, specs)

        return program


# Among what a step captures, stands for the tickets, which every step counts up.
_TICKETS = tf.TensorSpec([], tf.int64)


def _traced_before() -> None:
    """Stands for the step function, which ``step`` holds as a graph."""
