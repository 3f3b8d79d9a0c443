"""Trace: one single-device graph of a step, with placeholders for collectives.

The paper's problem: a replica's step may call a primitive in the middle of graph
construction and so refer to data of replicas that are not built yet. Its solution is
used here: a marker node represents the result until all replicas exist. Markers are of
an op type whose value TensorFlow never infers from its input, and which a vectorized
loop passes to ``replicator.collectives.vectorized``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import gradients as _tf_gradients
from replicator.collectives import vectorized
from replicator.engine.graph.body import producer
from replicator.errors import CollectiveControlFlowError
from replicator.step import context, creation, logical
from replicator.step.keras_random import StepGenerator
from replicator.step.outputs import check_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MARKER_PREFIX = "replicator_collective"
REPLICA_ID_NAME = "replicator_replica_id"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective call of a step.

    Attributes:
      index: Its place in the order of calls.
      kind: ``all_reduce``, ``all_gather``, ``all_concat`` or ``broadcast``.
      op: The reduction of an all-reduce, else empty.
      source_replica_id: The source of a broadcast, else 0.
      num_replicas: Replicas that take part.
      operands: One node per tensor, whose only output is the operand.
      markers: One node per tensor, which stands for the result.
      dtypes: Type of each operand.
      shapes: Static shape of each operand.
      wire_dtype: Type in which wider floating operands are sent between memories, or
        None for their own.
      needed_if: Node whose only output says whether this call communicates at all, a
        scalar bool; None if it always does.
    """

    index: int
    kind: str
    op: str
    source_replica_id: int
    num_replicas: int
    operands: tuple[str, ...]
    markers: tuple[str, ...]
    dtypes: tuple[tf.DType, ...]
    shapes: tuple[tf.TensorShape, ...]
    wire_dtype: tf.DType | None = None
    needed_if: str | None = None

    @property
    def read(self) -> tuple[str, ...]:
        """The nodes whose outputs linking reads."""
        return (*self.operands, *((self.needed_if,) if self.needed_if else ()))

    def result_shape(self, position: int) -> tf.TensorShape:
        """Static shape of the result for one tensor."""
        return _result_shape(self.kind, self.shapes[position], self.num_replicas)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TracedStep:
    """A step function as a graph.

    Attributes:
      graph_def: The graph; inputs are placeholders, collectives are marker nodes.
      argument_names: Placeholder nodes of the per-replica batch, flat.
      argument_dtypes: Their types.
      captures: The outer tensor of all that the step closes over, by placeholder node.
      variables: The ``tf.Variable`` behind each captured handle, by placeholder node.
      output_names: Tensor names of the flat results.
      output_specs: Their shapes and dtypes.
      structure: The nest that the step returned, with 0 for a tensor.
      control_output_names: Nodes that must run for their effect.
      collectives: Collective calls in order.
      replica_id_name: Placeholder node of the replica id, if the step uses it.
    """

    graph_def: Any
    argument_names: tuple[str, ...]
    argument_dtypes: tuple[tf.DType, ...]
    captures: dict[str, Any]
    variables: dict[str, Any]
    output_names: tuple[str, ...]
    output_specs: tuple[tf.TensorSpec, ...]
    structure: Any
    control_output_names: tuple[str, ...]
    collectives: tuple[Collective, ...]
    replica_id_name: str | None


