"""Actionable errors: what was passed, why it is wrong, and what to do."""

from __future__ import annotations

from typing import Any


class ReplicatorError(Exception):
    """Base of every error that this package raises on purpose.

    Not a ``ValueError``: AutoGraph keeps the type of an error from a traced step only
    where the constructor is that of ``Exception``.
    """


class CollectiveContextError(ReplicatorError):
    """A collective was called outside a replica."""


class RunContextError(ReplicatorError):
    """``run`` or an input iterator was called where a graph is being traced."""


class StrategyError(ReplicatorError):
    """A use of ``tf.distribute`` that a replicator's strategy does not support."""


class CollectiveControlFlowError(ReplicatorError):
    """A collective is inside control flow, where replicas cannot be linked."""


class CreateVariableInStepError(ReplicatorError):
    """A step function created a variable; create variables in ``context()``."""


class CaptureError(ReplicatorError):
    """A step closes over something that replicas can neither share nor copy."""


class RecomputationError(ReplicatorError):
    """A function that the backward pass runs again draws other random numbers."""


class UnsynchronisedUpdateError(ReplicatorError):
    """Replicas would train apart, or by values that only one of them knows."""


class ReplicasOutOfSyncError(ReplicatorError):
    """Copies of a mirrored variable differ."""


class ReplicaTimeoutError(ReplicatorError):
    """The replicas of one process did not end a step in time."""


class OptimizerOptionError(ReplicatorError):
    """An option of ``wrap_optimizer`` is invalid, or conflicts with another."""


class SplitBatchError(ReplicatorError):
    """A global batch cannot be divided: its size, or pipelines in different orders."""


class InputAuditError(ReplicatorError):
    """An epoch does not feed every example exactly once.

    ``audit`` has the counts if the epoch could be read to its end.
    """

    def __init__(self, message: str, audit: Any = None) -> None:
        super().__init__(message)
        self.audit = audit


class ElasticError(ReplicatorError):
    """An elastic job is described wrongly, or cannot go on."""


class CheckpointError(ReplicatorError):
    """A checkpoint could not be written or read."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint belongs to another model or to incompatible inputs."""


class RemoteInputError(ReplicatorError):
    """An input pipeline calls Python code, which runs in the client's process only."""


class UnknownBackendError(ReplicatorError):
    """No backend has this name."""


class DeviceError(ReplicatorError):
    """A device does not exist, or there are fewer devices than replicas."""


class LayoutError(ReplicatorError):
    """A mesh, a layout or names of dimensions that make no sense together."""


class PipelineError(ReplicatorError):
    """A pipeline whose stages, micro-batches or schedule cannot train as one model."""


class StaticShapeError(ReplicatorError):
    """A compiled step cannot take batches without static shapes."""


class RetraceLimitError(ReplicatorError):
    """A new step function object is passed in every call, so each call retraces."""


class RetraceWarning(UserWarning):
    """Several step function objects of one function were each traced."""


class InputModeError(ReplicatorError):
    """An input replication mode that the backend does not support."""


class OtherReplicatorError(ReplicatorError):
    """Inputs, values, an optimizer or a variable of another replicator or strategy."""


class MeasuringControlError(ReplicatorError):
    """Training with a replicator whose replicas do not communicate."""


class CollectiveTypeError(ReplicatorError):
    """A type that cannot be sent between worker processes."""


class ClusterError(ReplicatorError):
    """A failure of the processes of a cluster."""


class ClusterConfigError(ClusterError):
    """The cluster description (``TF_CONFIG``) is missing, incomplete or wrong."""


class PortInUseError(ClusterError):
    """Another process listens at this process's address."""


class UnreachableError(ClusterError):
    """Processes of the cluster do not respond."""


class LocalClusterError(ClusterError):
    """Processes that were started on this machine failed or did not exit."""


class WorkerLostError(ClusterError):
    """A worker exited, or did not reach a step before the timeout."""


class DisagreementError(ClusterError):
    """Workers are about to run different programs."""


class ServerLostError(ClusterError):
    """A parameter server does not respond; the variables on it are lost."""
