"""Compiled: the replicas of an assembled step as programs of XLA, one per device.

XLA compiles a function for one device. Its all-reduce joins the programs of all
replicas: they have the same collectives in the same order, each over the group of all.
What is left outside are batches, constants, and random numbers, which XLA would draw
in another way.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator.engine.graph.body import producer, rewrite
from replicator.errors import CompiledStepError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from replicator.engine.analysis.plan import CollectivePlan
    from replicator.placement.topology import Topology

# Random operations, and the attribute with the type of what they draw.
_DRAWS = {
    "RandomStandardNormal": "dtype",
    "RandomUniform": "dtype",
    "TruncatedNormal": "dtype",
    "RandomUniformInt": "Tout",
}
_MUST_COMPILE = "_XlaMustCompile"


def check_plans(plans: Iterable[CollectivePlan]) -> None:
    """Rejects collectives that are no all-reduce of XLA.

    Raises:
      CompiledStepError: Names one.
    """
    for plan in plans:
        collective = plan.collective
        if collective.num_replicas == 1:
            continue
        if plan.algorithm not in ("xla", "rows") or collective.needed_if is not None:
            raise CompiledStepError(
                f"collective #{collective.index} of the step, {collective.kind} of "
                f"{', '.join(sorted({d.name for d in collective.dtypes}))}, cannot be "
                "part of a program of XLA, which knows reductions and gathers of "
                "numbers whose shapes are static; leave it out of the CompiledStep, "
                "or run the step without XLA"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """The functions of one compiled step.

    Attributes:
      function: Draws, and calls the program of each replica on its device.
      programs: Functions that XLA compiles, by replica.
    """

    function: Any
    programs: tuple[Any, ...]


def split(function: Any, topology: Topology, batch: Sequence[str]) -> Compiled:
    """Turns the function of all replicas into one that calls a program for each.

    Args:
      function: A ``FunctionDef`` with the nodes of all replicas.
      topology: Where they are.
      batch: Its arguments with batches. With several replicas, none of them starts
        before all batches are there: it would wait for the others forever.
    """
    parts = _Parts(function, topology)
    outer = _tf_compat.FunctionDef()
    outer.signature.CopyFrom(function.signature)
    outer.attr.MergeFrom(function.attr)
    outer.node_def.extend(parts.outside)
    outer.ret.update(function.ret)
    waits = list(batch) if len(parts.replicas) > 1 else []
    programs = []
    del outer.signature.control_output[:]
    for replica, nodes in enumerate(parts.replicas):
        program, call = _program(parts, replica, nodes, topology, waits)
        programs.append(program)
        outer.node_def.append(call)
        for index, name in enumerate(parts.results(replica)):
            outer.ret[name] = f"{call.name}:output:{index}"
        outer.signature.control_output.append(call.name)
        outer.control_ret[call.name] = call.name
    return Compiled(function=outer, programs=tuple(programs))


class _Parts:
    """Which nodes of a function belong to which replica, and which to none.

    Attributes:
      function: The function.
      outside: Nodes that no program has.
      replicas: By replica, the nodes of its program.
      dtypes: Types of what programs can take: arguments, and what is drawn.
    """

    def __init__(self, function: Any, topology: Topology) -> None:
        self.function = function
        self.outside: list[Any] = []
        self.replicas: list[list[Any]] = [
            [] for _ in range(topology.num_local_replicas)
        ]
        self.dtypes: dict[str, int] = {
            arg.name: arg.type for arg in function.signature.input_arg
        }
        self._of_node: dict[str, int] = {}
        constants = {n.name for n in function.node_def if n.op == "Const"}
        drawn = [
            node
            for node in function.node_def
            if node.op in _DRAWS and all(producer(x) in constants for x in node.input)
        ]
        self._drawn = {node.name for node in drawn}
        shapes = {producer(text) for node in drawn for text in node.input}
        for node in function.node_def:
            if node.name in self._drawn:
                self.dtypes[f"{node.name}:output:0"] = node.attr[_DRAWS[node.op]].type
            if node.name in self._drawn or node.name in shapes:
                self.outside.append(_without_controls(node))
            if node.name not in self._drawn:
                replica = _replica_of(node, topology)
                self.replicas[replica].append(node)
                self._of_node[node.name] = replica

    def is_outside(self, text: str) -> bool:
        """Whether an input of a node is an argument of the function, or drawn."""
        name = producer(text)
        return name in self._drawn or name not in self._of_node

    def results(self, replica: int) -> list[str]:
        """Names of the function's outputs that a replica's program computes."""
        return [
            arg.name
            for arg in self.function.signature.output_arg
            if self._of_node.get(producer(self.function.ret[arg.name])) == replica
        ]

    def effects(self, replica: int) -> list[str]:
        """Nodes of a replica that have to run."""
        found = self.function.control_ret.values()
        return sorted({name for name in found if self._of_node.get(name) == replica})

    def check(self, node: Any, text: str, replica: int) -> None:
        """Raises where a program would read a value of another replica."""
        other = self._of_node.get(producer(text), replica)
        if other != replica:
            raise CompiledStepError(
                f"node {node.name!r} of replica {replica} reads {text!r} of replica "
                f"{other}, which a program of XLA cannot; run the step without XLA"
            )


def _program(
    parts: _Parts, replica: int, nodes: Sequence[Any], topology: Topology, waits: Any
) -> tuple[Any, Any]:
    """The function of one replica that XLA compiles, and the node that calls it."""
    program = _tf_compat.FunctionDef()
    signature = program.signature
    signature.name = f"{parts.function.signature.name}_xla_{replica}"
    signature.is_stateful = True
    program.attr[_MUST_COMPILE].b = True
    program.attr["_noinline"].b = True
    taken: dict[str, str] = {}
    for node in nodes:
        copy = program.node_def.add()
        copy.CopyFrom(node)
        copy.device = ""  # all of a program is on one device
        del copy.input[:]
        for text in node.input:
            if not parts.is_outside(text):
                parts.check(node, text, replica)
                copy.input.append(text)
            elif not text.startswith("^"):
                copy.input.append(taken.setdefault(text, f"taken_{len(taken)}"))
    for text, name in taken.items():
        signature.input_arg.add(name=name).type = parts.dtypes[text]
    dtype_of = {arg.name: arg.type for arg in parts.function.signature.output_arg}
    results = parts.results(replica)
    for name in results:
        signature.output_arg.add(name=name).type = dtype_of[name]
        program.ret[name] = parts.function.ret[name]
    for name in parts.effects(replica):
        signature.control_output.append(name)
        program.control_ret[name] = name
    call = _tf_compat.NodeDef(
        name=f"program_{replica}",
        op="StatefulPartitionedCall",
        device=topology.replica_devices[replica],
    )
    call.input.extend(taken)
    call.input.extend(f"^{name}" for name in waits)
    call.attr["f"].func.name = signature.name
    call.attr["Tin"].list.type.extend(parts.dtypes[text] for text in taken)
    call.attr["Tout"].list.type.extend(dtype_of[name] for name in results)
    call.attr[_MUST_COMPILE].b = True
    is_soft = tf.config.get_soft_device_placement()
    config = _tf_dispatch.unoptimized_config(is_soft)
    call.attr["config_proto"].s = config.SerializeToString()
    return program, call


def _without_controls(node: Any) -> Any:
    """What a constant waits for may be part of a program."""
    copy = _tf_compat.NodeDef()
    data = (text for text in node.input if not text.startswith("^"))
    rewrite(copy, node, node.name, node.device, data)
    return copy


def _replica_of(node: Any, topology: Topology) -> int:
    for replica in range(topology.num_local_replicas):
        if node.name.startswith(f"replica_{topology.replica_id(replica)}/"):
            return replica
    devices = topology.replica_devices
    return devices.index(node.device) if node.device in devices else 0
