"""Program: a step function, traced, replicated, linked and ready to run."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import _tf_compat, loop
from replicator.engine import body as body_lib
from replicator.engine import invariance, liveness, placement, plan, shares
from replicator.engine.coherence import Coherence
from replicator.engine.common_end import CommonEnd, read
from replicator.engine.cross_worker import CrossWorker
from replicator.engine.effects import READ_OPS
from replicator.engine.link import Linker
from replicator.engine.optimize import optimize, own_functions
from replicator.engine.replicate import Replicas
from replicator.engine.trace import trace
from replicator.engine.variables import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.engine.body import Ref
    from replicator.engine.group import Group
    from replicator.engine.ownership import Owner
    from replicator.engine.trace import TracedStep
    from replicator.engine.variables import Entry, VariableTable
    from replicator.topology import Topology

_COUNTER = itertools.count()


class Program:
    """One step function on R replicas as one TensorFlow function.

    Attributes:
      plans: How each collective is carried out.
      entries: The variables it uses, by handle placeholder.
    """

    def __init__(
        self,
        step_fn: Callable[..., Any],
        specs: Sequence[Any],
        topology: Topology,
        table: VariableTable,
        group: Group | None = None,
    ) -> None:
        """Traces, replicates and links a step.

        Args:
          step_fn: Single-device code.
          specs: The nests of ``tf.TypeSpec`` that it takes.
          topology: Where the replicas of this program are.
          table: The variables of all programs of one replicator.
          group: The workers whose programs run side by side; None if there are none.
        """
        self._topology = topology
        self._group = group
        self._replicas = range(topology.num_local_replicas)
        self._table = table
        self._name = f"replicated_{next(_COUNTER)}"
        self._traced, self._body = self._read(step_fn, specs)
        self._invariance = self._analyze()
        self.entries = self._require_variables()
        self._version = table.version
        self._liveness = self._find_live()
        self.plans = plan.make_plan(
            self._traced.collectives,
            topology,
            self._depths() if group else None,
            # Programs side by side need other results, but make the same plan.
            {} if self._liveness is None or group else self._liveness.results,
        )
        self._shares = self._find_shares()
        self._arguments: dict[tuple[int, str], str] = {}
        self._captured: list[Any] = []
        self._more_nodes: list[Any] = []
        self._register()
        self._coherence = Coherence(list(self.entries.values()), topology, group)
        self._functions: dict[tuple[int, bool], Any] = {}
        self._settle = tf.function(self._coherence.settle, autograph=False)

    def description(self) -> dict[str, Any]:
        """What programs that run side by side must have in common, as JSON."""
        traced = self._traced
        return {
            "inputs": [dtype.name for dtype in traced.argument_dtypes],
            "collectives": [
                {
                    "call": f"{c.kind}({c.op or c.source_replica_id})",
                    "tensors": [
                        f"{dtype.name}{shape}"
                        for dtype, shape in zip(c.dtypes, c.shapes, strict=True)
                    ],
                    "travels as": c.wire_dtype.name if c.wire_dtype else "itself",
                    "travels": "sometimes" if c.needed_if else "always",
                    "buckets": [list(b.positions) for b in p.buckets],
                }
                for p, c in ((p, p.collective) for p in self.plans)
            ],
            "variables": [
                f"{e.kind.value} {e.variable.dtype.name}{e.variable.shape}"
                for e in self.entries.values()
            ],
            "shares": [
                f"{share.dtype.name}{share.shape} of worker {share.source}"
                for share in self._shares
            ],
        }

    def _depths(self) -> dict[str, int]:
        follows = {
            marker: (operand,)
            for collective in self._traced.collectives
            for marker, operand in zip(
                collective.markers, collective.operands, strict=True
            )
        }
        return body_lib.depths(self._body, follows)

    def _read(
        self, step_fn: Callable[..., Any], specs: Sequence[Any]
    ) -> tuple[TracedStep, body_lib.Body]:
        """Traces the step and optimizes its graph, once for all replicas."""
        topology = self._topology
        traced = trace(
            step_fn, specs, topology.num_replicas, topology.num_logical_devices
        )
        placement.place(traced, topology)
        optimized = optimize(traced)
        own_functions(optimized, self._name)
        return traced, body_lib.from_graph_def(optimized)

    def is_stale(self) -> bool:
        """Whether another step has changed the kind of a variable used here."""
        if self._version == self._table.version:
            return False
        self._version = self._table.version
        return any(
            self._table.kind(e.variable) is not e.kind for e in self.entries.values()
        )

    def run(self, source: Any, num_steps: int, *, may_end: bool = False) -> Any:
        """Runs steps; returns one nest of outputs per replica.

        Args:
          source: None, a tuple of iterators, or one nest of tensors per replica.
          num_steps: Steps in this dispatch.
          may_end: Whether the data of any worker may end; the same on all of them.
        """
        group = self._group if may_end else None
        key = num_steps, group is not None
        if key not in self._functions:
            end = None if group is None else CommonEnd(self._topology, group)
            self._functions[key] = self._make_function(num_steps, end)
        with _tf_compat.graph_optimizer_off():
            try:
                flat = iter(self._functions[key](source))
            except tf.errors.OutOfRangeError:
                # Steps before the end of the data were applied. Where other workers
                # are not at their end, nothing can be asked of them.
                if num_steps > 1 and (group is not None or self._group is None):
                    self._settle()
                raise
        return [
            tf.nest.map_structure(
                lambda leaf: None if leaf is None else next(flat),
                self._traced.structure,
            )
            for _ in self._replicas
        ]

    def _analyze(self) -> invariance.Invariance:
        traced = self._traced
        handles = traced.variables
        results = {m for c in traced.collectives for m in c.markers}
        tensors = {
            name
            for name, outer in traced.captures.items()
            if outer.dtype != tf.resource
        }
        local = {
            name
            for name, variable in handles.items()
            if self._table.kind(variable) is not Kind.MIRRORED
        }
        analysis = invariance.analyze(
            self._body,
            invariant_inputs=results | tensors,
            handles=set(handles),
            local=local,
        )
        invariance.check_trainable(analysis, handles, self._topology.num_replicas)
        return analysis

    def _find_live(self) -> liveness.Liveness | None:
        """Who emits what, where variables have owners; None where all emit all."""
        topology, traced = self._topology, self._traced
        owners = self._owners()
        if not owners or (topology.is_shared and topology.num_programs == 1):
            return None
        tensors = [name.partition(":")[0] for name in traced.output_names]
        operands = [name for c in traced.collectives for name in c.read]
        # A read has no effect: who does not use its value does not need it.
        reads = {node.name for node in self._body.nodes if node.op in READ_OPS}
        live = liveness.analyze(
            self._body,
            invariant=self._invariance.nodes,
            holders={
                *topology.holders,
                *([liveness.ELSEWHERE] if topology.num_programs > 1 else []),
            },
            handles=set(traced.variables),
            owners={
                name: owner.holder
                if owner.program_id == topology.program_id
                else liveness.ELSEWHERE
                for name, owner in owners.items()
            },
            roots=[
                *tensors,
                *operands,
                *(name for name in traced.control_output_names if name not in reads),
            ],
        )
        if topology.num_programs > 1:
            ownership, variables = self._table.ownership, traced.variables
            slots = {n: o for n, o in owners.items() if ownership.is_slot(variables[n])}
            shares.check(
                self._body,
                live,
                {name: owner.program_id for name, owner in slots.items()},
                topology.program_id,
                {name: variables[name].name for name in slots},
            )
        return live

    def _owners(self) -> dict[str, Owner]:
        """By handle, the owner of a variable that has one."""
        return {
            name: owner
            for name, variable in self._traced.variables.items()
            if (owner := self._table.ownership.owner(variable)) is not None
        }

    def _find_shares(self) -> list[shares.Share]:
        """What owners in all programs send to the others, in the order of the graph."""
        if self._liveness is None or self._group is None:
            return []
        owners, written = self._owners(), self._liveness.written
        variables, ownership = self._traced.variables, self._table.ownership
        return [
            shares.Share(
                node=node.name,
                handle=handle,
                source=next(owners[h] for h in written[node.name] if h in owners)[1],
                dtype=variables[handle].dtype,
                shape=variables[handle].shape,
            )
            for node in self._body.nodes
            if node.name in self._liveness.homes
            for handle in written[node.name]
            if not ownership.is_slot(variables[handle])
        ]

    def _require_variables(self) -> dict[str, Entry]:
        entries = {}
        for name, variable in self._traced.variables.items():
            kind = self._table.kind(variable)
            if name in self._invariance.local and kind is Kind.MIRRORED:
                kind = Kind.LOCAL if self._topology.num_replicas > 1 else Kind.MIRRORED
            entries[name] = self._table.require(variable, kind)
        return entries

    def _register(self) -> None:
        """Builds the linked function and hands it to TensorFlow."""
        self._received: dict[tuple[str, str], Any] = {}
        self._copies = Replicas(
            self._body,
            self._topology,
            merged=self._invariance.nodes,
            liveness=self._liveness,
            resolve=self._resolve,
            handle_device=self._handle_device,
            handle_dtype=lambda handle: self._traced.variables[handle].dtype,
            received=self._received if self._group else None,
        )
        workers = None
        if self._group is not None:
            # A worker whose data ended must not have begun to communicate.
            batches = [name for name, _ in self._batch_arguments()]
            workers = CrossWorker(self._group, batches)
        self._linker = Linker(self._topology, self._name, workers)
        self._replica_ids: list[Any] = []
        places = shares.schedule(self._body, self._traced.collectives, self._shares)
        # Later collectives may use results of earlier ones, so they link in order.
        for index, collective_plan in enumerate(self.plans):
            self._move(places.get(index, ()), workers)
            self._linker.link(collective_plan, self._traced_ref)
        self._move(places.get(len(self.plans), ()), workers)
        nodes = self._copies.nodes()
        function = _tf_compat.FunctionDef()
        function.signature.name = self._name
        function.signature.is_stateful = True
        outputs = [
            (self._traced_ref(replica, name), spec)
            for replica in self._replicas
            for name, spec in zip(
                self._traced.output_names, self._traced.output_specs, strict=True
            )
        ]
        batch = self._batch_arguments()
        for index, outer in enumerate(self._captured):
            _add_argument(function, f"capture_{index}", outer.dtype)
        for name, dtype in batch:
            _add_argument(function, name, dtype)
        for index, (ref, spec) in enumerate(outputs):
            arg = function.signature.output_arg.add(name=f"output_{index}")
            arg.type = spec.dtype.as_datatype_enum
            function.ret[f"output_{index}"] = str(ref)
        controls = {
            effect
            for name in self._traced.control_output_names
            for effect in self._copies.effects(name)
        }
        for index, name in enumerate(sorted(controls)):
            function.signature.control_output.append(f"control_{index}")
            function.control_ret[f"control_{index}"] = name
        function.node_def.extend(
            [*self._replica_ids, *self._linker.nodes, *self._more_nodes, *nodes]
        )
        function.node_def.extend(workers.nodes if workers else [])
        functions = [*self._copies.library, function]
        for registered in functions:
            _tf_compat.add_function(registered)
        names = [registered.signature.name for registered in functions]
        # TensorFlow would keep the functions, and what it made of them, for ever.
        weakref.finalize(self, _tf_compat.remove_functions, names).atexit = False

    def _move(self, due: Sequence[shares.Share], workers: CrossWorker | None) -> None:
        """Emits the transfer of updated variables from their owners' programs."""
        for bucket in shares.group(due, shares.levels(self._body, self._shares)):
            assert workers is not None
            is_source = bucket[0].source == self._topology.program_id
            sent = {
                (s.node, s.handle): body_lib.Ref(
                    node=self._copies.new(s.node, s.handle), port="value:0"
                )
                for s in bucket
                if is_source
            }
            name = f"{self._name}/shares_{len(self._received)}"
            device = self._topology.replica_devices[0]
            values, nodes = shares.send(bucket, name, workers, sent, device)
            self._received.update(values)
            self._more_nodes += nodes

    def _batch_arguments(self) -> list[tuple[str, tf.DType]]:
        return [
            (f"batch_{replica}_{index}", dtype)
            for replica in self._replicas
            for index, dtype in enumerate(self._traced.argument_dtypes)
        ]

    def _traced_ref(self, replica: int, name: str) -> Ref | str:
        return self._copies.ref(replica, self._body.names.ref(name))

    def _resolve(self, replica: int, placeholder: str) -> Ref | str:
        """What stands for an input of the traced graph on one replica."""
        results = self._linker.results.get(placeholder)
        if results is not None:
            return results[replica]
        if placeholder == self._traced.replica_id_name:
            return self._replica_id(replica)
        if placeholder in self._traced.argument_names:
            index = self._traced.argument_names.index(placeholder)
            return f"batch_{replica}_{index}"
        entry = self.entries.get(placeholder)
        if entry is None:
            outer = self._traced.captures[placeholder]
            return self._argument((-1, placeholder), outer)
        # The same copy is one argument, however many replicas use it.
        copy = entry.copies[replica]
        first = [id(other) for other in entry.copies].index(id(copy))
        return self._argument((first, placeholder), copy.handle)

    def _argument(self, key: tuple[int, str], outer: Any) -> str:
        if key not in self._arguments:
            self._arguments[key] = f"capture_{len(self._captured)}"
            self._captured.append(outer)
        return self._arguments[key]

    def _replica_id(self, replica: int) -> Ref:
        replica_id = self._topology.replica_id(replica)
        name = f"replica_{replica_id}/replica_id"
        if not any(node.name == name for node in self._replica_ids):
            device = self._topology.replica_devices[replica]
            self._replica_ids.append(body_lib.make_const(name, replica_id, device))
        return body_lib.Ref(node=name, port="output:0")

    def _handle_device(self, replica: int, placeholder: str) -> str | None:
        entry = self.entries.get(placeholder)
        return entry.copies[replica].device if entry else None

    def _make_function(self, num_steps: int, end: CommonEnd | None = None) -> Any:
        num_replicas = len(self._replicas)
        specs = list(self._traced.output_specs) * num_replicas

        @tf.function(autograph=False)
        def program(source: Any) -> list[tf.Tensor]:
            def one_step(_: tf.Tensor) -> list[tf.Tensor]:
                batch, before = read(source, num_replicas, end)
                with tf.control_dependencies(before):
                    outputs = _tf_compat.call_function(
                        self._name,
                        [
                            *self._captured,
                            *tf.nest.flatten(batch, expand_composites=True),
                        ],
                        [spec.dtype for spec in specs],
                    )
                for output, spec in zip(outputs, specs, strict=True):
                    output.set_shape(spec.shape)
                return outputs

            self._coherence.refresh()
            outputs = loop.repeat(one_step, num_steps, specs)
            self._coherence.publish()
            return outputs

        return program


def _add_argument(function: Any, name: str, dtype: tf.DType) -> None:
    arg = function.signature.input_arg.add(name=name)
    arg.type = dtype.as_datatype_enum
