"""TensorFlow's graph optimizer over one graph, with the settings of the user.

The optimizer is given the devices that the graph is for, instead of looking for those
of this process: replicas may be on GPUs of other processes, or on fewer GPUs than the
driver shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.protobuf import (
    config_pb2,
    device_properties_pb2,
    meta_graph_pb2,
    rewriter_config_pb2,
)
from tensorflow.python.eager import context as eager_context
from tensorflow.python.grappler import cluster as cluster_lib
from tensorflow.python.grappler import tf_optimizer

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

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
    """Runs TensorFlow's graph optimizer once over a graph (test_grappler).

    What the user set by ``tf.config.optimizer`` holds (test_optimizer_settings).
    """
    config = _config()
    rewrite = config.graph_options.rewrite_options
    if rewrite.disable_meta_optimizer:
        return graph_def
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


def is_on() -> bool:
    """Whether the user has left the optimizer on."""
    return not _config().graph_options.rewrite_options.disable_meta_optimizer


def settings() -> Hashable:
    """What the user set by ``tf.config.optimizer``, for comparison only.

    Read in every call of ``run``, so it makes no protocol buffers
    (test_optimizer_settings).
    """
    context = eager_context.context()
    return (
        context._optimizer_jit,  # noqa: SLF001
        *context._optimizer_experimental_options.items(),  # noqa: SLF001
    )


def jit_level() -> int:
    """How much TensorFlow compiles by itself (test_optimizer_settings)."""
    options = eager_context.context().config.graph_options.optimizer_options
    return int(options.global_jit_level)


def _config() -> Any:
    """The user's settings, and what the engine needs."""
    config = config_pb2.ConfigProto()
    config.graph_options.CopyFrom(eager_context.context().config.graph_options)
    rewrite = config.graph_options.rewrite_options
    if not rewrite.min_graph_nodes:
        rewrite.min_graph_nodes = -1  # even the smallest graph
    rewrite.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    # It removes arguments of branches after the control edges that they stood for, and
    # so the order of effects (test_ordering); of ResNet-50 it removes nothing.
    rewrite.disable_tfg_optimizer = True
    return config


def _properties(name: str, kind: str) -> Any:
    found = device_properties_pb2.NamedDevice(name=name)
    found.properties.type = kind
    # Estimates of costs need some, and the rules that run here do not use them.
    found.properties.num_cores, found.properties.frequency = 1, 1_000
    if kind == "GPU":
        # It decides which layout of convolutions is fast, by their data type.
        architecture = ".".join(map(str, _compute_capability()))
        found.properties.environment["architecture"] = architecture
    return found


def _compute_capability() -> tuple[int, ...]:
    """That of this process's oldest GPU."""
    get_details = tf.config.experimental.get_device_details
    found = [
        get_details(gpu).get("compute_capability")
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    known = [tuple(capability) for capability in found if capability is not None]
    return min(known, default=_UNKNOWN_GPU)
