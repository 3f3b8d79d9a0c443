"""Tasks: the calls of the stages of a pipeline, in the optimized graph of a step.

The optimizer sees each task as one call, so that a stage is optimized once for all of
its micro-batches. They are inlined before the step runs, and a control edge from a call
then waits for its effects only, not for its results: tasks of a device would run side
by side, and their activations exist at the same time. So what waits for a task waits
for each of its results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.engine.graph.body import producer
from replicator.engine.graph.stamps import called_functions
from replicator.step.logical import END, FUNCTION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    names = [node.op, *(called.name for called in called_functions(node))]
    return any(FUNCTION_PREFIX in name for name in names)


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
        name=f"{task.name}{END}", op="IdentityN", device=task.device
    )
    for port, dtype in enumerate(task.attr["Tout"].list.type):
        if dtype != _RESOURCE:
            end.attr["T"].list.type.append(dtype)
            end.input.append(f"{task.name}:{port}" if port else task.name)
    return str(end.name)
