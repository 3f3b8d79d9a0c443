"""Assembly: the replicas of a step and their collectives, as one function.

The analysed graph is copied for every replica and the collectives are linked across the
copies. The result is a ``FunctionDef``, which TensorFlow registers by name.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator._tf import handles as _tf_handles
from replicator.collectives.transport import num_bytes, unpack
from replicator.core import devices as devices_lib
from replicator.core.step import per_replica_nest
from replicator.engine import plan
from replicator.engine.body import Ref
from replicator.engine.emitter import Emitter, NodeOps
from replicator.engine.linker import Linker
from replicator.engine.replicate import Replicas
from replicator.errors import CaptureError

if TYPE_CHECKING:
    from replicator.core.devices import Group, Topology
    from replicator.engine.analyze import Analysis


# A caller waits for the control outputs of a function. TensorFlow puts the nodes of the
# function in place of the call, and lets them all meet at one node of the caller's
# device. Every edge from another device is then a transfer of nothing, which costs a
# copy with a wait and a callback on a GPU. A step of ResNet-50 has hundreds of updates
# per replica, so they meet on their own device first: with four replicas and copies, 12
# transfers in place of 1,932, and 11,829 nodes in place of 19,057
# (``tests/workloads/resnet50/test_executed_graph.py``).


def join_completion(
    effects: Sequence[str], nodes: Iterable[Any], prefix: str
) -> tuple[list[str], list[Any]]:
    """Joins what a caller waits for, by device."""
    devices = {node.name: node.device for node in nodes}
    by_device: dict[str, list[str]] = {}
    for effect in effects:
        by_device.setdefault(devices.get(effect, ""), []).append(effect)
    names, joins = by_device.pop("", []), []
    for index, (device, members) in enumerate(by_device.items()):
        if len(by_device) == 1 or len(members) == 1:
            names += members
            continue
        node = _tf_compat.NodeDef(name=f"{prefix}/done_{index}", op="NoOp")
        node.device = device
        node.input.extend(f"^{member}" for member in members)
        names.append(node.name)
        joins.append(node)
    return names, joins


# In one graph of several processes all outputs of a step travel to the process that
# runs it. Losses and the like are a few bytes of each replica, and every transfer costs
# about a millisecond; so those of one process are joined there, and taken apart by the
# caller.


class PackedOutputs:
    """Which outputs of the replicas of one program are returned as one."""

    def __init__(self, specs: Sequence[tf.TensorSpec], topology: Topology) -> None:
        self._devices = topology.replica_devices
        # By position of a flat output, its replica and type.
        self._flat = [(r, spec) for r in range(len(self._devices)) for spec in specs]
        processes = list(map(devices_lib.process, self._devices))
        groups: dict[Any, list[int]] = {}
        for position, (replica, spec) in enumerate(self._flat):
            key: Any = position
            # Where copying is cheaper than sending apart; text has no size.
            is_small = 0 < num_bytes(spec.shape, spec.dtype) < plan.FUSE_BELOW_BYTES
            dtype = spec.dtype
            is_number = dtype.is_integer or dtype in devices_lib.RING_DTYPES
            is_joined = is_small and (is_number or dtype.is_bool)
            if processes[replica] != processes[0] and is_joined:
                key = processes[replica], spec.dtype
            groups.setdefault(key, []).append(position)
        # The outputs that are one result of the function: most of them alone.
        self._groups = list(groups.values())
        self.specs = [
            tf.TensorSpec([sum(map(math.prod, self._shapes(group)))], spec.dtype)
            if len(group) > 1
            else spec
            for group in self._groups
            for _, spec in [self._flat[group[0]]]
        ]

    def pack(
        self, outputs: Sequence[Ref | str], prefix: str, emit: Emitter
    ) -> list[Ref | str]:
        returned: list[Ref | str] = []
        for index, group in enumerate(self._groups):
            refs = [outputs[position] for position in group]
            if len(group) > 1:
                replica, spec = self._flat[group[0]]
                name = f"{prefix}/outputs_{index}"
                ops = NodeOps(emit, name, spec.dtype, self._devices[replica])
                refs = [ops.pack(refs, self._shapes(group))]
            returned += refs
        return returned

    def unpack(self, returned: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Takes apart, in the caller's graph, what the function returned."""
        outputs: dict[int, tf.Tensor] = {}
        with tf.device(devices_lib.cpu_of(self._devices[0])):
            for group, vector in zip(self._groups, returned, strict=True):
                if len(group) == 1:
                    outputs[group[0]] = vector
                    continue
                shapes = [tf.TensorShape(shape) for shape in self._shapes(group)]
                outputs.update(zip(group, unpack(vector, shapes), strict=True))
        return [outputs[position] for position in range(len(self._flat))]

    def _shapes(self, group: Sequence[int]) -> list[list[int]]:
        return [self._flat[position][1].shape.as_list() for position in group]


