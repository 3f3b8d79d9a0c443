"""Private interfaces of ``tf.distribute`` that a strategy of one's own needs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from tensorflow.python import pywrap_tfe
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.distribute import values as values_lib
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import atomic_function, autograph_util
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.parallel_for import pfor

from replicator._tf import compat, dispatch

# A value that differs between replicas, made of a tuple (test_run).
PerReplica = values_lib.PerReplica

_KERAS_TRAINER = TensorFlowTrainer.__module__
_TF_KERAS_TRAINER = "tf_keras.src.engine.training"
# Attribute of strategies whose models Keras builds without a batch.
_BUILDS_FROM_SPECS = "_replicator_builds_from_specs"


def replica_mode(replica_context: Any) -> compat.Scope:
    """Makes a replica context the current one of this graph (test_run)."""
    # Unlike ``with replica_context``, this leaves alone which replica writes summaries.
    return _mode(distribute_lib._InReplicaThreadMode(replica_context))  # noqa: SLF001


def cross_replica_mode(strategy: Any) -> compat.Scope:
    """Leaves the replica context, as ``merge_call`` does (test_run)."""
    return _mode(distribute_lib._CrossReplicaThreadMode(strategy))  # noqa: SLF001


def strategy_of(optimizer: Any) -> compat.Scope:
    """Where a Keras optimizer can make its state (test_sharded_update)."""
    # That is under the strategy of its creation only, and ``tf.init_scope`` does not
    # leave that of a step.
    default = distribute_lib._get_default_replica_mode()  # noqa: SLF001
    own = getattr(optimizer, "_distribution_strategy", None)
    return _mode(default) if own is default.strategy else contextlib.nullcontext()


@contextlib.contextmanager
def _mode(mode: Any) -> Iterator[None]:
    distribute_lib._push_per_thread_mode(mode)  # noqa: SLF001
    try:
        yield
    finally:
        distribute_lib._pop_per_thread_mode()  # noqa: SLF001


def keras_callers() -> Iterator[Any]:
    """What of Keras is called in this thread, the innermost first (test_run)."""
    scopes = global_state.get_global_attribute("name_scope_stack")
    return (s.caller for s in reversed(scopes or []) if s.caller is not None)


def outside_stateless_scopes() -> compat.Scope:
    """Lets variables of Keras be made in a scope without (test_kept_by_keras)."""
    state = global_state.GLOBAL_STATE_TRACKER
    return compat.altered(state, stateless_scope=None)


def loss_scaler_of(merge_fn: Any) -> Any:
    """The ``LossScaleOptimizer`` of Keras that passes a ``merge_call``, or None."""
    # It asks there whether gradients are finite, before they are summed (test_fit).
    name = getattr(merge_fn, "__qualname__", "")
    if not name.startswith("LossScaleOptimizer._tf_apply.<locals>."):
        return None
    return inspect.getclosurevars(merge_fn).nonlocals["self"]


def arguments_of_fit() -> dict[str, Any]:
    """``self`` and what else the ``fit`` got that prepares its data (test_verify)."""
    frame = inspect.currentframe()
    while frame is not None:
        of_fit = frame.f_code.co_name == "fit"
        if of_fit and frame.f_globals["__name__"] == _KERAS_TRAINER:
            return frame.f_locals
        frame = frame.f_back
    return {}


def builds_from_specs(strategy: Any) -> None:
    """Keeps ``fit`` from reading a batch for shapes only (test_sources)."""
    _replace_symbolic_build()
    setattr(strategy, _BUILDS_FROM_SPECS, True)


@functools.cache  # once per process: other strategies build as before
def _replace_symbolic_build() -> None:
    following = TensorFlowTrainer._maybe_symbolic_build  # noqa: SLF001

    @functools.wraps(following)
    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None and hasattr(
            self.distribute_strategy, _BUILDS_FROM_SPECS
        ):
            # Shapes and types are all that Keras asks a batch for.
            spec = iterator._distributed_dataset.element_spec  # noqa: SLF001
            iterator, data_batch = None, tf.nest.map_structure(_spec_of_part, spec)
        following(self, iterator, data_batch)

    TensorFlowTrainer._maybe_symbolic_build = build  # noqa: SLF001


def _spec_of_part(spec: Any) -> Any:
    """The type of a component on one replica; None if it has no examples."""
    if isinstance(spec, values_lib.PerReplicaSpec):
        spec = spec._value_specs[0]  # noqa: SLF001
    return spec if hasattr(spec, "shape") else None


class Runner(NamedTuple):
    """What of Keras or tf_keras runs a function by ``strategy.run``."""

    model: Any  # The model whose ``fit`` or ``evaluate`` it is, or None.
    predicts: bool  # Whether it is ``predict`` (test_fit_on_workers).


def runner_of(function: Any) -> Runner:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, keras.Model):
        return Runner(owner, predicts=False)
    module = getattr(function, "__module__", "")
    if module != _TF_KERAS_TRAINER:
        return Runner(None, predicts=module == _KERAS_TRAINER)
    # Its steps are functions inside those that ``fit`` traces (test_communities).
    if "make_predict_function" in function.__qualname__:
        return Runner(None, predicts=True)
    return Runner(inspect.getclosurevars(function).nonlocals.get("model"), False)


# A function whose control flow AutoGraph converts (test_run).
converted: Callable[..., Any] = autograph_util.py_func_from_autograph


def converted_as_caller(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that AutoGraph converts if it converts its caller (test_run)."""
    autograph = tf.__internal__.autograph
    result: Callable[..., Any] = autograph.tf_convert(
        function, autograph.control_status_ctx(), convert_by_default=False
    )
    return result


