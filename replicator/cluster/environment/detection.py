"""Finds the environment that describes this process's job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from replicator.cluster.environment.slurm import SlurmEnvironment
from replicator.cluster.environment.tf_config import EXAMPLE, TfConfigEnvironment
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from replicator.cluster.configuration import ClusterConfig
    from replicator.cluster.environment.base import (
        ClusterEnvironment,
        DetectedEnvironment,
    )

# In the order in which they are tried: what a user sets comes before what a scheduler
# sets for every process.
ENVIRONMENTS: tuple[type[DetectedEnvironment], ...] = (
    TfConfigEnvironment,
    SlurmEnvironment,
)


def detect(environ: Mapping[str, str] | None = None) -> ClusterEnvironment:
    """Finds the environment that describes this process's job.

    Args:
      environ: Environment variables; by default those of this process.

    Raises:
      ClusterConfigError: There is none, or it is malformed.
    """
    variables = os.environ if environ is None else environ
    for kind in ENVIRONMENTS:
        if kind.is_present(variables):
            return kind(variables)
    raise ClusterConfigError(
        "TF_CONFIG is not set, so this process does not know its cluster; set "
        f"it in every process, for example TF_CONFIG='{EXAMPLE}'"
    )


def forget(environ: MutableMapping[str, str]) -> None:
    """Removes what describes a job, so that a process of it is a program of its own."""
    for kind in ENVIRONMENTS:
        for name in kind.variables(environ):
            del environ[name]


def config_of(cluster: ClusterConfig | None) -> ClusterConfig:
    """Returns a given cluster, or the one that this process's environment describes.

    Raises:
      ClusterConfigError: See ``detect`` and ``ClusterEnvironment.config``.
    """
    return detect().config() if cluster is None else cluster
