"""Cluster environments: who is in the job, which process is this, where is the chief.

One class per way to learn it, after the ``ClusterEnvironment`` of Lightning Fabric, and
one file per class. Free of TensorFlow, so that launchers can use it.
"""

from replicator.cluster.environment.base import ClusterEnvironment, DetectedEnvironment
from replicator.cluster.environment.detection import (
    ENVIRONMENTS,
    config_of,
    detect,
    forget,
)
from replicator.cluster.environment.resolver import ResolverEnvironment
from replicator.cluster.environment.slurm import SlurmEnvironment
from replicator.cluster.environment.tf_config import TfConfigEnvironment

__all__ = [
    "ENVIRONMENTS",
    "ClusterEnvironment",
    "DetectedEnvironment",
    "ResolverEnvironment",
    "SlurmEnvironment",
    "TfConfigEnvironment",
    "config_of",
    "detect",
    "forget",
]
