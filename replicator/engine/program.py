"""Program: a step function, analysed, assembled for all replicas and ready to run."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf import workers as _tf_workers
from replicator._tf.dispatch import Dispatch
from replicator.cluster.liveness import Deadline
from replicator.core.step import repeat
from replicator.core.validation import format_value, is_positive
from replicator.engine import analyze as analyze_lib
from replicator.engine.assembly import Assembly
from replicator.engine.plan import FLAT
from replicator.errors import ReplicaTimeoutError, StrategyError
from replicator.inputs.batches import divide, end_unless, is_filled
from replicator.inputs.iterator import Source, all_read, next_batches
from replicator.variables.coherence import Coherence
from replicator.variables.kinds import Workers
from replicator.variables.table import UsedVariables, VariableTable

if TYPE_CHECKING:
    from replicator.core.devices import Group, Topology

    Agree = Callable[..., tf.Tensor]


# Each worker reads its own pipelines. Before a step communicates, workers count how
# many of them have a batch for every replica; unless all have, none runs the step.
# Where the last step can be divided (``inputs/batches.py``), one worker that has a
# batch is enough. The count is one number in one collective, and is skipped if no
# pipeline can end.


def agreement(topology: Topology, group: Group) -> Agree:
    """Makes what emits an op that raises an error where too few workers have data."""
    key = next(group.keys)  # Drawn once: a function that is traced again uses the same.

    def agree(is_fed: tf.Tensor, num_needed: int = group.num_workers) -> tf.Tensor:
        with tf.device(topology.cpu):
            fed = tf.cast(is_fed, tf.int32)
            num_fed = Workers(topology, group).reduce(fed, key)
            return end_unless(num_fed >= num_needed)

    return agree


def read_batches(
    source: Any, num_replicas: int, agree: Agree | None
) -> tuple[list[Any], list[Any]]:
    """Emits reading the batches of the replicas here, with or without uneven inputs."""
    # Returns them, and what the step has to wait for.
    if source is None:
        return [], []
    if isinstance(source, Source) and is_filled(source.iterators[0]):
        batches, is_fed = divide(next_batches(source, num_replicas))
        ended = end_unless(is_fed) if agree is None else agree(is_fed, 1)
        return batches, [ended]
    if agree is None:
        batches = next_batches(source, num_replicas)
        return batches, [all_read(batches)]
    optional = source.read_each(num_replicas, lambda each: each.get_next_as_optional())
    agreed = agree(tf.reduce_all([batch.has_value() for batch in optional]))
    with tf.control_dependencies([agreed]):
        return [batch.get_value() for batch in optional], [agreed]


# A graph runs what it can at the same time. Two steps that do would meet those of other
# workers in another order than theirs, and two calls of one step under the same keys.
# So each writes a variable that nobody reads before it and after it, which TensorFlow
# keeps in the order of the program, in loops and branches too. Control edges between
# the calls would not reach into those.


@contextlib.contextmanager
def take_turn(device: str) -> Iterator[None]:
    """Emits a turn in the graph that is being built: all that is emitted inside."""
    graph = _tf_compat.current_graph()
    begin = _write(device)
    num_before = len(graph.get_operations())
    with tf.control_dependencies([begin]):
        yield
    made = graph.get_operations()[num_before:]
    # What has no effect neither communicates.
    with tf.control_dependencies([op for op in made if op.op_def.is_stateful]):
        _write(device)


def _write(device: str) -> Any:
    with tf.device(device):
        return tf.raw_ops.AssignVariableOp(resource=_turn(device), value=0)


@functools.cache
def _turn(device: str) -> Any:
    """The variable, outside of all graphs."""
    with tf.init_scope(), tf.device(device):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int32, shape=[], shared_name="replicator_turn"
        )


_COUNTER = itertools.count()


class Program:
    """One step function on R replicas as one TensorFlow function."""

    @_tf_compat.paused()
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
        self._topology = topology
        self._table = table
        self._group = group
        self._specs = specs
        name = f"replicated_{next(_COUNTER)}"
        is_in_group = group is not None
        self.analysis = analyze_lib.analyze(
            step_fn, specs, name, topology, table, is_in_group=is_in_group
        )
        self.plans = self.analysis.plans
        # Whether replicas meet in ops that wait without end, one on each device.
        self.is_limited = any(plan.algorithm in FLAT for plan in self.plans)
        self._used = UsedVariables(self.analysis.entries, table)
        self._assembly = Assembly(
            name,
            self.analysis,
            topology,
            group,
            without_communication=without_communication,
        )
        # What variables read as outside steps is a mean over workers: communication.
        self._coherence = self._make_coherence(None if without_communication else group)
        self._functions: dict[tuple[int, bool], Dispatch] = {}
        self._repairs: dict[bool, Dispatch] = {}
        self._num_exposed = table.num_exposed
        if group is not None:  # programs that run side by side have the same ops
            table.expose(self.analysis.entries.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What the step says of itself in ``explain()``."""
        moved = analyze_lib.explain_owned(self.analysis, self._topology)
        of_graph = *self.analysis.traced.notes, *self.analysis.body.notes
        return (*of_graph, *filter(None, [moved]))

    def is_stale(self) -> bool:
        return self._used.is_stale()

    def run(self, source: Any, num_steps: int, *, may_end: bool = False) -> Any:
        """Runs steps; returns a nest of ``PerReplica``."""
        if self._num_exposed != self._table.num_exposed:
            self._follow_exposed()
        group = self._group if may_end else None
        key = num_steps, group is not None
        if key not in self._functions:
            agree = None if group is None else agreement(self._topology, group)
            self._functions[key] = self._make_function(num_steps, agree, source)
        return self._assembly.pack(self._functions[key](source))

    def _follow_exposed(self) -> None:
        """Forgets functions without the check of a variable that others can write."""
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
        if self._num_exposed != self._table.num_exposed:
            self._follow_exposed()
        is_alone = self._group is not None and not (is_end and may_end)
        if is_alone not in self._repairs:
            coherence = self._make_coherence() if is_alone else self._coherence
            if coherence is None:
                return

            def repair(_: None) -> list[tf.Tensor]:
                coherence.repair()
                return []

            self._repairs[is_alone] = Dispatch(repair, is_optimized=False)
        self._repairs[is_alone](None)

    def _make_coherence(self, group: Group | None = None) -> Coherence | None:
        """None where no variable has copies, which could differ."""
        entries = list(self.analysis.entries.values())
        if all(entry.last_synced is None for entry in entries):
            return None
        return Coherence(
            entries,
            self._topology,
            self._table.resets,
            group,
            is_checked=self._table.is_checked,
        )

    def emit(self, batches: Sequence[Any]) -> list[list[Any]]:
        """Emits one step in the graph that is being built, with what ``run`` adds."""
        if _tf_distribute.is_compiled_graph():
            self._check_compilable()
        turn: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        coherence = self._coherence
        is_sent = coherence is not None and coherence.values.are_sent
        if self._assembly.has_collectives or is_sent:
            turn = take_turn(self._topology.cpu)
        with turn:
            switch = self._table.switch(list(self.analysis.entries.values()))
            with coherence.kept(switch) if coherence else contextlib.nullcontext():
                flat = self._assembly.call(
                    self._assembly.captured, batches, kept_on=self._kept_on()
                )
        size = len(flat) // len(batches)
        return [flat[r * size : (r + 1) * size] for r in range(len(batches))]

    def _check_compilable(self) -> None:
        """Rejects XLA around replicas whose variables are on several devices."""
        entries = self.analysis.entries.values()
        places = sorted({str(copy.device) for e in entries for copy in e.copies})
        if len(places) > 1:
            raise StrategyError(
                f"jit_compile=True around replicas whose variables are on "
                f"{', '.join(places)}, but XLA compiles a function for one device; "
                "leave jit_compile out, or compute loss and gradients in a "
                "tf.function(jit_compile=True) inside the step, or give all replicas "
                "one device"
            )

    def _kept_on(self) -> str | None:
        """Where the step stays a call in the graph that is being built, if it does."""
        # A call gets the handles of its variables where it runs, so those of several
        # devices would be sent in every step; and XLA compiles what it inlines.
        first, *others = {name for names in self._topology.devices for name in names}
        is_compiled = _tf_distribute.is_compiled_graph()
        is_inlined = others or self._assembly.has_collectives or is_compiled
        return None if is_inlined else first

    def _make_function(
        self, num_steps: int, agree: Agree | None, source: Any
    ) -> Dispatch:
        assembly, coherence = self._assembly, self._coherence
        num_replicas = self._topology.num_local_replicas
        is_values = source is not None and not isinstance(source, Source)

        def program(source: Any) -> list[tf.Tensor]:
            def one_step(_: tf.Tensor) -> list[tf.Tensor]:
                batch, before = read_batches(source, num_replicas, agree)
                with tf.control_dependencies(before):
                    return assembly.call(assembly.captured, batch)

            with coherence.kept() if coherence else contextlib.nullcontext():
                return repeat(one_step, num_steps, assembly.output_specs)

        # Values can be smaller in another call: those of the last step of an epoch.
        specs = [*self._specs] * num_replicas if is_values else None
        return Dispatch(program, is_optimized=False, specs=specs)


