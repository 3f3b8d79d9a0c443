# Public names, listed once: lazy_loader reads this file and loads each on first use.
from .backends import backend_names as backend_names
from .backends import create as create
from .backends.asynchronous import (
    MultiWorkerAsyncReplicator as MultiWorkerAsyncReplicator,
)
from .backends.asynchronous import (
    ParameterServerReplicator as ParameterServerReplicator,
)
from .backends.base import Replicator as Replicator
from .backends.dtensor import DTensorReplicator as DTensorReplicator
from .backends.dtensor import named as named
from .backends.in_graph import InGraphReplicator as InGraphReplicator
from .backends.in_graph import MultiGpuReplicator as MultiGpuReplicator
from .backends.multi_worker import (
    MultiWorkerBetweenGraphReplicator as MultiWorkerBetweenGraphReplicator,
)
from .backends.multi_worker import (
    MultiWorkerInGraphReplicator as MultiWorkerInGraphReplicator,
)
from .backends.multi_worker import MultiWorkerReplicator as MultiWorkerReplicator
from .backends.single import SingleDeviceReplicator as SingleDeviceReplicator
from .backends.strategy import MirroredReplicator as MirroredReplicator
from .backends.strategy import (
    MultiWorkerMirroredReplicator as MultiWorkerMirroredReplicator,
)
from .backends.strategy import StrategyReplicator as StrategyReplicator
from .backends.tpu import TpuReplicator as TpuReplicator
from .checkpoint.manager import CheckpointManager as CheckpointManager
from .checkpoint.manager import RestoredCheckpoint as RestoredCheckpoint
from .collectives.calls import all_gather as all_gather
from .collectives.calls import all_to_all as all_to_all
from .collectives.calls import broadcast as broadcast
from .collectives.calls import map_gather as map_gather
from .collectives.calls import map_reduce as map_reduce
from .collectives.calls import permute as permute
from .collectives.calls import reduce_scatter as reduce_scatter
from .collectives.layers import (
    CrossReplicaBatchNormalization as CrossReplicaBatchNormalization,
)
from .collectives.layers import ShardedEmbedding as ShardedEmbedding
from .collectives.reductions import all_max as all_max
from .collectives.reductions import all_mean as all_mean
from .collectives.reductions import all_min as all_min
from .collectives.reductions import all_reduce as all_reduce
from .collectives.reductions import all_sum as all_sum
from .collectives.reductions import mean_over_examples as mean_over_examples
from .collectives.reductions import split_global_batches as split_global_batches
from .core.context import ReplicaContext as ReplicaContext
from .core.context import get_replica_context as get_replica_context
from .core.context import logical_device as logical_device
from .core.step import PerReplica as PerReplica
from .elastic.state import ElasticState as ElasticState
from .errors import CaptureError as CaptureError
from .errors import CheckpointError as CheckpointError
from .errors import CheckpointMismatchError as CheckpointMismatchError
from .errors import ClusterConfigError as ClusterConfigError
from .errors import ClusterError as ClusterError
from .errors import CollectiveContextError as CollectiveContextError
from .errors import CollectiveControlFlowError as CollectiveControlFlowError
from .errors import CollectiveTypeError as CollectiveTypeError
from .errors import CreateVariableInStepError as CreateVariableInStepError
from .errors import DeviceError as DeviceError
from .errors import DisagreementError as DisagreementError
from .errors import ElasticError as ElasticError
from .errors import InputAuditError as InputAuditError
from .errors import InputModeError as InputModeError
from .errors import LayoutError as LayoutError
from .errors import LocalClusterError as LocalClusterError
from .errors import MeasuringControlError as MeasuringControlError
from .errors import OptimizerOptionError as OptimizerOptionError
from .errors import OtherReplicatorError as OtherReplicatorError
from .errors import PipelineError as PipelineError
from .errors import PortInUseError as PortInUseError
from .errors import RecomputationError as RecomputationError
from .errors import RemoteInputError as RemoteInputError
from .errors import ReplicasOutOfSyncError as ReplicasOutOfSyncError
from .errors import ReplicaTimeoutError as ReplicaTimeoutError
from .errors import ReplicatorError as ReplicatorError
from .errors import RetraceLimitError as RetraceLimitError
from .errors import RetraceWarning as RetraceWarning
from .errors import RunContextError as RunContextError
from .errors import ServerLostError as ServerLostError
from .errors import SplitBatchError as SplitBatchError
from .errors import StaticShapeError as StaticShapeError
from .errors import StrategyError as StrategyError
from .errors import UnknownBackendError as UnknownBackendError
from .errors import UnreachableError as UnreachableError
from .errors import UnsynchronisedUpdateError as UnsynchronisedUpdateError
from .errors import WorkerLostError as WorkerLostError
from .inputs.audit import InputAudit as InputAudit
from .inputs.context import InputContext as InputContext
from .inputs.context import InputReplicationMode as InputReplicationMode
from .inputs.context import default_data_options as default_data_options
from .inputs.context import set_determinism as set_determinism
from .inputs.iterator import InputIterator as InputIterator
from .optimizer.wrapper import ReplicatedOptimizer as ReplicatedOptimizer
from .pipeline.pipeline import Pipeline as Pipeline
from .pipeline.pipeline import balance_stages as balance_stages
from .pipeline.pipeline import make_stages as make_stages
