"""Private interfaces of TensorFlow that start functions.

``tf.function`` inspects its arguments in every call to find the matching trace. The
program cache of this library has already inspected the arguments of a program, so its
function is called by name.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import (
    config_pb2,
    device_properties_pb2,
    meta_graph_pb2,
    rewriter_config_pb2,
)
from tensorflow.python.eager import cancellation, execute
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function.atomic_function import (
    InterpolateRuntimeError,
)
from tensorflow.python.framework import kernels as tf_kernels
from tensorflow.python.grappler import cluster as cluster_lib
from tensorflow.python.grappler import tf_optimizer
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from replicator._tf import compat

# The optimizer is given the devices that the graph is for, instead of looking for those
# of this process: replicas may be on GPUs of other processes, or on fewer GPUs than the
# driver shows.

# Of a GPU in another process, which does not say what it is: it computes in bfloat16.
_UNKNOWN_GPU = (8, 0)
_OFF = rewriter_config_pb2.RewriterConfig.OFF


def optimize_graph(
    graph_def: Any,
    keep: Sequence[str],
    *,
    devices: Mapping[str, str],
    has_device_rules: bool = True,
) -> Any:
    """Runs TensorFlow's graph optimizer once over a graph (test_grappler)."""
    # What the user set by ``tf.config.optimizer`` holds (test_optimize).
    config = config_pb2.ConfigProto()
    config.graph_options.CopyFrom(eager_context.context().config.graph_options)
    rewrite = config.graph_options.rewrite_options
    if rewrite.disable_meta_optimizer:
        return graph_def
    if not rewrite.min_graph_nodes:
        rewrite.min_graph_nodes = -1  # even the smallest graph
    rewrite.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    # It removes arguments of branches after the control edges that they stood for, and
    # so the order of effects (test_ordering); of ResNet-50 it removes nothing.
    rewrite.disable_tfg_optimizer = True
    if not has_device_rules:
        rewrite.remapping = rewrite.layout_optimizer = _OFF
    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph_def)
    meta_graph.collection_def["train_op"].node_list.value.extend(keep)
    cluster = cluster_lib.Cluster(
        devices=[_properties(name, kind) for name, kind in devices.items()]
    )
    return tf_optimizer.OptimizeGraph(
        config, meta_graph, verbose=False, cluster=cluster
    )


def optimizer_settings() -> Hashable:
    """What the user set by ``tf.config.optimizer``, for comparison only."""
    # Read in every call of ``run``, so it makes no protocol buffers
    # (test_optimize).
    context = eager_context.context()
    return (
        context._optimizer_jit,  # noqa: SLF001
        *context._optimizer_experimental_options.items(),  # noqa: SLF001
    )


def _properties(name: str, kind: str) -> Any:
    device = device_properties_pb2.NamedDevice(name=name)
    device.properties.type = kind
    # Estimates of costs need some, and the rules that run here do not use them.
    device.properties.num_cores, device.properties.frequency = 1, 1_000
    if kind == "GPU":
        # It decides which layout of convolutions is fast, by their data type: of this
        # process's oldest GPU.
        get_details = tf.config.experimental.get_device_details
        details = map(get_details, tf.config.list_physical_devices("GPU"))
        known = [each.get("compute_capability") for each in details]
        oldest = min(map(tuple, filter(None, known)), default=_UNKNOWN_GPU)
        device.properties.environment["architecture"] = ".".join(map(str, oldest))
    return device


