"""Captures: everything that a step closes over, and what each of it is.

Replicas get copies of variables, and share the rest: constants, tables, iterators. So
each captured resource has to be known. One that is a variable and was not taken for one
would be written once per replica, and one that the step changes and that is no variable
exists once for all of them; the step is refused, with the line that captured it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import captures as _tf_captures
from replicator.engine.graph.body import producer
from replicator.engine.graph.effects import (
    PASS_THROUGH,
    called_by,
    first_argument,
    takes_inputs,
)
from replicator.engine.graph.lines import line_of, shown
from replicator.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Captures:
    """What a step closes over.

    Attributes:
      outer: The captured tensor, by placeholder node.
      variables: The ``tf.Variable`` behind each captured handle, by placeholder node.
    """

    outer: dict[str, Any]
    variables: dict[str, Any]


def find(
    graph: Any, graph_def: Any, num_replicas: int, shared: Iterable[Any] = ()
) -> Captures:
    """Finds out what a traced graph captures.

    Args:
      graph: The function graph.
      graph_def: The same, as read.
      num_replicas: Replicas of the job.
      shared: Resources that the library itself lets replicas share.

    Raises:
      CaptureError: A resource that replicas can neither share nor have copies of.
    """
    outer, lines = {}, {}
    own = {id(resource) for resource in shared}
    for tensor, placeholder in graph.captures:
        outer[placeholder.op.name] = tensor
        lines[placeholder.op.name] = placeholder.op
    resources = {name: x for name, x in outer.items() if x.dtype == tf.resource}
    by_handle = {
        id(variable.handle): variable
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
    return Captures(outer=outer, variables=variables)


def _check(others: Mapping[str, Any], graph_def: Any, num_replicas: int) -> None:
    """Rejects resources that are no variables and that the step changes.

    Args:
      others: The operation that captured each, by placeholder node.
      graph_def: The traced graph.
      num_replicas: Replicas of the job.
    """
    if not others:
        return
    library = {f.signature.name: f for f in graph_def.library.function}
    for name, op in _uses(graph_def.node, {name: name for name in others}, library):
        if op not in _SHARED_OPS:
            where = shown([line_of(others[name].traceback)])
            raise CaptureError(
                f"the step runs {op} on a resource that it captured"
                f"{where} and that is no tf.Variable: it exists once, and each of "
                f"{num_replicas} replicas would do that, in any order; a step may read "
                "tables and iterators: keep what it changes in a tf.Variable, or "
                "return the values and change it outside the step"
            )


def _uses(
    nodes: Iterable[Any], handles: Mapping[str, str], library: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """The operations on handles, also those in functions that are called.

    Args:
      nodes: Of a graph or a function.
      handles: What a handle is called outside, by its name here.
      library: Functions by name.

    Yields:
      The name of a handle outside and the type of an operation that takes it.
    """
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
