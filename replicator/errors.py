"""Errors that teach: what was passed, why it is wrong, what to do.

ReplicatorError
+-- CollectiveContextError     a collective called outside a replica
+-- CollectiveControlFlowError a collective inside tf.cond, tf.while_loop, tf.function
+-- CreateVariableInStepError  a variable made while a step is traced
+-- UnsynchronisedUpdateError  a trainable variable updated with per-replica values
+-- ReplicasOutOfSyncError     copies of a mirrored variable differ
+-- SplitBatchError            a global batch that replicas cannot share evenly
+-- UnknownBackendError        a backend name that is not registered
+-- DeviceError                devices that do not exist, or too few of them
+-- RetraceLimitError          a new step function object in every call
"""

from __future__ import annotations


class ReplicatorError(Exception):
    """Base of every error that this package raises on purpose.

    Not a ``ValueError``: AutoGraph keeps the type of an error from a traced step only
    where the constructor is that of ``Exception``.
    """


class CollectiveContextError(ReplicatorError):
    """A collective was called where no replica is running."""


class CollectiveControlFlowError(ReplicatorError):
    """A collective stands where it cannot be linked to the other replicas."""


class CreateVariableInStepError(ReplicatorError):
    """A step function made a variable; variables belong in ``context()``."""


class UnsynchronisedUpdateError(ReplicatorError):
    """A trainable variable would drift apart between replicas."""


class ReplicasOutOfSyncError(ReplicatorError):
    """Copies of a mirrored variable differ."""


class SplitBatchError(ReplicatorError):
    """A global batch does not divide by the number of replicas."""


class UnknownBackendError(ReplicatorError):
    """No backend has this name."""


class DeviceError(ReplicatorError):
    """A device does not exist, or there are fewer devices than replicas."""


class RetraceLimitError(ReplicatorError):
    """A fresh step function object is passed on every call, so each call retraces."""