# TensorFlow ends the ops of ``Program.is_limited`` by itself where a replica fails. The
# limit is for what fails without an error, such as a GPU that does not respond.


class TimeLimit:
    """Ends the collectives of this process when a step takes too long, for good."""

    def __init__(self, timeout_sec: float) -> None:
        if not is_positive(timeout_sec):
            raise ValueError(
                f"timeout_sec {format_value(timeout_sec)} must be a positive number of "
                "seconds"
            )
        self._timeout_sec = timeout_sec
        self.is_over = False  # Whether a step has taken too long.

        def expire() -> None:
            self.is_over = True
            _tf_workers.abort_collectives("replicas did not meet in time")

        self._deadline = Deadline(expire)

    @contextlib.contextmanager
    def guard(self, what: str, num_steps: int) -> Iterator[None]:
        """Limits what runs inside."""
        over = ReplicaTimeoutError(
            f"the replicas of {what} did not meet within {self._timeout_sec:g} s per "
            "step, and their collectives were ended; a device may not respond: start "
            "the program again, from its last checkpoint; if a step is only slow, or "
            "waits for data, use a larger timeout_sec"
        )
        if self.is_over:
            raise over
        try:
            with self._deadline.limit(self._timeout_sec * num_steps):
                yield
        except tf.errors.OpError as error:
            if self.is_over:
                raise over from error
            raise
