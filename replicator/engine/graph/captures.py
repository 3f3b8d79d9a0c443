"""Captures: everything that a step closes over, and what each of it is.

Replicas get copies of variables, and share the rest: constants, tables, iterators. So
each captured resource, and each Python function, has to be known. A variable that was
not taken for one would be written once per replica. What is no variable exists once for
all replicas: a step that changes it is refused, with the line that captured it (record
0047).
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import captures as _tf_captures
from replicator._tf import handles as _tf_handles
from replicator.engine.graph.body import producer
from replicator.engine.graph.effects import (
    PASS_THROUGH,
    called_by,
    first_argument,
    takes_inputs,
)
from replicator.errors import CaptureError
from replicator.placement import devices
from replicator.step.tracing import line_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from replicator.placement.topology import Topology

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Captures:
    """What a step closes over."""

    outer: dict[str, Any]  # The captured tensor, by placeholder node.
    # The ``tf.Variable`` behind each captured handle, by placeholder node.
    variables: dict[str, Any]
    # Lines of the user's program that call Python from the graph.
    python_lines: tuple[str, ...]


def find(
    graph: Any, graph_def: Any, num_replicas: int, shared: Iterable[Any] = ()
) -> Captures:
    """Finds out what a traced graph captures."""
    outer, lines = {}, {}
    own = {id(resource) for resource in shared}
    for tensor, placeholder in graph.captures:
        outer[placeholder.op.name] = tensor
        lines[placeholder.op.name] = placeholder.op
    resources = {name: x for name, x in outer.items() if x.dtype == tf.resource}
    by_handle = {
        id(_tf_handles.of(variable)): variable
        for variable in graph.variables
        if not _tf_captures.is_result(variable)
    }
    by_handle |= _tf_captures.variables_of(
        handle
        for handle in resources.values()
        if id(handle) not in by_handle and _tf_captures.is_variable(handle)
    )
    variables = {
        name: by_handle[id(handle)]
        for name, handle in resources.items()
        if id(handle) in by_handle
    }
    if num_replicas > 1:
        known = {*variables, *(n for n, x in outer.items() if id(x) in own)}
        others = {name: lines[name] for name in resources if name not in known}
        _check(others, graph_def, num_replicas)
    python = [
        graph.get_operation_by_name(name)
        for name in _calls(graph_def, lambda node: node.op in _PYTHON_OPS)
    ]
    return Captures(
        outer=outer,
        variables=variables,
        python_lines=tuple(line_of(operation.traceback) for operation in python),
    )


def check_python(lines: Iterable[str], topology: Topology) -> None:
    """Rejects Python functions of a step that has replicas in other processes."""
    here = devices.process(tf.zeros([]).device)
    places = itertools.chain.from_iterable(topology.devices)
    elsewhere = [place for place in places if devices.process(place) != here]
    for line in lines:
        if elsewhere:
            raise CaptureError(
                f"the step calls Python{shown([line])} (tf.py_function or "
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
        where = shown([_line_of_use(graph.get_operation_by_name(name))])
        raise CaptureError(
            f"the step uses{where} a copy of a graph that has a collective ({name}), "
            "as tf.import_graph_def makes one: it would return what each replica has "
            "and join nothing; copy a graph without collectives, and call the "
            "collective in the step itself"
        )


def _line_of_use(operation: Any) -> str:
    """An imported operation has no line: that of the first one that uses it."""
    pending = [operation]
    for one in pending:
        line = line_of(one.traceback)
        if line:
            return line
        uses = (use for output in one.outputs for use in output.consumers())
        pending += [use for use in uses if use not in pending]
    return ""


def _calls(graph_def: Any, is_sought: Callable[[Any], bool]) -> list[str]:
    """Nodes of a graph that are sought, or call a function that has such a node."""
    names: set[str] = set()

    def found(nodes: Iterable[Any]) -> list[str]:
        return [n.name for n in nodes if is_sought(n) or called_by(n, names)]

    library = graph_def.library.function
    while True:
        more = {f.signature.name for f in library if found(f.node_def)}
        if more <= names:
            return found(graph_def.node)
        names |= more


def _check(others: Mapping[str, Any], graph_def: Any, num_replicas: int) -> None:
    """Rejects resources that are no variables and that the step changes."""
    if not others:
        return
    library = {f.signature.name: f for f in graph_def.library.function}
    for name, op in _uses(graph_def.node, {name: name for name in others}, library):
        if op not in _SHARED_OPS:
            where = shown([line_of(others[name].traceback)])
            raise CaptureError(
                f"the step runs {op} on a resource that it captured{where} and that is "
                f"no tf.Variable: it exists once, and each of {num_replicas} replicas "
                "would do that, in any order; a step may read tables and iterators: "
                "keep what it changes in a tf.Variable, or return the values and "
                "change it outside the step"
            )


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
                for function in (library[f] for f in called_by(proto, library)):
                    inner = function.signature.input_arg[index].name
                    yield from _uses(function.node_def, {inner: names[name]}, library)
