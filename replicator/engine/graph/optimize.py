"""Optimize: TensorFlow's graph optimizer over the one traced graph.

Optimizing the linked graph would repeat the same work per replica. Instead, the traced
graph is cut at its collectives, stamped with the device types of the replicas,
optimized once, and then replicated.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator.core.context import FUNCTION_PREFIX, TASK_END
from replicator.engine.graph.body import (
    called_functions,
    called_names,
    keep_effects_in_order,
    keep_waits_of_calls,
    node_lists,
    producer,
)
from replicator.engine.graph.convolutions import products, resampled
from replicator.engine.graph.stamps import Stamps
from replicator.engine.graph.trace import PRODUCTS, RESAMPLED, Rewriters, check_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replicator.core.topology import Topology
    from replicator.engine.graph.trace import TracedStep


# The optimizer sees each task as one call, so that a stage is optimized once for all of
# its micro-batches. They are inlined before the step runs, and a control edge from a
# call then waits for its effects only, not for its results: tasks of a device would run
# side by side, and their activations exist at the same time. So what waits for a task
# waits for each of its results.

_RESOURCE = tf.resource.as_datatype_enum


def keep_in_order(graph_def: Any) -> None:
    """Lets calls of stages be inlined, and what follows them wait, in place."""
    for function in graph_def.library.function:
        if is_task(function):
            # What the user marked himself stays marked.
            function.attr.pop("_noinline", None)
    tasks = {node.name: node for node in graph_def.node if calls_task(node)}
    if not tasks:
        return
    waiting: dict[str, list[Any]] = {name: [] for name in tasks}
    for node in graph_def.node:
        for name in dict.fromkeys(_waits_for(node, tasks)):
            waiting[name].append(node)
    for name, nodes in waiting.items():
        ended = _add_end(graph_def, tasks[name])
        for node in nodes:
            texts = [text for text in node.input if text != f"^{name}"]
            del node.input[:]
            node.input.extend([*texts, f"^{ended}"])


def is_task(function: Any) -> bool:
    """Whether a ``FunctionDef`` is a task, or called by one."""
    return FUNCTION_PREFIX in function.signature.name


def calls_task(node: Any) -> bool:
    """Whether a node calls a task."""
    return any(FUNCTION_PREFIX in name for name in called_names(node))


def _waits_for(node: Any, tasks: dict[str, Any]) -> Iterator[str]:
    """The tasks that a node has to wait for.

    The optimizer drops a control edge that a data edge implies. It implies no more than
    that one result when both are inlined.
    """
    for text in node.input:
        name = producer(text)
        if name not in tasks:
            continue
        is_next = node.name in tasks and node.device == tasks[name].device
        if text.startswith("^") or is_next:
            yield name


def _add_end(graph_def: Any, task: Any) -> str:
    """Adds a node that runs after all results of a task, and returns its name.

    It takes them as inputs: without any it would be the same node for all replicas, and
    each of their tasks would wait for those of the others.
    """
    end = graph_def.node.add(
        name=f"{task.name}{TASK_END}", op="IdentityN", device=task.device
    )
    for port, dtype in enumerate(task.attr["Tout"].list.type):
        if dtype != _RESOURCE:
            end.attr["T"].list.type.append(dtype)
            end.input.append(f"{task.name}:{port}" if port else task.name)
    return str(end.name)


_LOWERING = "_lower_using_switch_merge"
_CONTROL_FLOW_OPS = frozenset(
    {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"}
)


def optimize(
    traced: TracedStep, topology: Topology, rewriters: Rewriters | None = None
) -> Any:
    """Cuts a traced graph at its collectives and optimizes it for its devices."""
    check_python(traced.python_lines, topology)
    used = Rewriters() if rewriters is None else rewriters
    return used.run(lambda: _optimized(traced, topology, used))


def _optimized(traced: TracedStep, topology: Topology, rewriters: Rewriters) -> Any:
    graph_def = cut(traced)
    keep = [
        *traced.output_names,
        *traced.control_output_names,
        *(name for c in traced.collectives for name in c.read),
        *traced.required,
        *traced.owned,
    ]
    if not keep:
        return graph_def
    _mark_lowering(graph_def, is_lowered=False)
    keep_waits_of_calls(graph_def)
    stamps = Stamps(graph_def, topology)
    has_cpu_rules = stamps.is_on_cpus and _tf_dispatch.is_optimizer_on()
    if not stamps.is_on_cpus:  # what a node without a device is taken for
        stamps.add(graph_def)
    if has_cpu_rules:
        rewriters.attempt(
            RESAMPLED, lambda: resampled.fuse(graph_def, traced.resampled)
        )
    optimized = _tf_dispatch.optimize_graph(
        graph_def,
        keep,
        devices=stamps.kinds(),
        has_device_rules=stamps.is_on_cpus or stamps.is_complete,
    )
    stamps.remove(optimized)
    if has_cpu_rules:
        rewriters.attempt(PRODUCTS, lambda: products.multiply(optimized, keep))
    _mark_lowering(optimized, is_lowered=True)
    keep_in_order(optimized)
    keep_effects_in_order(optimized)
    return optimized


def cut(traced: TracedStep) -> Any:
    """Turns the markers of collectives into placeholders, so that nothing is shared."""
    graph_def = _tf_compat.GraphDef()
    graph_def.CopyFrom(traced.graph_def)
    results = {
        marker: (collective.dtypes[position], collective.result_shape(position))
        for collective in traced.collectives
        for position, marker in enumerate(collective.markers)
    }
    for node in graph_def.node:
        if node.name not in results:
            continue
        dtype, shape = results[node.name]
        node.op = "Placeholder"
        del node.input[:]
        node.attr.clear()
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(shape.as_proto())
    return graph_def


def own_functions(graph_def: Any, owner: str) -> None:
    """Gives every function of a graph a name that no other graph uses.

    Colocation groups are removed, because replicas that run one function are on many
    devices. The optimizer changes functions and gives the changed ones the same names
    in every graph, but TensorFlow has one table, by name, for the functions of all
    graphs.
    """
    names = {
        function.signature.name: f"{function.signature.name}_of_{owner}"
        for function in graph_def.library.function
    }
    for node in itertools.chain.from_iterable(node_lists(graph_def)):
        # Nodes that the optimizer moved here from other functions name groups that all
        # replicas would share; devices say where nodes are.
        node.attr.pop("_class", None)
        node.op = names.get(node.op, node.op)
        for called in called_functions(node):
            called.name = names.get(called.name, called.name)
    for function in graph_def.library.function:
        function.signature.name = names[function.signature.name]


def _mark_lowering(graph_def: Any, *, is_lowered: bool) -> None:
    """Says whether loops and branches may become cyclic graphs.

    They may when the function runs, but not before it is copied: a loop that is one
    node can be renamed like any other.
    """
    for node in itertools.chain.from_iterable(node_lists(graph_def)):
        if node.op in _CONTROL_FLOW_OPS:
            node.attr[_LOWERING].b = is_lowered
