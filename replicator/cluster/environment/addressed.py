"""Environments that give all addresses: ``TF_CONFIG``, resolvers, pods and Ray."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from replicator.cluster.configuration import MAX_PORT
from replicator.cluster.environment.environments import (
    EXAMPLE,
    ClusterEnvironment,
    DetectedEnvironment,
    as_index,
    as_tuples,
    by_kind,
    members_of,
    read_integer,
    read_text,
)
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INDEX = "JOB_COMPLETION_INDEX"
NUM_WORKERS = "REPLICATOR_NUM_WORKERS"
SERVICE = "REPLICATOR_SERVICE"
PORT = "REPLICATOR_PORT"
DEFAULT_PORT = 2222
MAX_WORKERS = 65_536
_HOW = (
    "'python -m harness launch render --launcher jobset' writes a manifest that sets it"
)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class TfConfigEnvironment(DetectedEnvironment):
    """TensorFlow's convention: the variable ``TF_CONFIG``, in JSON.

    It holds the addresses of all processes by kind (``chief``, ``worker``, ``ps``,
    ``evaluator``), and the kind and index of this one. A TFJob of Kubeflow lists no
    evaluators, which nobody connects to.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._config = _parse_tf_config(environ.get("TF_CONFIG", ""))

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return bool(environ.get("TF_CONFIG"))

    @classmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        return tuple({"TF_CONFIG"} & environ.keys())

    def addresses(self) -> dict[str, tuple[str, ...]]:
        return as_tuples(self._config["cluster"])

    def own(self) -> tuple[str, int]:
        own = self._config["task"]
        for key in ("type", "index"):
            if key not in own:
                raise ClusterConfigError(
                    f"TF_CONFIG['task'] has no {key!r}: {own!r}; it says which process "
                    "this one is, for example {'type': 'worker', 'index': 0}"
                )
        return own["type"], as_index(own["index"])


def _parse_tf_config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ClusterConfigError(
            f"TF_CONFIG is not JSON ({error}): {text!r}; write it like '{EXAMPLE}'"
        ) from error
    if not isinstance(config, dict):
        raise ClusterConfigError(
            f"TF_CONFIG must be a JSON object, but is {text!r}; write it like "
            f"'{EXAMPLE}'"
        )
    if "cluster" not in config and "sparseCluster" in config:
        raise ClusterConfigError(
            f"TF_CONFIG has 'sparseCluster', but workers that update together need the"
            " addresses of all, which are in 'cluster'; write"
            f" enableDynamicWorker: false in the TFJob, which then has that: {text!r}"
        )
    for part in ("cluster", "task"):
        if not isinstance(config.get(part), dict) or not config[part]:
            raise ClusterConfigError(
                f"TF_CONFIG has no {part!r} object: {text!r}; write it like '{EXAMPLE}'"
            )
    return config


class ResolverEnvironment(ClusterEnvironment):
    """A ``tf.distribute.cluster_resolver.ClusterResolver``, for what only it knows.

    It is not detected: somebody has to make the resolver.
    """

    def __init__(self, resolver: Any) -> None:
        self._resolver = resolver

    def addresses(self) -> dict[str, tuple[str, ...]]:
        return as_tuples(self._resolver.cluster_spec().as_dict())

    def own(self) -> tuple[str, int]:
        return self._resolver.task_type, as_index(self._resolver.task_id)


class KubernetesEnvironment(DetectedEnvironment):
    """Kubernetes numbers the pods of an Indexed Job, and names them after the job.

    Kubernetes sets the index of this pod (``JOB_COMPLETION_INDEX``) and its host name
    (``HOSTNAME``), which ends in the index. It sets neither the number of pods nor the
    service that gives them names in DNS, so the manifest does. One pod is one worker.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._num_workers = read_integer(
            environ, NUM_WORKERS, least=1, most=MAX_WORKERS, how=_HOW
        )
        self._index = read_integer(
            environ, INDEX, least=0, most=self._num_workers - 1, how=_HOW
        )
        self._port = read_integer(
            environ, PORT, least=1, most=MAX_PORT, how=_HOW, default=DEFAULT_PORT
        )
        self._service = read_text(environ, SERVICE, how=_HOW)
        if not _LABEL.fullmatch(self._service):
            raise ClusterConfigError(
                f"{SERVICE}={self._service!r} is not a name in DNS; it must be the name"
                " of the headless service, of lower-case letters, digits and '-'"
            )
        self._members = members_of(environ, self._num_workers)
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
        return bool(environ.get(INDEX))

    @classmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        names = (INDEX, NUM_WORKERS, SERVICE, PORT)
        return tuple(name for name in names if name in environ)

    def addresses(self) -> dict[str, tuple[str, ...]]:
        by_rank = tuple(
            f"{self._pods}-{index}.{self._service}:{self._port}"
            for index in range(self._num_workers)
        )
        return by_kind([kind for kind, _ in self._members], by_rank)

    def own(self) -> tuple[str, int]:
        return self._members[self._index]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RayMember:
    """One process of a gang."""

    # Ray's id of the machine, which tells two machines behind one address apart.
    node_id: str
    host: str  # The machine's address.
    port: int  # A port that is free there.
    # ``worker``, or ``chief`` or ``ps`` of a job with parameter servers.
    kind: str = "worker"

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class RayEnvironment(ClusterEnvironment):
    """A gang of Ray actors, in the order of their bundles.

    It is not detected: only the program that made the placement group knows the gang.
    The local rank follows from Ray's machines.
    """

    def __init__(self, members: Sequence[RayMember], rank: int) -> None:
        own, earlier = members[rank], members[:rank]
        self._members = members
        self._own = own.kind, sum(member.kind == own.kind for member in earlier)
        self.local_rank = sum(
            member.node_id == own.node_id and member.kind in ("chief", "worker")
            for member in earlier
        )

    def addresses(self) -> dict[str, tuple[str, ...]]:
        kinds = [member.kind for member in self._members]
        return by_kind(kinds, [member.address for member in self._members])

    def own(self) -> tuple[str, int]:
        return self._own
