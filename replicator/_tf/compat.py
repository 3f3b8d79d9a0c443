"""Private names of variables, optimizers, graphs and the runtime."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import threading
import weakref
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any, TypeVar

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2
from tensorflow.python.distribute.coordinator import (
    cluster_coordinator as coordinator_lib,
)
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import lift_to_graph
from tensorflow.python.framework import config as framework_config
from tensorflow.python.framework import func_graph, op_def_registry, ops, tensor_util
from tensorflow.python.framework.func_graph import func_graph_from_py_func
from tensorflow.python.ops import resource_variable_ops, summary_ops_v2
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)
from tensorflow.python.trackable import base as trackable

Scope = contextlib.AbstractContextManager[None]

_T = TypeVar("_T", bound="Hashable")

GraphDef = graph_pb2.GraphDef
FunctionDef = function_pb2.FunctionDef
NodeDef = node_def_pb2.NodeDef

# The graph that ops are being added to (test_conformance).
current_graph = tf.compat.v1.get_default_graph
# The definition of a built-in op, or None (test_replicate).
op_def = op_def_registry.get
# Lets TensorFlow choose faster kernels again (test_inputs).
disable_op_determinism = framework_config.disable_op_determinism
# Waits until eager ops on remote devices are done (test_remote_replicas). Ops without
# outputs, such as an assignment, are sent without waiting, and a function that runs
# there afterwards would not wait for them either.
wait_for_remote_ops = eager_context.async_wait
# The value of a tensor that the graph alone determines, or None: TensorFlow folds more
# than ``tf.get_static_value`` does (test_fit).
constant_of = tensor_util.try_evaluate_constant

_STRATEGY_COUNT = itertools.count(1)
_CONTROL_FLOW_GRAPHS = (CondBranchFuncGraph, WhileBodyFuncGraph, WhileCondFuncGraph)


def reachable(
    roots: Iterable[_T], following: Callable[[_T], Iterable[_T]]
) -> Iterator[_T]:
    """Roots, and all that follows them, each once, the nearest first."""
    reached = dict.fromkeys(roots)
    pending = list(reached)
    for one in pending:
        yield one
        for other in following(one):
            if other not in reached:
                reached[other] = None
                pending.append(other)


def depends_on(tensor: tf.Tensor, operations: Collection[Any]) -> bool:
    """Whether a tensor is computed from one of some operations of its graph."""
    before = reachable([tensor.op], lambda operation: (x.op for x in operation.inputs))
    return any(operation in operations for operation in before)


def handle(variable: Any) -> tf.Tensor:
    """The resource handle of a Keras or TensorFlow variable (test_fused)."""
    # Raw ops do not record in the graph which variable a handle belongs to; this does.
    inner = unwrap(variable)
    graph = current_graph()
    if graph.building_function:
        graph.watch_variable(inner)
    return inner.handle


def unwrap(variable: Any) -> Any:
    """The ``tf.Variable`` inside a Keras variable, or the variable itself."""
    inner = getattr(variable, "_value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def strategy_copies(variable: Any) -> tuple[str, int] | None:
    """A stock strategy and its copies of a variable, if several (test_api)."""
    container = getattr(variable.handle, "_distributed_container", None)
    whole = None if container is None else container()
    num_copies = 0 if whole is None else len(whole.values)
    if whole is None or num_copies < 2:  # noqa: PLR2004 (one is an ordinary variable)
        return None
    return type(whole.distribute_strategy).__name__, num_copies


def track_variable(optimizer: Any, variable: Any) -> None:
    """Makes a variable part of a Keras optimizer's state (test_wrapper)."""
    optimizer._track_variable(variable)  # noqa: SLF001


def slot_index(optimizer: Any, variable: Any) -> Any:
    """Where a Keras optimizer keeps the slots of a variable, or None (test_fused)."""
    known = optimizer._trainable_variables_indices  # noqa: SLF001
    return known.get(optimizer._var_key(variable))  # noqa: SLF001


