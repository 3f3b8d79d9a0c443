"""A pod of an Indexed Job, alone or in a JobSet, behind a headless service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from replicator.cluster.environment import roles
from replicator.cluster.environment.base import DetectedEnvironment
from replicator.cluster.environment.variables import read_integer, read_text
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

INDEX = "JOB_COMPLETION_INDEX"
NUM_WORKERS = "REPLICATOR_NUM_WORKERS"
SERVICE = "REPLICATOR_SERVICE"
PORT = "REPLICATOR_PORT"
DEFAULT_PORT = 2222
MAX_WORKERS = 65_536
_MAX_PORT = 65_535
_HOW = (
    "'python -m harness launch render --launcher jobset' writes a manifest that sets it"
)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class KubernetesEnvironment(DetectedEnvironment):
    """Kubernetes numbers the pods of an Indexed Job, and names them after the job.

    Kubernetes sets the index of this pod (``JOB_COMPLETION_INDEX``) and its host name
    (``HOSTNAME``), which ends in the index. It sets neither the number of pods nor the
    service that gives them names in DNS, so the manifest does. One pod is one worker.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Reads the variables.

        Raises:
          ClusterConfigError: One is missing or malformed.
        """
        self._num_workers = read_integer(
            environ, NUM_WORKERS, least=1, most=MAX_WORKERS, how=_HOW
        )
        self._index = read_integer(
            environ, INDEX, least=0, most=self._num_workers - 1, how=_HOW
        )
        self._port = read_integer(
            environ, PORT, least=1, most=_MAX_PORT, how=_HOW, default=DEFAULT_PORT
        )
        self._service = read_text(environ, SERVICE, how=_HOW)
        if not _LABEL.fullmatch(self._service):
            raise ClusterConfigError(
                f"{SERVICE}={self._service!r} is not a name in DNS; it must be the name"
                " of the headless service, of lower-case letters, digits and '-'"
            )
        self._members = roles.of_tasks(environ, self._num_workers)
        # With setHostnameAsFQDN the name has the domain behind it.
        name = read_text(environ, "HOSTNAME", how=_HOW).partition(".")[0]
        self._pods, _, index = name.rpartition("-")
        if index != str(self._index) or not self._pods:
            raise ClusterConfigError(
                f"HOSTNAME={name!r} does not end in '-{self._index}', as that of a pod"
                f" with {INDEX}={self._index} does; set neither of them, and use"
                " completionMode: Indexed"
            )

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether this is a pod of an Indexed Job."""
        return bool(environ.get(INDEX))

    @classmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        """What Kubernetes and the manifest set."""
        names = (INDEX, NUM_WORKERS, SERVICE, PORT)
        return tuple(name for name in names if name in environ)

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """The pods' names in DNS, which exist before the pods are ready."""
        by_rank = tuple(
            f"{self._pods}-{index}.{self._service}:{self._port}"
            for index in range(self._num_workers)
        )
        return roles.addresses(self._members, by_rank)

    def own(self) -> tuple[str, int]:
        """By index: a worker, unless ``REPLICATOR_ROLES`` says otherwise."""
        return self._members[self._index]
