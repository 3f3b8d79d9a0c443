"""Kubernetes: sweeps as Jobs, gangs as JobSets, by ``kubectl``."""

from typing import Final

POD_VARIABLE: Final = "REPLICATOR_HARNESS_POD"
"""Set in the pod of a sweep: its name."""
UID_VARIABLE: Final = "REPLICATOR_HARNESS_POD_UID"
NAMESPACE_VARIABLE: Final = "REPLICATOR_HARNESS_NAMESPACE"
ADDRESS_VARIABLE: Final = "REPLICATOR_HARNESS_POD_ADDRESS"
RUNS_VARIABLE: Final = "REPLICATOR_HARNESS_CLAIM_AT"
"""Where the studies are mounted, in all pods."""
GPUS_VARIABLE: Final = "REPLICATOR_HARNESS_GPUS"
"""GPUs of each worker."""