def adam_slots(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """First and second moments of Keras Adam (test_fused)."""
    return optimizer._momentums, optimizer._velocities  # noqa: SLF001


def schedule_of(optimizer: Any) -> Any | None:
    """The schedule of a Keras optimizer's learning rate, if any (test_steps)."""
    rate = optimizer._learning_rate  # noqa: SLF001
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    return rate if is_schedule else None


def is_optimizer(value: Any) -> bool:
    """Whether an object is a Keras optimizer (test_manager)."""
    return hasattr(value, "iterations") and hasattr(value, "apply")


def optimized_variables(optimizer: Any) -> list[Any] | None:
    """Weights that a built optimizer updates, in order (test_manager)."""
    return list(optimizer._trainable_variables) if optimizer.built else None  # noqa: SLF001


def is_variable(value: Any) -> bool:
    """Whether an object is a TensorFlow or Keras variable (test_manager)."""
    return isinstance(unwrap(value), tf.Variable)


def is_trackable(value: Any) -> bool:
    """Whether ``tf.train.Checkpoint`` can save an object (test_manager)."""
    return isinstance(value, trackable.Trackable)


def has_state(value: Any) -> bool:
    """Whether a checkpoint saves something of an object itself (test_state)."""
    return bool(tf.__internal__.tracking.saveable_objects_from_trackable(value))


def global_seed_generator() -> Any:
    """What unseeded random functions of Keras draw from, if any (test_steps)."""
    return global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)


def drawing_from(find: Callable[..., Any]) -> Scope:
    """Lets a function find it, given Keras' own, in this thread (test_steps)."""
    return replaced(seed_generator, "global_seed_generator", find, in_all_graphs=True)


def is_control_flow_graph(graph: Any) -> bool:
    """Whether a graph is a branch or loop body (test_conformance)."""
    return isinstance(graph, _CONTROL_FLOW_GRAPHS)


def current_function() -> Any:
    """The current graph, or the one whose branch or loop body it is."""
    graph = current_graph()
    while isinstance(graph, _CONTROL_FLOW_GRAPHS):
        graph = graph.outer_graph
    return graph


def captured(placeholder: tf.Tensor) -> Any:
    """What a placeholder of a graph stands for outside; None for an argument."""
    graph = placeholder.graph
    pairs = graph.captures if graph.building_function else ()
    return next((outer for outer, inner in pairs if inner is placeholder), None)


def called_graph(op: Any) -> Any:
    """The graph of the function that an op calls, or None (test_positions)."""
    function = op.graph._get_function(op.get_attr("f").name)  # noqa: SLF001
    return None if function is None else function.graph


def trace_to_graph(
    function: Callable[..., Any],
    specs: Sequence[Any],
    writes_summaries: Callable[[], Any],
) -> Any:
    """Traces a Python function once, without AutoGraph (test_state, test_summaries)."""
    # ``tf.function`` traces a second time when the first trace made variables, and then
    # converts the graph to a function that is never called. The condition adds to what
    # ``tf.summary.record_if`` says, which is the user's.
    state = summary_ops_v2._summary_state  # noqa: SLF001
    with altered(state, is_recording_distribution_strategy=writes_summaries):
        return func_graph_from_py_func("replica", function, tuple(specs), {})


def dismantle(graph: Any, graph_def: Any) -> None:
    """Frees a function graph that was read and is not called (test_leaks)."""
    # Python alone does not find its cycles, and TensorFlow keeps the gradient of every
    # ``tf.custom_gradient`` in a table, under the name that its node has.
    registry = ops.gradient_registry._registry  # noqa: SLF001
    for node in graph_def.node:
        if "_gradient_op_type" in node.attr:
            name = node.attr["_gradient_op_type"].s.decode()
            if name.startswith("CustomGradient-"):
                registry.pop(name, None)
    func_graph.dismantle_func_graph(graph)


def mirrored_strategy(devices: Sequence[str]) -> Any:
    """A stock strategy whose collectives cannot meet those of another one."""
    # Two strategies of one process use the same group keys, so the second one fails
    # with shape mismatches against the first (every test makes its own).
    own = {"_collective_key_base": 1000 * next(_STRATEGY_COUNT)}
    kind: Any = type("MirroredStrategy", (tf.distribute.MirroredStrategy,), own)
    return kind(list(devices))


def keep_functions(owner: object, functions: Sequence[Any]) -> None:
    """Registers functions as long as an object lives (test_leaks)."""
    # TensorFlow itself keeps them, and the kernels made for them, as long as the
    # process.
    for function in functions:
        eager_context.context().add_function_def(function)
    names = [function.signature.name for function in functions]
    weakref.finalize(owner, _remove_functions, names).atexit = False


def _remove_functions(names: Sequence[str]) -> None:
    context = eager_context.context()
    for name in filter(context.has_function, names):
        context.remove_function(name)


def function_def(name: str) -> Any:
    """A copy of a registered function (test_run)."""
    return eager_context.context().get_function_def(name)


def run_independently(op: Any) -> None:
    """Makes an op of a step wait for its inputs only (test_faults)."""
    # Ops with side effects that name no resource otherwise run in the order of the
    # trace.
    current_graph().experimental_acd_manager.run_independently(op)