class TraceContext(context.ReplicaContext):
    """The replica context during a trace: collectives leave markers."""

    def __init__(
        self,
        num_replicas: int,
        num_logical_devices: int = 1,
        num_replicas_in_all: int | None = None,
    ) -> None:
        self.num_replicas = num_replicas_in_all or num_replicas
        self.num_replicas_in_sync = num_replicas
        self.num_logical_devices = num_logical_devices
        self.collectives: list[Collective] = []
        self.graph: Any = None
        self.replica_id_tensor: tf.Tensor | None = None

    def forget_graph(self) -> None:
        """Releases the graph after it was read."""
        self.graph = self.replica_id_tensor = None

    @property
    def replica_id(self) -> tf.Tensor:
        """A placeholder that becomes the constant id of each replica."""
        if self.replica_id_tensor is None:
            # In the step's own graph, whatever inner graph asks first.
            with self.graph.as_default(), tf.control_dependencies(None):
                self.replica_id_tensor = tf.compat.v1.placeholder(
                    tf.int32, [], name=REPLICA_ID_NAME
                )
        return self.replica_id_tensor

    def all_reduce(self, tensors: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        """Leaves markers for a reduction; see ``ReplicaContext.all_reduce``."""
        return self._mark("all_reduce", tensors, op=op)

    def compressed_all_reduce(
        self, tensors: Sequence[tf.Tensor], op: str, wire_dtype: tf.DType
    ) -> list[tf.Tensor]:
        """Leaves markers; the sum is in full width, also of what was sent narrow."""
        return self._mark("all_reduce", tensors, op=op, wire_dtype=wire_dtype)

    def all_reduce_if(
        self,
        predicate: tf.Tensor,
        tensors: Sequence[tf.Tensor],
        op: str,
        wire_dtype: tf.DType | None = None,
    ) -> list[tf.Tensor]:
        """Leaves markers for a reduction that communicates only if it is needed."""
        return self._mark(
            "all_reduce", tensors, op=op, wire_dtype=wire_dtype, needed_if=predicate
        )

    def all_gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Leaves markers for a gather; see ``ReplicaContext.all_gather``."""
        return self._mark("all_gather", tensors)

    def all_concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Leaves markers for joined rows; see ``ReplicaContext.all_concat``."""
        return self._mark("all_concat", tensors)

    def broadcast(
        self, tensors: Sequence[tf.Tensor], source_replica_id: int
    ) -> list[tf.Tensor]:
        """Leaves markers for a broadcast; see ``ReplicaContext.broadcast``."""
        return self._mark("broadcast", tensors, source_replica_id=source_replica_id)

    def logical_device(self, index: int) -> Any:
        """A scope that stands for the device until replicas are made."""
        return logical.traced_scope(index, self.num_logical_devices)

    def _mark(
        self,
        kind: str,
        tensors: Sequence[tf.Tensor],
        *,
        op: str = "",
        source_replica_id: int = 0,
        wire_dtype: tf.DType | None = None,
        needed_if: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        self._check_graph(kind)
        index = len(self.collectives)
        # Identities give operands a node of this graph, even constants from outside.
        operands = [tf.identity(tensor) for tensor in tensors]
        results = []
        for position, tensor in enumerate(operands):
            results.append(
                _tf_gradients.marker(
                    _stand_in(kind, tensor, self.num_replicas_in_sync),
                    _result_shape(kind, tensor.shape, self.num_replicas_in_sync),
                    name=f"{MARKER_PREFIX}_{index}_{position}",
                )
            )
        self.collectives.append(
            Collective(
                index=index,
                kind=kind,
                op=op,
                source_replica_id=source_replica_id,
                num_replicas=self.num_replicas_in_sync,
                operands=tuple(operand.op.name for operand in operands),
                markers=tuple(result.op.name for result in results),
                dtypes=tuple(tensor.dtype for tensor in tensors),
                shapes=tuple(tensor.shape for tensor in tensors),
                wire_dtype=wire_dtype,
                needed_if=None if needed_if is None else tf.identity(needed_if).op.name,
            )
        )
        return results

    def collective_of(self, marker: str) -> Collective | None:
        """The call that a node is a marker of; see ``ReplicaContext``."""
        return next((c for c in self.collectives if marker in c.markers), None)

    def _check_graph(self, kind: str) -> None:
        graph = _tf_compat.current_graph()
        if graph is self.graph:
            return
        if _tf_compat.is_control_flow_graph(graph):
            where = "a tf.cond branch, a tf.while_loop or tf.map_fn body"
        else:
            where = "a nested tf.function or a dataset function"
        raise CollectiveControlFlowError(
            f"{kind} was called inside {where}, where replicas could take different "
            "paths, so it cannot be linked across replicas; move it out (compute "
            "inside, communicate outside), write the loop as a Python loop, or remove "
            "the inner @tf.function"
        )


def trace(
    step_fn: Callable[..., Any],
    specs: Sequence[Any],
    num_replicas: int,
    num_logical_devices: int = 1,
    num_replicas_in_all: int | None = None,
) -> TracedStep:
    """Traces a step function once for all replicas.

    Args:
      step_fn: Single-device code.
      specs: Nests of ``tf.TypeSpec``, one per argument.
      num_replicas: Replicas in sync: those that collectives join.
      num_logical_devices: Devices that one replica is split over.
      num_replicas_in_all: All replicas, if there are more than those in sync.

    Returns:
      The graph and what is known of it.

    Raises:
      ReplicatorError: Misuse inside the step.
    """
    trace_context = TraceContext(num_replicas, num_logical_devices, num_replicas_in_all)
    vectorized.register()

    def step(*args: Any) -> Any:
        trace_context.graph = _tf_compat.current_graph()
        with context.enter(trace_context):
            return check_outputs(step_fn(*args), step_fn)

    def writes_summaries() -> Any:
        # Every replica would write its value under the same step.
        return num_replicas == 1 or tf.equal(trace_context.replica_id, 0)

    with (
        creation.forbidden_in_steps(),
        _tf_compat.summaries_if(writes_summaries),
        StepGenerator().installed(),
    ):
        graph = _tf_compat.trace_to_graph(step, specs)
    replica_id = trace_context.replica_id_tensor
    graph_def = graph.as_graph_def()
    output_names = tuple(tensor.name for tensor in graph.outputs)
    effects = tuple(op.name for op in graph.control_outputs)
    captures = {placeholder.op.name: outer for outer, placeholder in graph.captures}
    arguments = list(graph.inputs)[: len(graph.inputs) - len(captures)]
    by_handle = {id(v.handle): v for v in graph.variables}
    traced = TracedStep(
        graph_def=graph_def,
        argument_names=tuple(tensor.op.name for tensor in arguments),
        argument_dtypes=tuple(tensor.dtype for tensor in arguments),
        captures=captures,
        variables={
            name: by_handle[id(outer)]
            for name, outer in captures.items()
            if id(outer) in by_handle
        },
        output_names=output_names,
        output_specs=tuple(
            tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in graph.outputs
        ),
        # Without the tensors, which would keep the graph.
        structure=tf.nest.map_structure(
            lambda leaf: None if leaf is None else 0, graph.structured_outputs
        ),
        control_output_names=effects,
        collectives=_used(
            trace_context.collectives, graph_def, [*output_names, *effects]
        ),
        replica_id_name=None if replica_id is None else replica_id.op.name,
    )
    trace_context.forget_graph()
    _tf_compat.dismantle(graph, traced.graph_def)
    return traced


def _used(
    collectives: Sequence[Collective], graph_def: Any, roots: Sequence[str]
) -> tuple[Collective, ...]:
    """Removes collectives whose results no replica uses.

    Such are those in the body of a loop that was vectorized, and in gradients that
    forward mode needs for their own gradients only.
    """
    inputs = {node.name: node.input for node in graph_def.node}
    found: set[str] = set()
    stack = list(roots)
    while stack:
        name = producer(stack.pop())
        if name not in found:
            found.add(name)
            stack += inputs[name]
    kept = [c for c in collectives if any(m in found for m in c.markers)]
    return tuple(dataclasses.replace(c, index=i) for i, c in enumerate(kept))


def _stand_in(kind: str, operand: tf.Tensor, num_replicas: int) -> tf.Tensor:
    """What the rest of a trace sees for a result: a value of its shape."""
    if kind == "all_gather":
        return tf.broadcast_to(
            tf.expand_dims(operand, 0),
            tf.concat([[num_replicas], tf.shape(operand)], axis=0),
        )
    if kind == "all_concat":
        return tf.concat([operand] * num_replicas, axis=0)
    return operand


def _result_shape(
    kind: str, shape: tf.TensorShape, num_replicas: int
) -> tf.TensorShape:
    if kind == "all_gather":
        return tf.TensorShape([num_replicas]).concatenate(shape)
    if kind == "all_concat" and shape.rank is not None:
        rows = None if shape[0] is None else shape[0] * num_replicas
        return tf.TensorShape([rows]).concatenate(shape[1:])
    return shape
