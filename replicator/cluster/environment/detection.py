"""Finds the environment that describes this process's job."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping

    from replicator.cluster.configuration import ClusterConfig
    from replicator.cluster.environment.base import (
        ClusterEnvironment,
        DetectedEnvironment,
    )

# Modules and classes in the order in which they are tried: what a user sets comes
# before what a scheduler sets for every process. mpirun inside of an allocation comes
# before the scheduler, whose variables then describe the helpers of mpirun.
_ENVIRONMENTS = (
    ("tf_config", "TfConfigEnvironment"),
    ("ranks", "PlainRankEnvironment"),
    ("ranks", "OpenMpiEnvironment"),
    ("ranks", "HydraEnvironment"),
    ("slurm", "SlurmEnvironment"),
    ("kubernetes", "KubernetesEnvironment"),
)


def _environments() -> Iterator[type[DetectedEnvironment]]:
    """Yields the classes; none is imported after the one that is present."""
    for module, name in _ENVIRONMENTS:
        yield getattr(importlib.import_module(f"{__package__}.{module}"), name)


def detect(environ: Mapping[str, str] | None = None) -> ClusterEnvironment:
    """Finds the environment that describes this process's job.

    Args:
      environ: Environment variables; by default those of this process.

    Raises:
      ClusterConfigError: There is none, or it is malformed.
    """
    variables = os.environ if environ is None else environ
    for kind in _environments():
        if kind.is_present(variables):
            return kind(variables)
    from replicator.cluster.environment.tf_config import EXAMPLE

    raise ClusterConfigError(
        "TF_CONFIG is not set, and no launcher has numbered this process, so it does "
        f"not know its cluster; set it in every process, for example "
        f"TF_CONFIG='{EXAMPLE}', or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or"
        " start them as docs/clusters.md says"
    )


def forget(environ: MutableMapping[str, str]) -> None:
    """Removes what describes a job, so that a process of it is a program of its own."""
    for kind in _environments():
        for name in kind.variables(environ):
            del environ[name]


def config_of(cluster: ClusterConfig | None) -> ClusterConfig:
    """Returns a given cluster, or the one that this process's environment describes.

    Raises:
      ClusterConfigError: See ``detect`` and ``ClusterEnvironment.config``.
    """
    return detect().config() if cluster is None else cluster