def live_variables() -> list[str]:
    """Names of the variables that this process holds (test_remote_faults)."""
    kind = resource_variable_ops.BaseResourceVariable
    return [thing.name for thing in gc.get_objects() if isinstance(thing, kind)]


def create_on_worker(
    coordinator: Any, worker: int, function: Callable[..., Any], args: Sequence[Any]
) -> Any:
    """Gives a function to one worker of a coordinator (test_faults)."""
    # It runs on the coordinator's thread for the worker, after all that was given
    # before. Should the worker be lost and return, everything that this returned and
    # that still exists is run again, in the order in which it was given.
    target = coordinator._cluster.workers[worker]  # noqa: SLF001
    with target._resource_tracking_lock:  # noqa: SLF001
        kept = target._resource_remote_value_refs  # noqa: SLF001
        kept[:] = [reference for reference in kept if reference() is not None]
    # What the coordinator takes for values that only one worker has.
    values = [coordinator_lib.PerWorkerValues((arg,) * (worker + 1)) for arg in args]
    return target.create_resource(function, args=tuple(values))


def remote_state(value: Any, timeout_sec: float) -> tuple[str, BaseException | None]:
    """Waits a while for a function on a worker (test_faults)."""
    if not value._status_available_event.wait(timeout_sec):  # noqa: SLF001
        return "pending", None
    if value._status is coordinator_lib.RemoteValueStatus.ABORTED:  # noqa: SLF001
        return "lost", None
    return "ready", value._error  # noqa: SLF001


def failed_server(error: BaseException) -> int | None:
    """Which parameter server an error of a step comes from, or None (test_faults)."""
    if not coordinator_lib._is_ps_failure(error):  # noqa: SLF001
        return None
    failed = coordinator_lib._extract_failed_ps_instances(str(error))  # noqa: SLF001
    return min(failed, default=0)


# A trace makes hundreds of thousands of objects that stay, and as many allocations
# start hundreds of collections, which walk over all of them. Without these the first
# step of a small ResNet on 8 replicas takes 0.92 of the time. At the end all objects
# become the oldest generation's: as young ones they would start a full collection at
# once (0.3 s of a first step of 3.5 s, and it finds 1 % of them).
# To count what you have frozen takes 0.1 s for a million objects, so whether there are
# any is asked again only after a full collection, which takes longer than the count.
_FROZEN = {"is": False, "after": -1}


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collects nothing in the meantime; it stays off if the user has it off."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            full_collections = gc.get_stats()[2]["collections"]
            if not _FROZEN["is"] or _FROZEN["after"] != full_collections:
                has_frozen = gc.get_freeze_count() > 0
                _FROZEN.update({"is": has_frozen, "after": full_collections})
            if not _FROZEN["is"]:  # unfreezing would undo the user's freezing
                gc.freeze()
                gc.unfreeze()
            gc.enable()


_OF_THREAD = threading.local()


@contextlib.contextmanager
def altered(owner: Any, **values: Any) -> Iterator[None]:
    """Gives one object attributes of its own meanwhile, such as methods."""
    before = {name: own for name, own in vars(owner).items() if name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        for name in values:
            del vars(owner)[name]
        vars(owner).update(before)


def replaced(
    owner: Any, name: str, function: Callable[..., Any], *, in_all_graphs: bool = False
) -> Scope:
    """Has calls go elsewhere, in this thread and the current graph (test_verify)."""
    # Branches and bodies of loops belong to the graph; functions that TensorFlow keeps
    # for later do not.
    _install(owner, name)
    graph = None if in_all_graphs else current_graph()
    return altered(_OF_THREAD, **{f"{id(owner)} {name}": (graph, function)})


@functools.cache  # once per process: what is replaced answers as before elsewhere
def _install(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def called(*args: Any, **options: Any) -> Any:
        function_here = vars(_OF_THREAD).get(f"{id(owner)} {name}")
        if function_here is None:
            return original(*args, **options)
        own, function = function_here
        if own is not None and current_function() is not own:
            return original(*args, **options)
        return function(original, *args, **options)

    setattr(owner, name, called)


def outside_of_step(value: Any) -> Any:
    """The initial value of a variable for its creation outside (test_steps)."""
    if not tf.is_symbolic_tensor(value):
        return value

    def lifted() -> Any:
        return lift_to_graph.lift_to_graph([value], current_graph())[value]

    try:
        with tf.init_scope():
            return tf.function(lifted, autograph=False)()
    except lift_to_graph.UnliftableError:
        return None


def make_variable(**options: Any) -> tf.Variable:
    """Makes a variable without the creators that are in place (test_steps)."""
    return resource_variable_ops.default_variable_creator_v2(None, **options)