# TensorFlow keeps the function as long as this object lives.
class Assembly:
    """The function of one step on the replicas of one program."""

    def __init__(
        self,
        name: str,
        analysis: Analysis,
        topology: Topology,
        group: Group | None = None,
        *,
        without_communication: bool = False,
    ) -> None:
        # What the step closes over, the first arguments of the function.
        self.captured: list[Any] = []
        self._name = name
        self._analysis = analysis
        self._traced = analysis.traced
        self._topology = topology
        self._replicas = range(topology.num_local_replicas)
        self._places: dict[tuple[int, str], str] = {}
        self._received: dict[tuple[str, str], Any] = {}
        self._replica_ids: dict[int, Ref] = {}
        # What the function returns: every output, unless some are joined.
        self.output_specs = list(self._traced.output_specs) * len(self._replicas)
        self._specs, self._packed = self.output_specs, None
        if topology.spans_processes:
            self._packed = PackedOutputs(self._traced.output_specs, topology)
            self._specs = self._packed.specs
        self._batch = [
            (f"batch_{replica}_{index}", dtype)
            for replica in self._replicas
            for index, dtype in enumerate(self._traced.argument_dtypes)
        ]
        # A worker or GPU whose data ended must not have begun to communicate.
        batches = [name for name, _ in self._batch]
        met = None if without_communication else group
        self._linker = Linker(
            topology, name, met, batches, is_local=without_communication
        )
        self._emit = self._linker.emit
        # The nodes of the replicas.
        self.copies = Replicas(
            analysis.body,
            topology,
            merged=analysis.invariance.nodes,
            liveness=analysis.liveness,
            resolve=self._resolve,
            handle_device=self._handle_device,
            handle_dtype=lambda handle: self._traced.variables[handle].dtype,
            received=None if group is None else self._received,
        )
        self._link()
        _tf_compat.keep_functions(self, [*self.copies.library, self._function_def()])

    @functools.cached_property
    def _kept(self) -> str:
        """The same function, not inlined where it is called."""
        # TensorFlow would optimize the graph that runs once more, with all replicas: of
        # ``fit``, a third of the first step.
        function = _tf_compat.function_def(self._name)
        function.signature.name = f"{self._name}_kept"
        function.attr["_noinline"].b = True
        _tf_compat.keep_functions(self, [function])
        return str(function.signature.name)

    def call(
        self,
        captured: Iterable[Any],
        batch: Sequence[Any],
        *,
        kept_on: str | None = None,
    ) -> list[tf.Tensor]:
        specs = self._specs
        inputs = tf.nest.flatten(batch, expand_composites=True)
        # Reductions between GPUs wait for what the call waits for; see ``Chain``.
        waits = inputs if self._topology.has_own_gpus else []
        name = self._kept if kept_on else self._name
        device_scope = tf.device(kept_on) if kept_on else contextlib.nullcontext()
        with tf.control_dependencies(waits), device_scope:
            returned: list[tf.Tensor] = _tf_dispatch.call_function(
                name, [*captured, *inputs], [spec.dtype for spec in specs]
            )
        for output, spec in zip(returned, specs, strict=True):
            output.set_shape(spec.shape)
        return self._packed.unpack(returned) if self._packed else returned

    @property
    def has_collectives(self) -> bool:
        """Whether it has ops that meet those of other devices or processes by keys."""
        return bool(self._linker.awaited)

    def pack(self, flat: Sequence[Any]) -> Any:
        return per_replica_nest(self._traced.structure, flat, len(self._replicas))

    def _link(self) -> None:
        body, plans = self._analysis.body, self._analysis.plans
        shares = self._analysis.shares
        buckets: dict[int, list[list[plan.UpdatedVariable]]] = {}
        if shares:
            levels = plan.levels(body, shares)
            places = plan.schedule_shares(body, self._traced.collectives, shares)
            buckets = {index: plan.group(due, levels) for index, due in places.items()}
        # Later collectives may use results of earlier ones, so they link in order.
        for index in range(len(plans) + 1):
            for bucket in buckets.get(index, ()):
                self._share(bucket)
            if index < len(plans):
                self._linker.link(plans[index], self._traced_ref)

    def _share(self, bucket: Sequence[plan.UpdatedVariable]) -> None:
        """Emits the transfer of updated variables from their owner's program."""
        keys = [(share.node, share.handle) for share in bucket]
        new: list[Ref] = []
        if bucket[0].source == self._topology.program_id:
            new = [Ref(node=self.copies.new(*key), port="value:0") for key in keys]
        name = f"{self._name}/shares_{len(self._received)}"
        device = self._topology.replica_devices[0]
        values = self._linker.chain.share(name, bucket, new, device)
        self._received.update(zip(keys, values, strict=True))

    def _function_def(self) -> Any:
        function = _tf_compat.FunctionDef()
        function.signature.name = self._name
        function.signature.is_stateful = True
        # First of all: copying nodes and naming outputs finds what else is captured.
        copied = self.copies.nodes()
        outputs = [
            self._traced_ref(replica, name)
            for replica in self._replicas
            for name in self._traced.output_names
        ]
        if self._packed:
            outputs = self._packed.pack(outputs, self._name, self._emit)
        captured = [
            (f"capture_{index}", outer.dtype)
            for index, outer in enumerate(self.captured)
        ]
        for name, dtype in [*captured, *self._batch]:
            function.signature.input_arg.add(name=name, type=dtype.as_datatype_enum)
        for index, ref in enumerate(outputs):
            name, dtype = f"output_{index}", self._specs[index].dtype
            function.signature.output_arg.add(name=name, type=dtype.as_datatype_enum)
            function.ret[name] = str(ref)
        controls = {
            effect
            for name in self._traced.control_output_names
            for effect in self.copies.effects(name)
        }
        controls.update(self._linker.awaited)
        nodes = [*self._emit.nodes, *copied]
        ends, joins = join_completion(sorted(controls), nodes, self._name)
        nodes += joins
        for index, name in enumerate(ends):
            function.signature.control_output.append(f"control_{index}")
            function.control_ret[f"control_{index}"] = name
        function.node_def.extend(nodes)
        return function

    def _traced_ref(self, replica: int, name: str) -> Ref | str:
        return self.copies.ref(replica, self._analysis.body.names.ref(name))

    def _resolve(self, replica: int, placeholder: str) -> Ref | str:
        """What stands for an input of the traced graph on one replica."""
        results = self._linker.results.get(placeholder)
        if results is not None:
            return results[replica]
        if placeholder == self._traced.replica_id_name:
            if replica not in self._replica_ids:
                replica_id = self._topology.replica_id(replica)
                name = f"replica_{replica_id}/replica_id"
                device = self._topology.replica_devices[replica]
                constant = self._emit.const(name, replica_id, device)
                self._replica_ids[replica] = constant
            return self._replica_ids[replica]
        if placeholder in self._traced.argument_names:
            index = self._traced.argument_names.index(placeholder)
            return f"batch_{replica}_{index}"
        entry = self._analysis.entries.get(placeholder)
        if entry is None:
            outer = self._traced.captures.get(placeholder)
            if outer is None:
                raise CaptureError(
                    f"the step has a placeholder, {placeholder!r}, and nothing feeds "
                    "it; pass its value in the inputs of run(), or, where the graph is "
                    "imported, in input_map= of tf.import_graph_def"
                )
            return self._argument((-1, placeholder), outer)
        # The same copy is one argument, however many replicas use it.
        copy = entry.copies[replica]
        first = [id(other) for other in entry.copies].index(id(copy))
        return self._argument((first, placeholder), _tf_handles.of(copy))

    def _argument(self, key: tuple[int, str], outer: Any) -> str:
        if key not in self._places:
            self._places[key] = f"capture_{len(self.captured)}"
            self.captured.append(outer)
        return self._places[key]

    def _handle_device(self, replica: int, placeholder: str) -> str | None:
        entry = self._analysis.entries.get(placeholder)
        if entry is not None:
            return str(entry.copies[replica].device)
        # What exists once, such as a table, is used where it is.
        outer = self._traced.captures.get(placeholder)
        if outer is None or outer.dtype != tf.resource:
            return None
        return str(outer.device)