# All calls must have arguments of the structure, shapes and types of the first, or of
# ``specs``. Not for use in graphs, nor for gradients through it.
class Dispatch:
    """A function that is traced by its first call and started by all others."""

    def __init__(
        self,
        function: Callable[[Any], Sequence[tf.Tensor]],
        *,
        autograph: bool = False,
        is_optimized: bool = True,
        specs: Any = None,
    ) -> None:
        """Prepares a function (test_dispatch)."""
        self._function = tf.function(function, autograph=autograph)
        self._is_optimized = is_optimized
        self._specs = specs
        self._traced: Any = None
        self.name = ""
        self._num_outputs = 0
        self._captures: list[Any] | None = None  # None: other ones in every call
        self._attrs: dict[bool, tuple[Any, ...]] = {}

    def __call__(self, source: Any) -> list[tf.Tensor]:
        """Starts the function; returns its outputs, which may not be ready yet."""
        if self._traced is None:
            with compat.paused():
                self._trace(source)
        if _recorder is not None:
            _recorder.append(self)
        inputs: list[Any] = []
        if source is not None:
            inputs = tf.nest.flatten(source, expand_composites=True)
        captures = self._captures
        if captures is None:
            captures = self._traced.captured_inputs
        context = eager_context.context()
        arguments = (
            self.name,
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

    def num_nodes(self) -> int:
        """Returns how many nodes its graph has before TensorFlow optimizes it."""
        # Those of a function are counted in each call of it, and of all branches; those
        # of a loop once. It has been started (test_dispatch).

        @functools.cache
        def count(name: str) -> int:
            nodes = compat.function_def(name).node_def
            attrs = [attr for node in nodes for attr in node.attr.values()]
            called = (f.name for attr in attrs for f in (attr.func, *attr.list.func))
            return len(nodes) + sum(map(count, filter(None, called)))

        return count(self.name)

    def _trace(self, source: Any) -> None:
        specs = source if self._specs is None else self._specs
        traced = self._function.get_concrete_function(specs)
        self.name = traced._inference_function.name.decode()  # noqa: SLF001
        self._num_outputs = len(traced.outputs)
        # Stock strategies number their collectives again in every call.
        if not traced.graph.deferred_external_captures:
            self._captures = list(traced.captured_inputs)
        for is_soft in (False, True):
            options = (
                eager_context.context().function_call_options
                if self._is_optimized
                else _unoptimized_call(is_soft, optimizer_settings())
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


def call_function(
    name: str, args: Sequence[Any], output_dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """Emits a call of a registered function in the graph (test_conformance)."""
    is_soft = tf.config.get_soft_device_placement()
    options = _unoptimized_call(is_soft, optimizer_settings())
    outputs = tf.raw_ops.StatefulPartitionedCall(
        args=list(args),
        Tout=list(output_dtypes),
        f=name,
        config_proto=options.config_proto_serialized,
    )
    return list(outputs) if isinstance(outputs, (list, tuple)) else []


@contextlib.contextmanager
def graph_optimizer_off() -> Iterator[None]:
    """Calls functions unchanged, without optimizing their graph again."""
    # The function's graph was optimized before it was replicated; doing it again costs
    # time that grows with the number of replicas (test_optimize).
    context = eager_context.context()
    before = context.function_call_options
    is_soft = tf.config.get_soft_device_placement()
    context.function_call_options = _unoptimized_call(is_soft, optimizer_settings())
    try:
        yield
    finally:
        context.function_call_options = before


@functools.cache
def _unoptimized_call(is_soft: bool, settings: Hashable) -> Any:
    """How a function runs whose graph was optimized before; asked by every dispatch."""
    del settings  # they decide the level below
    options = eager_context.context().config.graph_options.optimizer_options
    config = config_pb2.ConfigProto(allow_soft_placement=is_soft)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    # Clusters are compiled when a function starts, not when its graph is optimized.
    level = int(options.global_jit_level)
    config.graph_options.optimizer_options.global_jit_level = level
    return eager_context.FunctionCallOptions(config_proto=config)


def count_functions() -> int:
    """Returns how many functions this process has given to the runtime so far."""
    # Tracing adds some, running a traced program does not (test_dispatch).
    return len(eager_context.context().list_function_names())


@functools.cache
def has_kernel(op: str, device_type: str, dtype: tf.DType) -> bool:
    """Whether an op of one data type can run on a type of device (test_grappler)."""
    # The last one serves every type of device that has none of its own.
    kernels = [
        {each.name: each.allowed_values.list.type for each in kernel.constraint}
        for kernel in tf_kernels.get_registered_kernels_for_op(op).kernel
        if kernel.device_type in (device_type, "DEFAULT") and not kernel.label
    ]
    name = "T" if any("T" in allowed for allowed in kernels) else "dtype"
    wanted = dtype.as_datatype_enum
    # Type attributes without a constraint may be any.
    return any(wanted in allowed.get(name, [wanted]) for allowed in kernels)


_EVERY_OP = 3  # level 2 has only those that TensorFlow takes for expensive


@contextlib.contextmanager
def profiled() -> Iterator[list[Any]]:
    """Profiles this process; its list has the planes afterwards (test_leaks)."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=_EVERY_OP, python_tracer_level=0
    )
    planes: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            tf.profiler.experimental.start(folder, options=options)
        except tf.errors.AlreadyExistsError:
            raise RuntimeError(
                "timeline() found that another profile is running in this process; end "
                "that one first"
            ) from None
        try:
            yield planes
        finally:
            tf.profiler.experimental.stop()
            for path in pathlib.Path(folder).rglob("*.xplane.pb"):
                planes.extend(xplane_pb2.XSpace.FromString(path.read_bytes()).planes)
