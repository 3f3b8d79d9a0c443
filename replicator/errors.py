"""Errors that teach: what was passed, why it is wrong, what to do.

ReplicatorError
+-- CollectiveContextError     a collective called outside a replica
+-- RunContextError            run() called inside a tf.function or a step
+-- CollectiveControlFlowError a collective inside tf.cond, tf.while_loop, tf.function
+-- CreateVariableInStepError  a variable made while a step is traced
+-- UnsynchronisedUpdateError  a trainable variable updated with per-replica values
+-- ReplicasOutOfSyncError     copies of a mirrored variable differ
+-- OptimizerOptionError       an option of wrap_optimizer that cannot be used
+-- SplitBatchError            a global batch that replicas cannot share evenly
+-- InputAuditError            an epoch that misses or repeats examples
+-- CheckpointError            a checkpoint that cannot be written or read
|   +-- CheckpointMismatchError  the checkpoint of another model
+-- RemoteInputError           an input pipeline that cannot run on another worker
+-- UnknownBackendError        a backend name that is not registered
+-- BackendNotInstalledError   a backend whose library cannot be imported
+-- DeviceError                devices that do not exist, or too few of them
+-- StaticShapeError           batches of unknown shape for a compiled step
+-- RetraceLimitError          a new step function object in every call
+-- InputModeError             an input mode that the backend cannot serve
+-- CollectiveTypeError        a type that cannot cross between worker processes
+-- ClusterError               processes that do not work together
    +-- ClusterConfigError     TF_CONFIG is missing, partial or wrong
    +-- PortInUseError         another process listens at this one's address
    +-- UnreachableError       processes that do not answer
    +-- LocalClusterError      processes on this machine that fail or do not end
    +-- WorkerLostError        a worker ended, or came too late to a step
    +-- DisagreementError      workers are about to run different programs
    +-- ServerLostError        a parameter server that does not answer

RetraceWarning                 another step function object in each of several calls
"""

from __future__ import annotations

from typing import Any


class ReplicatorError(Exception):
    """Base of every error that this package raises on purpose.

    Not a ``ValueError``: AutoGraph keeps the type of an error from a traced step only
    where the constructor is that of ``Exception``.
    """


class CollectiveContextError(ReplicatorError):
    """A collective was called where no replica is running."""


class RunContextError(ReplicatorError):
    """``run`` was called where a graph is being traced."""


class CollectiveControlFlowError(ReplicatorError):
    """A collective stands where it cannot be linked to the other replicas."""


class CreateVariableInStepError(ReplicatorError):
    """A step function made a variable; variables belong in ``context()``."""


class UnsynchronisedUpdateError(ReplicatorError):
    """A trainable variable would drift apart between replicas."""


class ReplicasOutOfSyncError(ReplicatorError):
    """Copies of a mirrored variable differ."""


class OptimizerOptionError(ReplicatorError):
    """An option of ``wrap_optimizer`` is wrong, or does not go with another."""


class SplitBatchError(ReplicatorError):
    """A global batch does not divide by the number of replicas."""


class InputAuditError(ReplicatorError):
    """An epoch does not feed every example exactly once.

    ``audit``, where the epoch could be read to its end, has the counts.
    """

    def __init__(self, message: str, audit: Any = None) -> None:
        super().__init__(message)
        self.audit = audit


class CheckpointError(ReplicatorError):
    """A checkpoint could not be written or read."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint belongs to another model, or to inputs that do not fit."""


class RemoteInputError(ReplicatorError):
    """An input pipeline calls Python, which only the client's process can run."""


class UnknownBackendError(ReplicatorError):
    """No backend has this name."""


class BackendNotInstalledError(ReplicatorError):
    """The library that a backend runs on cannot be imported."""


class DeviceError(ReplicatorError):
    """A device does not exist, or there are fewer devices than replicas."""


class StaticShapeError(ReplicatorError):
    """A compiled step cannot take batches whose shapes are not known in advance."""


class RetraceLimitError(ReplicatorError):
    """A fresh step function object is passed on every call, so each call retraces."""


class RetraceWarning(UserWarning):
    """Several step function objects of one function were traced, each anew."""


class InputModeError(ReplicatorError):
    """An input replication mode that the backend cannot serve."""


class CollectiveTypeError(ReplicatorError):
    """A type that cannot cross between worker processes."""


class ClusterError(ReplicatorError):
    """Processes of a cluster do not work together."""


class ClusterConfigError(ClusterError):
    """What describes the cluster (``TF_CONFIG``) is missing, partial or wrong."""


class PortInUseError(ClusterError):
    """Another process listens at this process's address."""


class UnreachableError(ClusterError):
    """Processes of the cluster do not answer."""


class LocalClusterError(ClusterError):
    """Processes that were started on this machine failed or did not end."""


class WorkerLostError(ClusterError):
    """A worker ended, or did not come to a step in time."""


class DisagreementError(ClusterError):
    """Workers are about to run different programs."""


class ServerLostError(ClusterError):
    """A parameter server does not answer; the variables that it held are gone."""
