"""Private interfaces of TensorFlow that start functions.

``tf.function`` inspects its arguments in every call to find the matching trace. The
program cache of this library has already inspected the arguments of a program, so its
function is called by name.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import cancellation, execute
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function.atomic_function import (
    InterpolateRuntimeError,
)
from tensorflow.python.profiler import trace as profiler_trace

from replicator._tf import collector, compat, grappler

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence


class Dispatch:
    """A function that is traced by its first call and started by all others.

    All calls must have arguments of the structure, shapes and types of the first, or of
    ``specs``. Not
    for use in graphs, nor for gradients through it.
    """

    def __init__(
        self,
        function: Callable[[Any], Sequence[tf.Tensor]],
        *,
        autograph: bool = False,
        is_optimized: bool = True,
        specs: Any = None,
    ) -> None:
        """Prepares a function (test_dispatch)."""
        self._function = function
        self._autograph = autograph
        self._is_optimized = is_optimized
        self._specs = specs
        self._traced: Any = None
        self._name = ""
        self._num_outputs = 0
        self._captures: list[Any] | None = None  # None: other ones in every call
        self._attrs: dict[bool, tuple[Any, ...]] = {}

    def __call__(self, source: Any) -> list[tf.Tensor]:
        """Starts the function; returns its outputs, which may not be ready yet."""
        if self._traced is None:
            with collector.paused():
                self._trace(source)
        if _recorder is not None:
            _recorder.append(self)
        inputs = _tensors_of(source)
        captures = self._captures
        if captures is None:
            captures = self._traced.captured_inputs
        context = eager_context.context()
        arguments = (
            self._name,
            self._num_outputs,
            [*inputs, *captures],
            self._attrs[context.soft_device_placement],
            context,
        )
        manager = cancellation.context()
        try:
            # Without outputs, TensorFlow returns no list.
            if manager is None:
                return execute.execute(*arguments) or []
            return execute.execute_with_cancellation(*arguments, manager) or []
        except tf.errors.OpError:
            # Says in the message which line of the step failed.
            with InterpolateRuntimeError(self._traced._inference_function):  # noqa: SLF001
                raise

    @property
    def name(self) -> str:
        """The name of the function that runs; it has been started."""
        return self._name

    def num_nodes(self) -> int:
        """Returns how many nodes its graph has, before TensorFlow optimizes and places.

        Those of a function are counted in each call of it, and of all branches; those
        of a loop once. It has been started (test_dispatch).
        """
        return _num_nodes(self._name, {})

    def _trace(self, source: Any) -> None:
        function = tf.function(self._function, autograph=self._autograph)
        specs = source if self._specs is None else self._specs
        traced = function.get_concrete_function(specs)
        self._name = traced._inference_function.name.decode()  # noqa: SLF001
        self._num_outputs = len(traced.outputs)
        # Stock strategies number their collectives again in every call.
        if not traced.graph.deferred_external_captures:
            self._captures = list(traced.captured_inputs)
        for is_soft in (False, True):
            options = (
                eager_context.context().function_call_options
                if self._is_optimized
                else _unoptimized_call(is_soft)
            )
            self._attrs[is_soft] = tuple(
                itertools.chain.from_iterable(options.as_attrs().items())
            )
        self._traced = traced


_recorder: list[Dispatch] | None = None


@contextlib.contextmanager
def recorded() -> Iterator[list[Dispatch]]:
    """Yields a list that receives what is started within the block, in order."""
    global _recorder  # noqa: PLW0603 - asked in each start, so nothing may look it up
    started: list[Dispatch] = []
    _recorder = started
    try:
        yield started
    finally:
        _recorder = None


def _num_nodes(name: str, known: dict[str, int]) -> int:
    """Nodes of a function and of those that it calls; ``known`` by name, added to."""
    if name not in known:
        known[name] = 0
        for node in compat.function_def(name).node_def:
            known[name] += 1
            for attr in node.attr.values():
                called = [attr.func, *attr.list.func]
                known[name] += sum(_num_nodes(f.name, known) for f in called if f.name)
    return known[name]


def _tensors_of(source: Any) -> list[Any]:
    """The tensors of a nest, those of iterators and composite tensors included."""
    if source is None:
        return []
    return list(tf.nest.flatten(source, expand_composites=True))


def profiled(name: str, step: int) -> contextlib.AbstractContextManager[Any]:
    """A range of a profile, where a profiler runs (test_timeline)."""
    if profiler_trace.enabled():
        return profiler_trace.Trace(name, step_num=step, _r=1)
    return _NOTHING


_NOTHING = contextlib.nullcontext()


def call_function(
    name: str, args: Sequence[Any], output_dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """Emits a call of a registered function in the graph (test_conformance)."""
    is_soft = tf.config.get_soft_device_placement()
    outputs = tf.raw_ops.StatefulPartitionedCall(
        args=list(args),
        Tout=list(output_dtypes),
        f=name,
        config_proto=unoptimized_config(is_soft).SerializeToString(),
    )
    return list(outputs) if isinstance(outputs, (list, tuple)) else []


@contextlib.contextmanager
def graph_optimizer_off() -> Iterator[None]:
    """Calls functions unchanged, without optimizing their graph again.

    The function's graph was optimized before it was replicated; doing it again costs
    time that grows with the number of replicas (test_optimize).
    """
    context = eager_context.context()
    before = context.function_call_options
    is_soft = tf.config.get_soft_device_placement()
    context.function_call_options = _unoptimized_call(is_soft)
    try:
        yield
    finally:
        context.function_call_options = before


def unoptimized_config(is_soft: bool) -> Any:
    """How a function runs whose graph was optimized before."""
    return _make_config(is_soft, grappler.jit_level())


def _unoptimized_call(is_soft: bool) -> Any:
    return _make_call(is_soft, grappler.settings())


@functools.cache
def _make_config(is_soft: bool, jit_level: int) -> Any:
    config = config_pb2.ConfigProto(allow_soft_placement=is_soft)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    # Clusters are compiled when a function starts, not when its graph is optimized.
    config.graph_options.optimizer_options.global_jit_level = jit_level
    return config


@functools.cache
def _make_call(is_soft: bool, settings: Hashable) -> Any:
    """Made once per setting: every step's dispatch uses it."""
    del settings  # what decides the configuration
    return eager_context.FunctionCallOptions(config_proto=unoptimized_config(is_soft))


def count_functions() -> int:
    """Returns how many functions this process has given to the runtime so far.

    Tracing adds some, running a traced program does not (test_dispatch).
    """
    return len(eager_context.context().list_function_names())
