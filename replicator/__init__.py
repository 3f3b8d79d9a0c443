"""TF-Replicator on TensorFlow 2: write one device's step, run it on many.

Buchlovsky et al. 2019, "TF-Replicator: Distributed Machine Learning for Researchers".
Names are loaded on first use, so that planning tools can read ``replicator.catalog``
without importing TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replicator.audit import InputAudit
    from replicator.backends.asynchronous import MultiWorkerAsyncReplicator
    from replicator.backends.horovod import HorovodReplicator
    from replicator.backends.in_graph import InGraphReplicator, MultiGpuReplicator
    from replicator.backends.multi_worker import MultiWorkerReplicator
    from replicator.backends.multi_worker_in_graph import MultiWorkerInGraphReplicator
    from replicator.backends.parameter_server import ParameterServerReplicator
    from replicator.backends.single import SingleDeviceReplicator
    from replicator.backends.strategy import MirroredReplicator, StrategyReplicator
    from replicator.backends.tf_multi_worker import MultiWorkerMirroredReplicator
    from replicator.backends.tpu import TpuReplicator
    from replicator.base import Replicator
    from replicator.checkpoint.manager import CheckpointManager, RestoredCheckpoint
    from replicator.collectives import (
        all_gather,
        all_max,
        all_mean,
        all_min,
        all_reduce,
        all_sum,
        broadcast,
    )
    from replicator.context import ReplicaContext, get_replica_context
    from replicator.data_options import default_data_options
    from replicator.determinism import set_determinism
    from replicator.errors import ReplicatorError
    from replicator.input_context import InputContext, InputReplicationMode
    from replicator.inputs import InputIterator
    from replicator.layers import CrossReplicaBatchNormalization
    from replicator.logical import logical_device
    from replicator.mapping import map_gather, map_reduce
    from replicator.optimizer import ReplicatedOptimizer
    from replicator.per_replica import PerReplica
    from replicator.registry import backend_names, create
    from replicator.sharded_embedding import ShardedEmbedding
    from replicator.uneven import mean_over_examples, split_global_batches

_HOMES = {
    "CheckpointManager": "checkpoint.manager",
    "CrossReplicaBatchNormalization": "layers",
    "HorovodReplicator": "backends.horovod",
    "InGraphReplicator": "backends.in_graph",
    "InputAudit": "audit",
    "InputContext": "input_context",
    "InputIterator": "inputs",
    "InputReplicationMode": "input_context",
    "MirroredReplicator": "backends.strategy",
    "MultiGpuReplicator": "backends.in_graph",
    "MultiWorkerAsyncReplicator": "backends.asynchronous",
    "MultiWorkerInGraphReplicator": "backends.multi_worker_in_graph",
    "MultiWorkerMirroredReplicator": "backends.tf_multi_worker",
    "MultiWorkerReplicator": "backends.multi_worker",
    "ParameterServerReplicator": "backends.parameter_server",
    "PerReplica": "per_replica",
    "ReplicaContext": "context",
    "ReplicatedOptimizer": "optimizer",
    "Replicator": "base",
    "ReplicatorError": "errors",
    "RestoredCheckpoint": "checkpoint.manager",
    "ShardedEmbedding": "sharded_embedding",
    "SingleDeviceReplicator": "backends.single",
    "StrategyReplicator": "backends.strategy",
    "TpuReplicator": "backends.tpu",
    "all_gather": "collectives",
    "all_max": "collectives",
    "all_mean": "collectives",
    "all_min": "collectives",
    "all_reduce": "collectives",
    "all_sum": "collectives",
    "backend_names": "registry",
    "broadcast": "collectives",
    "create": "registry",
    "default_data_options": "data_options",
    "get_replica_context": "context",
    "logical_device": "logical",
    "map_gather": "mapping",
    "map_reduce": "mapping",
    "mean_over_examples": "uneven",
    "set_determinism": "determinism",
    "split_global_batches": "uneven",
}

__all__ = (
    "CheckpointManager",
    "CrossReplicaBatchNormalization",
    "HorovodReplicator",
    "InGraphReplicator",
    "InputAudit",
    "InputContext",
    "InputIterator",
    "InputReplicationMode",
    "MirroredReplicator",
    "MultiGpuReplicator",
    "MultiWorkerAsyncReplicator",
    "MultiWorkerInGraphReplicator",
    "MultiWorkerMirroredReplicator",
    "MultiWorkerReplicator",
    "ParameterServerReplicator",
    "PerReplica",
    "ReplicaContext",
    "ReplicatedOptimizer",
    "Replicator",
    "ReplicatorError",
    "RestoredCheckpoint",
    "ShardedEmbedding",
    "SingleDeviceReplicator",
    "StrategyReplicator",
    "TpuReplicator",
    "all_gather",
    "all_max",
    "all_mean",
    "all_min",
    "all_reduce",
    "all_sum",
    "backend_names",
    "broadcast",
    "create",
    "default_data_options",
    "get_replica_context",
    "logical_device",
    "map_gather",
    "map_reduce",
    "mean_over_examples",
    "set_determinism",
    "split_global_batches",
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'replicator' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"replicator.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
