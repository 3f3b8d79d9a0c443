"""Program: a step function, analysed, assembled for all replicas and ready to run."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import collector
from replicator._tf import distribute as _tf_distribute
from replicator._tf.dispatch import Dispatch
from replicator.engine.analysis import owned
from replicator.engine.analysis.analyze import analyze
from replicator.engine.graph import gathers
from replicator.engine.graph.rewriters import Rewriters
from replicator.engine.run import turns
from replicator.engine.run.assembly import Assembly
from replicator.engine.run.uneven_inputs import UnevenInputs, read
from replicator.errors import StrategyError
from replicator.inputs.reads import Source
from replicator.placement import devices as device_lib
from replicator.step.tracing import repeat
from replicator.variables.coherence import Coherence
from replicator.variables.table import UsedVariables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from replicator.collectives.kind import Transfer
    from replicator.engine.analysis.plan import CollectivePlan
    from replicator.placement.topology import Group, Topology
    from replicator.variables.table import Entry, VariableTable

_COUNTER = itertools.count()


class Program:
    """One step function on R replicas as one TensorFlow function."""

    @collector.paused()
    def __init__(
        self,
        step_fn: Callable[..., Any],
        specs: Sequence[Any],
        topology: Topology,
        table: VariableTable,
        group: Group | None = None,
        *,
        without_communication: bool = False,
    ) -> None:
        """Traces, replicates and links a step."""
        self._topology = topology
        self._table = table
        self._group = group
        self._specs = specs
        name = f"replicated_{next(_COUNTER)}"
        self._analysis = analyze(
            step_fn,
            specs,
            name,
            topology,
            table,
            is_in_group=group is not None,
        )
        self._used = UsedVariables(self._analysis.entries, table)
        self._assembly = Assembly(
            name,
            self._analysis,
            topology,
            group,
            without_communication=without_communication,
        )
        self._assembly.register()
        # What variables read as outside steps is a mean over workers: communication.
        self._coherence = self._make_coherence(None if without_communication else group)
        self._functions: dict[tuple[int, bool], Dispatch] = {}
        self._without_communication = without_communication
        self._rewriters = Rewriters()
        self._repairs: dict[bool, Dispatch] = {}
        self._num_exposed = table.num_exposed
        if group is not None:  # programs that run side by side have the same ops
            table.expose(self.entries.values())

    @property
    def plans(self) -> tuple[CollectivePlan, ...]:
        """How each collective is carried out."""
        return self._analysis.plans

    @property
    def notes(self) -> tuple[str, ...]:
        """What the step says of itself in ``explain()``."""
        moved = owned.explain(self._analysis, self._topology)
        of_graph = *self._analysis.traced.notes, *self._analysis.body.notes
        return (*of_graph, *self._rewriters.notes.values(), *filter(None, [moved]))

    @property
    def activations(self) -> tuple[int, ...]:
        """What is kept for the backward pass on each logical device, in bytes."""
        return self._analysis.traced.activations

    @property
    def most_gathered(self) -> int:
        """Bytes of other owners' variables that a replica has at a time."""
        return gathers.most(self._analysis.gathers)

    @property
    def weight_transfers(self) -> tuple[Transfer, ...]:
        """What owners of variables send to other replicas of this program."""
        return tuple(owned.weights(self._analysis))

    @property
    def returned(self) -> tuple[Transfer, ...]:
        """What the caller gets, who is where replica 0 is: outputs, and statistics."""
        return (*self._assembly.outputs.transfers, *self._coherence.transfers)

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The variables it uses, by handle placeholder."""
        return self._analysis.entries

    def description(self) -> dict[str, Any]:
        """What programs that run side by side must have in common, as JSON."""
        return self._analysis.description()

    def is_stale(self) -> bool:
        """Whether another step has changed the kind of a variable used here."""
        return self._used.is_stale()

    def run(self, source: Any, num_steps: int, *, may_end: bool = False) -> Any:
        """Runs steps; returns a nest of ``PerReplica``."""
        self._follow_exposed()
        group = self._group if may_end else None
        key = num_steps, group is not None
        if key not in self._functions:
            end = None if group is None else UnevenInputs(self._topology, group)
            self._functions[key] = self._make_function(num_steps, end, source)
        return self._assembly.pack(self._functions[key](source))

    def _follow_exposed(self) -> None:
        """Forgets functions without the check of a variable that others can write."""
        if self._num_exposed != self._table.num_exposed:
            self._num_exposed = self._table.num_exposed
            self._functions.clear()
            self._repairs.clear()

    def repair(self, error: BaseException, num_steps: int, *, may_end: bool) -> None:
        """Makes variables coherent after a run that raised an error."""
        is_end = isinstance(error, tf.errors.OutOfRangeError)
        if is_end and num_steps == 1:
            return  # a step without data has not begun
        # Steps before the end of the data were applied, on all workers. Otherwise the
        # others are elsewhere, and nothing can be asked of them.
        self._follow_exposed()
        is_alone = self._group is not None and not (is_end and may_end)
        if is_alone not in self._repairs:
            self._repairs[is_alone] = self._make_repair(is_alone)
        self._repairs[is_alone](None)

    def _make_repair(self, is_alone: bool) -> Dispatch:
        coherence = self._make_coherence() if is_alone else self._coherence

        def repair(_: None) -> list[tf.Tensor]:
            coherence.repair()
            return []

        return Dispatch(repair, is_optimized=False)

    def _make_coherence(self, group: Group | None = None) -> Coherence:
        return Coherence(
            list(self.entries.values()),
            self._topology,
            self._table.resets,
            group,
            is_checked=self._table.is_checked,
        )

    def emit(self, batches: Sequence[Any]) -> list[list[Any]]:
        """Emits one step in the graph that is being built, with what ``run`` adds."""
        if _tf_distribute.is_compiled_graph():
            self._check_compilable()
        with self._in_turn():
            switch = self._table.switch(list(self.entries.values()))
            self._coherence.refresh(switch)
            flat = self._assembly.call(
                self._assembly.captured, batches, kept_on=self._kept_on()
            )
            self._coherence.publish(switch)
        size = len(flat) // len(batches)
        return [flat[r * size : (r + 1) * size] for r in range(len(batches))]

    def _check_compilable(self) -> None:
        """Rejects XLA around replicas whose variables are on several devices."""
        every = (copy for entry in self.entries.values() for copy in entry.copies)
        places = sorted({str(copy.device) for copy in every})
        if len(places) > 1:
            raise StrategyError(
                f"jit_compile=True around replicas whose variables are on "
                f"{', '.join(places)}, but XLA compiles a function for one device; "
                "leave jit_compile out, or compute loss and gradients in a "
                "tf.function(jit_compile=True) inside the step, or give all replicas "
                "one device"
            )

    def _kept_on(self) -> str | None:
        """Where the step stays a call in the graph that is being built, if it does.

        A call gets the handles of its variables where it runs, so those of several
        devices would be sent in every step; and XLA compiles what it inlines.
        """
        first, *others = {name for names in self._topology.devices for name in names}
        is_compiled = _tf_distribute.is_compiled_graph()
        is_inlined = others or self._assembly.has_collectives or is_compiled
        return None if is_inlined else first

    def _in_turn(self) -> contextlib.AbstractContextManager[None]:
        if not (self._assembly.has_collectives or self._coherence.communicates):
            return contextlib.nullcontext()
        return turns.taken(device_lib.cpu_of(self._topology.replica_devices[0]))

    def _make_function(
        self,
        num_steps: int,
        end: UnevenInputs | None,
        source: Any,
    ) -> Dispatch:
        assembly = self._assembly
        num_replicas = self._topology.num_local_replicas
        is_values = source is not None and not isinstance(source, Source)

        def program(source: Any) -> list[tf.Tensor]:
            def one_step(_: tf.Tensor) -> list[tf.Tensor]:
                batch, before = read(source, num_replicas, end)
                with tf.control_dependencies(before):
                    return assembly.call(assembly.captured, batch)

            self._coherence.refresh()
            outputs = repeat(one_step, num_steps, assembly.output_specs)
            self._coherence.publish()
            return outputs

        # Values can be smaller in another call: those of the last step of an epoch.
        specs = [*self._specs] * num_replicas if is_values else None
        return Dispatch(program, is_optimized=False, specs=specs)
