"""Trace: one single-device graph of a step, with placeholders for collectives.

The paper's problem: a replica's step may call a primitive in the middle of graph
construction and so refer to data of replicas that are not built yet. Its solution is
used here: a marker node represents the result until all replicas exist. Markers are of
an op type whose value TensorFlow never infers from its input, and which a vectorized
loop passes to ``replicator.collectives.differentiable``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf import handles as _tf_handles
from replicator._tf import keras_parts as _tf_keras_parts
from replicator._tf.compat import reachable
from replicator.collectives.kinds import TENSORS, Collective, CollectiveKind
from replicator.core import context, devices
from replicator.core.step import at_lines, check_outputs, line_of, outline
from replicator.engine import convolutions, liveness
from replicator.engine.body import called_names, functions_with, producer
from replicator.engine.dataflow import (
    PASS_THROUGH,
    READ_OPS,
    first_argument,
    takes_inputs,
)
from replicator.errors import CaptureError, CollectiveControlFlowError
from replicator.strategy import replica_context
from replicator.variables.kinds import foreign_explained

# Replicas get copies of variables, and share the rest: constants, tables, iterators. So
# each captured resource, and each Python function, has to be known. A variable that was
# not taken for one would be written once per replica. What is no variable exists once
# for all replicas: a step that changes it is refused, with the line that captured it.


# Of tables, iterators, and summaries, which only replica 0 writes. Not of locks: what
# replicas do once for all would wait for each of them, and so for itself.
_SHARED_OPS = frozenset(
    {
        "FlushSummaryWriter",
        "IteratorGetNext",
        "IteratorGetNextAsOptional",
        "IteratorGetNextSync",
        "LookupTableExportV2",
        "LookupTableFindV2",
        "LookupTableSizeV2",
        "WriteAudioSummary",
        "WriteGraphSummary",
        "WriteHistogramSummary",
        "WriteImageSummary",
        "WriteRawProtoSummary",
        "WriteScalarSummary",
        "WriteSummary",
    }
)
# Of the names of nodes that stand for results of collectives.
MARKER_PREFIX = "replicator_collective"
_PYTHON_OPS = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})


def find_captures(
    graph: Any, graph_def: Any, num_replicas: int, shared: Iterable[Any] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """By placeholder, what a traced graph captures, and the variables among that."""
    outer, lines = {}, {}
    own = {id(resource) for resource in shared}
    for tensor, placeholder in graph.captures:
        outer[placeholder.op.name] = tensor
        lines[placeholder.op.name] = placeholder.op
    resources = {name: x for name, x in outer.items() if x.dtype == tf.resource}
    by_handle = _tf_handles.variables_of(graph, resources.values())
    variables = {
        name: by_handle[id(handle)]
        for name, handle in resources.items()
        if id(handle) in by_handle
    }
    known = {*variables, *(n for n, x in outer.items() if id(x) in own)}
    others = {name: name for name in resources if name not in known}
    library = {f.signature.name: f for f in graph_def.library.function}
    uses = _uses(graph_def.node, others, library) if num_replicas > 1 and others else ()
    for name, op in uses:
        if op not in _SHARED_OPS:
            where = at_lines([line_of(lines[name].traceback)])
            raise CaptureError(
                f"the step runs {op} on a resource that it captured{where} and that is "
                f"no tf.Variable: it exists once, and each of {num_replicas} replicas "
                "would do that, in any order; a step may read tables and iterators: "
                "keep what it changes in a tf.Variable, or return the values and "
                "change it outside the step"
            )
    return outer, variables


def check_python(lines: Sequence[str], topology: devices.Topology) -> None:
    """Rejects Python functions of a step that has replicas in other processes."""
    here = devices.process(tf.zeros([]).device)
    places = itertools.chain.from_iterable(topology.devices)
    elsewhere = [device for device in places if devices.process(device) != here]
    if elsewhere:
        raise CaptureError(
            f"the step calls Python{at_lines(lines[:1])} (tf.py_function or "
            "tf.numpy_function), which runs in this process only, but a replica "
            f"is on {elsewhere[0]}; write it with TensorFlow ops, or call it "
            "outside the step and pass its result in the batch"
        )


def check_copies(graph: Any, graph_def: Any, markers: Collection[str]) -> None:
    """Rejects copies of markers, which would pass on the value of their own replica."""

    def is_copy(node: Any) -> bool:
        if node.op != "PlaceholderWithDefault" or node.name in markers:
            return False
        return node.name.rpartition("/")[2].startswith(MARKER_PREFIX)

    for name in _calls(graph_def, is_copy):
        where = at_lines([_line_of_use(graph.get_operation_by_name(name))])
        raise CaptureError(
            f"the step uses{where} a copy of a graph that has a collective ({name}), "
            "as tf.import_graph_def makes one: it would return what each replica has "
            "and join nothing; copy a graph without collectives, and call the "
            "collective in the step itself"
        )


def _line_of_use(operation: Any) -> str:
    """An imported operation has no line: that of the first one that uses it."""

    def uses(one: Any) -> Iterator[Any]:
        return (use for output in one.outputs for use in output.consumers())

    lines = (line_of(one.traceback) for one in reachable([operation], uses))
    return next(filter(None, lines), "")


def _calls(graph_def: Any, is_sought: Callable[[Any], bool]) -> list[str]:
    """Nodes of a graph that are sought, or call a function that has such a node."""
    names = functions_with(graph_def.library.function, is_sought)
    return [
        node.name
        for node in graph_def.node
        if is_sought(node) or (names and not names.isdisjoint(called_names(node)))
    ]


def _uses(
    nodes: Iterable[Any], handles: Mapping[str, str], library: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """The operations on handles, also those in functions that are called."""
    names = dict(handles)
    for proto in nodes:
        data = [producer(text) for text in proto.input if not text.startswith("^")]
        for position, name in enumerate(data):
            if name not in names:
                continue
            if proto.op in PASS_THROUGH:
                names[proto.name] = names[name]
            elif not takes_inputs(proto, library):
                yield names[name], proto.op
            else:
                index = position - first_argument(proto)
                called = (library[f] for f in called_names(proto) if f in library)
                for function in called:
                    inner = function.signature.input_arg[index].name
                    yield from _uses(function.node_def, {inner: names[name]}, library)


RESAMPLED = "convolutions of the smaller image"
PRODUCTS = "convolutions as products of matrices"


def attempt(
    name: str, notes: list[str], rewrite: Callable[[], Any], without: Any = None
) -> Any:
    """Returns what a rewriter does; where it fails, ``without``, and notes why."""
    try:
        return rewrite()
    except Exception as error:  # noqa: BLE001 - a step that is slower is better than none
        what = f"{type(error).__name__}: {error}"
        notes.append(
            f"without {name}, which failed in this step ({what}): results are the "
            "same, and the step may be slower; please report this"
        )
        return without


REPLICA_ID_NAME = "replicator_replica_id"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TracedStep:
    graph_def: Any  # The graph; inputs are placeholders, collectives are marker nodes.
    argument_names: tuple[str, ...]  # Placeholder nodes of the per-replica batch, flat.
    argument_dtypes: tuple[tf.DType, ...]  # Their types.
    # The outer tensor of all that the step closes over, by placeholder node.
    captures: dict[str, Any]
    # The ``tf.Variable`` behind each captured handle, by placeholder node.
    variables: dict[str, Any]
    # By handle placeholder, the lines of code that may write the variable.
    lines: dict[str, tuple[str, ...]]
    # Lines of the user's program that call Python from the graph.
    python_lines: tuple[str, ...]
    output_names: tuple[str, ...]  # Tensor names of the flat results.
    output_specs: tuple[tf.TensorSpec, ...]  # Their shapes and dtypes.
    structure: Any  # The nest that the step returned, with 0 for a tensor.
    control_output_names: tuple[str, ...]  # Nodes that must run for their effect.
    collectives: tuple[Collective, ...]  # Collective calls in order.
    # Placeholder node of the replica id, if the step uses it.
    replica_id_name: str | None
    # Nodes that must be the same on every replica, and the error otherwise.
    required: dict[str, str]
    # By node whose value the owner of a variable keeps alone, that variable.
    owned: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()  # What the step says of itself in ``explain()``.
    has_products: bool = False  # Whether convolutions may become products.
    # Convolutions that may be between two resolutions.
    resampled: tuple[convolutions.Resampled, ...] = ()
    # What a pipeline keeps for the backward pass on each logical device at most, in
    # bytes; empty without one.
    activations: tuple[int, ...] = ()


class TraceContext(context.ReplicaContext):
    """The replica context during a trace: collectives leave markers."""

    is_traced_once = True

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
        self.required: dict[str, str] = {}
        self.of_owners: dict[str, Any] = {}
        self.notes: list[str] = []
        self.activations: tuple[int, ...] = ()
        self.graph: Any = None
        self.replica_id_tensor: tf.Tensor | None = None

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

    def communicate(
        self,
        kind: CollectiveKind,
        tensors: Sequence[tf.Tensor],
        needed_if: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        """Leaves markers, one per tensor, which linking replaces by results."""
        if _tf_compat.current_graph() is not self.graph:
            raise _inside_graph(kind.name)
        index, count = len(self.collectives), self.num_replicas_in_sync
        # Identities give operands a node of this graph, even constants from outside.
        operands = [tf.identity(tensor) for tensor in tensors]
        results = []
        for position, tensor in enumerate(operands):
            # A value of its shape, which is never computed. Of one replica it is the
            # result, through which gradients flow as through any operation.
            stand_in = tensor
            if count == 1 or not kind.keeps_shape:
                stand_in = kind.local_result(TENSORS, tensor, 0, count)
            name = f"{MARKER_PREFIX}_{index}_{position}"
            results.append(_tf_distribute.marker(stand_in, stand_in.shape, name=name))
        self.collectives.append(
            Collective(
                index=index,
                kind=kind,
                num_replicas=count,
                operands=tuple(operand.op.name for operand in operands),
                markers=tuple(result.op.name for result in results),
                dtypes=tuple(tensor.dtype for tensor in tensors),
                shapes=tuple(tensor.shape for tensor in tensors),
                needed_if=None if needed_if is None else tf.identity(needed_if).op.name,
            )
        )
        return results

    def require_same(self, tensor: tf.Tensor, error: str) -> None:
        if self.num_replicas_in_sync > 1 and _tf_compat.current_graph() is self.graph:
            self.required[tf.identity(tensor).op.name] = error

    def owned(self, tensor: tf.Tensor, variable: Any) -> tf.Tensor:
        if _tf_compat.current_graph() is not self.graph:
            return tensor
        mark = tf.identity(tensor)
        self.of_owners[mark.op.name] = variable
        return mark

    def note(self, text: str, activations: Sequence[int] = ()) -> None:
        self.notes.append(text)
        self.activations = tuple(activations) or self.activations

    def logical_device(self, index: int) -> Any:
        device_index = context.check_logical_index(index, self.num_logical_devices)
        return tf.device(context.logical_name(device_index))

    def collective_of(self, marker: str) -> Collective | None:
        return next((c for c in self.collectives if marker in c.markers), None)


def _inside_graph(kind: str) -> CollectiveControlFlowError:
    if _tf_compat.is_control_flow_graph(_tf_compat.current_graph()):
        where = "a tf.cond branch, a tf.while_loop or tf.map_fn body"
    else:
        where = "a nested tf.function or a dataset function"
    return CollectiveControlFlowError(
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
    shared: Iterable[Any] = (),
) -> TracedStep:
    trace_context = TraceContext(num_replicas, num_logical_devices, num_replicas_in_all)

    # Only what is the user's: to convert the rest takes longer than to run it.
    called = _tf_distribute.converted_inside(step_fn)

    def step(*args: Any) -> Any:
        trace_context.graph = _tf_compat.current_graph()
        # What the step writes is seen in its graph, whose copies write for it.
        own = _tf_handles.own_graph()
        with own, context.enter(trace_context), replica_context.entered():
            return check_outputs(called(*args), step_fn)

    def writes_summaries() -> Any:
        # Every replica would write its value under the same step.
        return num_replicas == 1 or tf.equal(trace_context.replica_id, 0)

    with (
        foreign_explained(),
        _tf_keras_parts.ignore_empty_batches(),
        context.StepGenerator().installed(),
    ):
        graph = _tf_compat.trace_to_graph(step, specs, writes_summaries)
    replica_id = trace_context.replica_id_tensor
    graph_def = graph.as_graph_def()
    output_names = tuple(tensor.name for tensor in graph.outputs)
    effects = tuple(op.name for op in graph.control_outputs)
    captures, variables = find_captures(
        graph, graph_def, trace_context.num_replicas, shared
    )
    if num_replicas > 1:
        markers = {m for c in trace_context.collectives for m in c.markers}
        check_copies(graph, graph_def, markers)
    liveness.check_recomputed(graph, variables)
    notes = trace_context.notes
    has_products, resampled = False, ()
    if any(op.type in convolutions.CONCERNED for op in graph.get_operations()):
        mark, find = convolutions.mark, convolutions.find
        has_products = attempt(PRODUCTS, notes, lambda: mark(graph, graph_def), False)
        resampled = attempt(RESAMPLED, notes, lambda: find(graph), ())
    arguments = list(graph.inputs)[: len(graph.inputs) - len(captures)]
    python = _calls(graph_def, lambda node: node.op in _PYTHON_OPS)
    traced = TracedStep(
        graph_def=graph_def,
        argument_names=tuple(tensor.op.name for tensor in arguments),
        argument_dtypes=tuple(tensor.dtype for tensor in arguments),
        captures=captures,
        variables=variables,
        lines=_lines_of_writes(graph, variables),
        python_lines=tuple(
            line_of(graph.get_operation_by_name(name).traceback) for name in python
        ),
        output_names=output_names,
        output_specs=tuple(
            tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in graph.outputs
        ),
        structure=outline(graph.structured_outputs),
        control_output_names=effects,
        collectives=_used(
            trace_context.collectives, graph_def, [*output_names, *effects]
        ),
        replica_id_name=None if replica_id is None else replica_id.op.name,
        required=trace_context.required,
        owned=trace_context.of_owners,
        notes=tuple(notes),
        has_products=has_products,
        resampled=resampled,
        activations=trace_context.activations,
    )
    trace_context.graph = trace_context.replica_id_tensor = None
    _tf_compat.dismantle(graph, traced.graph_def)
    return traced


def _lines_of_writes(
    graph: Any, variables: Container[str]
) -> dict[str, tuple[str, ...]]:
    """By handle placeholder, where in the user's code its variable may be written."""
    # As text, because a stack refers to memory of the graph, which is freed. Kernels of
    # optimizers are left out: they write what they are for.
    lines_of = {}
    for _, placeholder in graph.captures:
        if placeholder.op.name in variables:
            ops = [
                op
                for op in placeholder.consumers()
                if op.type not in READ_OPS and not op.type.startswith("ResourceApply")
            ]
            # What has results may be a call of a function that only reads.
            writes = [op for op in ops if not op.outputs] or ops
            lines = (line_of(op.traceback) for op in writes)
            lines_of[placeholder.op.name] = tuple(dict.fromkeys(filter(None, lines)))
    return lines_of


def _used(
    collectives: Sequence[Collective], graph_def: Any, roots: Sequence[str]
) -> tuple[Collective, ...]:
    """Removes collectives whose results no replica uses."""
    # Such are those in the body of a loop that was vectorized, and in gradients that
    # forward mode needs for their own gradients only.
    inputs = {node.name: node.input for node in graph_def.node}
    producers = map(producer, roots)
    reached = {*reachable(producers, lambda name: map(producer, inputs[name]))}
    kept = [c for c in collectives if not reached.isdisjoint(c.markers)]
    return tuple(dataclasses.replace(c, index=i) for i, c in enumerate(kept))
