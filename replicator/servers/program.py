"""Program: a traced step on the replicas of one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import _tf_compat, loop
from replicator.engine.program import Program
from replicator.inputs import deal
from replicator.servers import pull

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

    def prepare(self, source_spec: Any, num_steps: int) -> Callable[[Any], Any]:
        """Builds the function of so many steps; call it in cross-replica context.

        Args:
          source_spec: The type of what ``run`` will be given.
          num_steps: Steps in one dispatch.

        Returns:
          Takes the source, returns one flat list of outputs of all replicas.
        """
        function = self._make_function(num_steps)
        with _tf_compat.graph_optimizer_off():
            concrete = function.get_concrete_function(source_spec)

        def run(source: Any) -> Any:
            with _tf_compat.graph_optimizer_off():
                return concrete(source)

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

    def _make_function(self, num_steps: int) -> Any:
        num_replicas = len(self._replicas)
        specs = list(self._traced.output_specs) * num_replicas

        @tf.function(autograph=False)
        def program(source: Any) -> list[tf.Tensor]:
            def one_step() -> list[tf.Tensor]:
                batch = [] if source is None else deal(source, num_replicas)
                flat = tf.nest.flatten(batch, expand_composites=True)
                outputs = _tf_compat.call_function(
                    self._name, [*self._captured, *flat], [spec.dtype for spec in specs]
                )
                for output, spec in zip(outputs, specs, strict=True):
                    output.set_shape(spec.shape)
                return outputs

            return loop.repeat(one_step, num_steps, specs)

        return program


def _traced_before() -> None:
    """Stands for the step function, which ``step`` holds as a graph."""
