"""Optimize: TensorFlow's graph optimizer over the one traced graph.

Optimizing the linked graph would repeat the same work per replica. Instead, the traced
graph is cut at its collectives, stamped with the device types of the replicas,
optimized once, and then replicated.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator._tf import dispatch as _tf_dispatch
from replicator._tf.compat import GraphDef, reachable
from replicator.core import context, devices
from replicator.core.context import FUNCTION_PREFIX, TASK_END
from replicator.engine import body, convolutions
from replicator.engine.trace import PRODUCTS, RESAMPLED, attempt, check_python

if TYPE_CHECKING:
    from replicator.engine.trace import TracedStep


# TensorFlow's graph optimizer takes a node without a device for one on the CPU. On a
# host with oneDNN it would then fuse batch norm and ReLU of a step that runs on GPUs,
# whose kernels refuse that in training. So the nodes of such a step say while it is
# optimized on which type of device they will run, and afterwards again only what the
# step requested: replicas of one graph run on many devices.
#
# A stamp stands for one request of the step, not for a device of a machine: two logical
# devices stay apart even where a replica has both on one GPU.


class ReplicaDevices:
    """Translates the devices that a step requests into those of each replica."""

    def __init__(self, topology: devices.Topology) -> None:
        self._topology = topology
        self._specs = [
            tf.DeviceSpec.from_string(device) for device in topology.replica_devices
        ]

    def device(self, requested: str, replica: int) -> str:
        index = context.logical_index(requested)
        if index is not None:
            return self._topology.devices[replica][index]
        mine = self._specs[replica]
        if requested:
            spec = tf.DeviceSpec.from_string(requested)
            if spec.job not in (None, mine.job):
                return requested  # a parameter server, which is not a replica's device
            if spec.device_type not in (None, mine.device_type):
                # Not the replica's own index: GPU:1 does not imply that CPU:1 exists.
                device_index = spec.device_index or 0
                other = mine.replace(
                    device_type=spec.device_type, device_index=device_index
                )
                return str(other.to_string())
        return self._topology.devices[replica][0]


# What the optimizer calls the host of a GPU when it moves small computations there.
_HOST = "/device:CPU:0"
_PREFIX = "/job:localhost/replica:0/task:0/device:"


class _Stamp(NamedTuple):
    """A device name, and what it stands for."""

    name: str  # A full device name.
    kind: str  # Its type.
    request: str  # The device that the step requested.
    # The device that a node of a function requested: none where it runs wherever the
    # function is called.
    in_function: str


class Stamps:
    """The stamps of one graph: the type of the device of every node."""

    def __init__(self, graph_def: Any, topology: devices.Topology) -> None:
        self._devices = ReplicaDevices(topology)
        self._replicas = range(topology.num_local_replicas)
        self._stamps: dict[tuple[str, bool], _Stamp | None] = {}
        self._counts: collections.Counter[str] = collections.Counter()
        self._library = {f.signature.name: f for f in graph_def.library.function}
        primary = self._stamp("")
        if primary is not None and primary.kind != "CPU":
            self._stamp(_HOST)  # the first CPU, as the optimizer expects
        # By function, the stamps of all nodes that call it.
        self._of_functions: dict[str, set[_Stamp | None]] = {}
        if self._library:
            self._find_functions(graph_def)
        used = [stamp for _, stamp in self._stamped(graph_def)]  # makes them all
        # Whether every node can get one. None is given where replicas of several device
        # types run one node, and to functions that are called on several devices.
        self.is_complete = all(used)
        # Whether all nodes run on CPUs of all replicas.
        self.is_on_cpus = all(
            stamp is not None and stamp.kind == "CPU" for stamp in self._stamps.values()
        )
        self._by_name = {s.name: s for s in self._stamps.values() if s is not None}
        # The device types of all stamps, by the stamp's name.
        self.kinds = {name: stamp.kind for name, stamp in self._by_name.items()}

    def add(self, graph_def: Any) -> None:
        """Gives nodes their stamps, in place; those that have none stay as they are."""
        for node, stamp in self._stamped(graph_def):
            if stamp is not None:
                node.device = stamp.name

    def remove(self, graph_def: Any) -> None:
        """Puts what the step requested in place of stamps, also of new nodes."""
        own, *functions = body.node_lists(graph_def)
        for node in own:
            if node.device in self._by_name:
                node.device = self._by_name[node.device].request
        for node in itertools.chain.from_iterable(functions):
            if node.device in self._by_name:
                node.device = self._by_name[node.device].in_function

    def _stamped(self, graph_def: Any) -> Iterator[tuple[Any, _Stamp | None]]:
        for node in graph_def.node:
            yield node, self._stamp(node.device)
        for function in graph_def.library.function:
            stamps = self._of_functions.get(function.signature.name, set())
            default = next(iter(stamps)) if len(stamps) == 1 else None
            for node in function.node_def if stamps else ():
                yield node, self._in_function(node.device, default)

    def _stamp(self, request: str, *, is_own: bool = False) -> _Stamp | None:
        """The stamp of a request, or None where replicas differ in type."""
        key = request, is_own
        if key not in self._stamps:
            of_replicas = (self._devices.device(request, r) for r in self._replicas)
            kinds = set(map(devices.device_type, of_replicas))
            self._stamps[key] = None
            if len(kinds) == 1:
                kind = kinds.pop()
                name = f"{_PREFIX}{kind}:{self._counts[kind]}"
                own = request if is_own else ""
                self._stamps[key] = _Stamp(name, kind, request, own)
                self._counts[kind] += 1
        return self._stamps[key]

    def _in_function(self, request: str, default: _Stamp | None) -> _Stamp | None:
        return self._stamp(request, is_own=True) if request else default

    def _find_functions(self, graph_def: Any) -> None:
        def called(node: Any, stamp: _Stamp | None) -> list[tuple[str, _Stamp | None]]:
            return [(f, stamp) for f in self._library.keys() & body.called_names(node)]

        def inner(call: tuple[str, _Stamp | None]) -> Iterator[tuple[str, Any]]:
            for node in self._library[call[0]].node_def:
                yield from called(node, self._in_function(node.device, call[1]))

        outer = (called(node, self._stamp(node.device)) for node in graph_def.node)
        for name, stamp in reachable(itertools.chain.from_iterable(outer), inner):
            self._of_functions.setdefault(name, set()).add(stamp)


# The optimizer sees each task as one call, so that a stage is optimized once for all of
# its micro-batches. They are inlined before the step runs, and a control edge from a
# call then waits for its effects only, not for its results: tasks of a device would run
# side by side, and their activations exist at the same time. So what waits for a task
# waits for each of its results.

_RESOURCE = tf.resource.as_datatype_enum


def keep_in_order(graph_def: Any) -> None:
    """Lets calls of stages be inlined, and what follows them wait, in place."""
    for function in graph_def.library.function:
        if FUNCTION_PREFIX in function.signature.name:
            # What the user marked himself stays marked.
            function.attr.pop("_noinline", None)
    tasks = {
        node.name: node
        for node in graph_def.node
        if any(FUNCTION_PREFIX in name for name in body.called_names(node))
    }
    waiting: dict[str, list[Any]] = {name: [] for name in tasks}
    for node in graph_def.node if tasks else ():
        for name in dict.fromkeys(map(body.producer, node.input)):
            # The optimizer drops a control edge that a data edge implies. It implies no
            # more than that one result when both are inlined.
            is_task = name in tasks and node.name in tasks
            is_next = is_task and node.device == tasks[name].device
            if name in tasks and (is_next or f"^{name}" in node.input):
                waiting[name].append(node)
    for name, nodes in waiting.items():
        ended = _add_end(graph_def, tasks[name])
        for node in nodes:
            texts = [text for text in node.input if text != f"^{name}"]
            node.input[:] = [*texts, f"^{ended}"]


def _add_end(graph_def: Any, task: Any) -> str:
    """Adds a node that runs after all results of a task, and returns its name."""
    # It takes them as inputs: without any it would be the same node for all replicas,
    # and each of their tasks would wait for those of the others.
    end = graph_def.node.add(
        name=f"{task.name}{TASK_END}", op="IdentityN", device=task.device
    )
    for port, dtype in enumerate(task.attr["Tout"].list.type):
        if dtype != _RESOURCE:
            end.attr["T"].list.type.append(dtype)
            end.input.append(f"{task.name}:{port}" if port else task.name)
    return str(end.name)


_LOWERING = "_lower_using_switch_merge"


def optimize(
    traced: TracedStep, topology: devices.Topology, notes: list[str] | None = None
) -> Any:
    """Cuts a traced graph at its collectives and optimizes it for its devices."""
    if traced.python_lines:
        check_python(traced.python_lines, topology)
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
    notes = [] if notes is None else notes
    # Whether there are loops, branches or calls, of functions that may be known to the
    # runtime only.
    has_calls = any(map(body.called_functions, graph_def.node))
    has_calls |= bool(graph_def.library.function)
    if has_calls:
        _mark_lowering(graph_def, is_lowered=False)
        body.keep_waits_of_calls(graph_def)
    stamps = Stamps(graph_def, topology)
    options = tf.config.optimizer.get_experimental_options()
    is_optimizer_on = not options.get("disable_meta_optimizer")
    has_cpu_rules = stamps.is_on_cpus and is_optimizer_on
    if not stamps.is_on_cpus:  # what a node without a device is taken for
        stamps.add(graph_def)
    if has_cpu_rules and traced.resampled:
        resampled = traced.resampled
        graph_def = _rewritten(
            RESAMPLED, notes, graph_def, lambda it: convolutions.fuse(it, resampled)
        )
    optimized = _tf_dispatch.optimize_graph(
        graph_def,
        keep,
        devices=stamps.kinds,
        has_device_rules=stamps.is_on_cpus or stamps.is_complete,
    )
    if not stamps.is_on_cpus:
        stamps.remove(optimized)
    if has_cpu_rules and traced.has_products:
        optimized = _rewritten(
            PRODUCTS, notes, optimized, lambda it: convolutions.multiply(it, keep)
        )
    if has_calls:
        _mark_lowering(optimized, is_lowered=True)
        keep_in_order(optimized)
        body.keep_effects_in_order(optimized)
    return optimized


def _rewritten(
    name: str, notes: list[str], graph_def: Any, rewrite: Callable[[Any], Any]
) -> Any:
    """A copy of a graph that a rewriter changed, or the graph where that failed."""
    changed = GraphDef()
    changed.CopyFrom(graph_def)
    return attempt(name, notes, lambda: rewrite(changed), graph_def)


def cut(traced: TracedStep) -> Any:
    """Turns the markers of collectives into placeholders, so that nothing is shared."""
    graph_def = GraphDef()
    graph_def.CopyFrom(traced.graph_def)
    markers = {marker for call in traced.collectives for marker in call.markers}
    for node in graph_def.node:
        if node.name in markers:
            node.op = "Placeholder"
            del node.input[:]
            for name in {*node.attr} - {"dtype", "shape"}:
                del node.attr[name]
    return graph_def


def own_functions(graph_def: Any, owner: str) -> None:
    """Gives every function of a graph a name that no other graph uses."""
    # Colocation groups are removed, because replicas that run one function are on many
    # devices. The optimizer changes functions and gives the changed ones the same names
    # in every graph, but TensorFlow has one table, by name, for the functions of all
    # graphs.
    names = {
        function.signature.name: f"{function.signature.name}_of_{owner}"
        for function in graph_def.library.function
    }
    for node in itertools.chain.from_iterable(body.node_lists(graph_def)):
        # Nodes that the optimizer moved here from other functions name groups that all
        # replicas would share; devices say where nodes are.
        node.attr.pop("_class", None)
        node.op = names.get(node.op, node.op)
        for called in body.called_functions(node):
            called.name = names.get(called.name, called.name)
    for function in graph_def.library.function:
        function.signature.name = names[function.signature.name]


def _mark_lowering(graph_def: Any, *, is_lowered: bool) -> None:
    """Says whether loops and branches may become cyclic graphs."""
    # They may when the function runs, but not before it is copied: a loop that is one
    # node can be renamed like any other.
    for node in itertools.chain.from_iterable(body.node_lists(graph_def)):
        if node.op in body.CONTROL_FLOW:
            node.attr[_LOWERING].b = is_lowered