def converted_inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that AutoGraph converts as a callee (test_steps)."""
    # Unlike ``converted``, this leaves alone what AutoGraph does not convert by itself,
    # such as layers of Keras.
    context = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED)
    result: Callable[..., Any] = tf.__internal__.autograph.tf_convert(function, context)
    return result


@contextlib.contextmanager
def outside_graphs() -> Iterator[None]:
    """Leaves all graphs, as ``tf.init_scope`` does, to trace another one (test_run)."""
    # Gradient tapes go on recording, as in a trace that is not within another one.
    with tf.init_scope():
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
        try:
            yield
        finally:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def is_compiled_graph() -> bool:
    """Whether XLA compiles the graph that is being built (test_fit)."""
    graph = compat.current_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


MIXED = "Mixing different tf.distribute.Strategy objects"
"""In an error of TensorFlow or Keras: two strategies meet (test_fit)."""


def mixed_variable(error: BaseException) -> tuple[str, str, int] | None:
    """What a step read or wrote if strategies met in a variable (test_api)."""
    seen: BaseException | None = error
    while seen is not None and MIXED in str(error):
        for frame, _ in traceback.walk_tb(seen.__traceback__):
            owner = frame.f_locals.get("self")
            if isinstance(owner, values_lib.DistributedVariable):
                name = type(owner.distribute_strategy).__name__
                return owner.name, name, len(owner.values)
        seen = seen.__context__  # AutoGraph raises another one
    return None


# What ``tf.random.set_seed`` got, or None (test_sources).
global_seed = eager_context.global_seed

GRADIENT_SCOPE = "gradient_tape/"
"""The name scope in which a tape adds to a traced graph."""


def marker(value: tf.Tensor, shape: tf.TensorShape, name: str) -> tf.Tensor:
    """A node that passes a value on without telling what it is (test_mapping)."""
    # Its type keeps TensorFlow from inferring the value when it traces, and is one for
    # which ``vectorize_markers`` can say what a vectorized loop makes of it.
    # Forward mode cannot read the attributes of this op type, so it gets the gradient.
    with record.stop_recording():
        result = tf.raw_ops.PlaceholderWithDefault(input=value, shape=shape, name=name)
    record.record_operation("Identity", [result], [value], lambda gradient: [gradient])
    return result


def call_with_gradient(
    function: Callable[..., Any],
    tensors: Sequence[tf.Tensor],
    gradient: Callable[..., Any],
) -> list[tf.Tensor]:
    """Calls a ``tf.custom_gradient`` function for tapes and forward accumulators."""
    # TensorFlow's decorator ends in an identity that forward accumulators see first,
    # and whose derivative is not that of the function (test_collectives).
    with record.stop_recording():
        results = list(function(*tensors))
    record.record_operation("Collective", results, list(tensors), gradient)
    return results


def vectorize_markers(
    convert: Callable[[str, Callable[[str], Any]], tuple[tf.Tensor, bool] | None],
) -> None:
    """Tells vectorized loops what becomes of a marker (test_mapping)."""
    # Otherwise a loop copies, under a new name, what is the same in all iterations.
    pfor.force_stateful_ops.add("PlaceholderWithDefault")

    @pfor.RegisterPFor("PlaceholderWithDefault")
    def convert_marker(pfor_input: Any) -> Any:
        def converted(node: str) -> tuple[tf.Tensor, bool]:
            # Of the identity that is the operand, no tape knows.
            (tensor,) = pfor_input.op.graph.get_operation_by_name(node).inputs
            value = pfor_input.pfor._convert_helper(tensor)  # noqa: SLF001
            return value.t, value.is_stacked

        result = convert(pfor_input.op.name, converted)
        value, is_stacked = result or pfor_input.input(0)[:2]
        return pfor.wrap(value, is_stacked)


# ``tf.cond`` becomes a ``Switch`` for every argument, also where its branch is not
# taken, and the op behind it takes variables of one device only. Here the call itself
# waits for one side of a ``Switch`` (test_outside_writes).

_COUNTER = itertools.count()


def call_if(
    condition: tf.Tensor, traced: Any, args: Sequence[tf.Tensor], device: str
) -> Any:
    """Emits a call under a condition; returns what has to live as long."""
    called = traced._inference_function.name.decode()  # noqa: SLF001
    ends = []

    def branch(condition: tf.Tensor, *args: tf.Tensor) -> None:
        with tf.device(device):
            off, on = tf.raw_ops.Switch(data=condition, pred=condition)
            # An edge has no side: what follows an identity follows its side only.
            off, on = tf.identity(off), tf.identity(on)
        # The call runs on the devices of its arguments.
        with tf.device(None), tf.control_dependencies([on]):
            dispatch.call_function(called, args, [])
            call = compat.current_graph().get_operations()[-1]
        # Something that exists on one side only, for the merge.
        with tf.device(device):
            sides = []
            for end in (call, off):
                with tf.control_dependencies([end]):
                    sides.append(tf.constant(0))
            ends.append(tf.raw_ops.Merge(inputs=sides).output.op)

    specs = [tf.TensorSpec([], tf.bool), *(tf.TensorSpec(None, x.dtype) for x in args)]
    graph = func_graph.func_graph_from_py_func(
        "branch", branch, tuple(specs), {}, add_control_dependencies=False
    )
    # What follows must wait for both sides, and run after either.
    graph.control_outputs.extend(ends)
    name = f"replicator_branch_{next(_COUNTER)}"
    kept = traced, atomic_function.from_func_graph(name, graph, {})
    func_graph.dismantle_func_graph(graph)
    dispatch.call_function(name, [condition, *args], [])
    return kept
