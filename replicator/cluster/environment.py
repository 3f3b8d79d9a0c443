"""Cluster environments: who is in the job, which process is this, where is the chief.

One class per way to learn it, after the ``ClusterEnvironment`` of Lightning Fabric.
Free of TensorFlow, so that launchers can use it.
"""

from __future__ import annotations

import abc
import json
import os
from typing import TYPE_CHECKING, Any

from replicator.cluster.configuration import ClusterConfig
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXAMPLE = (
    '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


class ClusterEnvironment(abc.ABC):
    """What a process can find out about its job before it talks to anybody."""

    @abc.abstractmethod
    def addresses(self) -> dict[str, tuple[str, ...]]:
        """``name:port`` of every process, by kind; the chief is the first worker.

        Raises:
          ClusterConfigError: They are missing or malformed.
        """

    @abc.abstractmethod
    def own(self) -> tuple[str, int]:
        """Kind and index of this process.

        Raises:
          ClusterConfigError: They are missing or malformed.
        """

    def config(self, *, i_trust_this_network: bool = False) -> ClusterConfig:
        """The cluster, with everything checked.

        Args:
          i_trust_this_network: See ``ClusterConfig``.

        Raises:
          ClusterConfigError: It is incomplete or wrong; the message says what to write.
        """
        addresses = self.addresses()
        kind, index = self.own()
        return ClusterConfig(
            addresses=addresses,
            kind=kind,
            index=index,
            i_trust_this_network=i_trust_this_network,
        )


class DetectedEnvironment(ClusterEnvironment):
    """An environment that the variables of a process describe by themselves."""

    @abc.abstractmethod
    def __init__(self, environ: Mapping[str, str]) -> None:
        """Reads the variables.

        Raises:
          ClusterConfigError: They are malformed.
        """

    @classmethod
    @abc.abstractmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether environment variables describe a job in this way."""


class TfConfigEnvironment(DetectedEnvironment):
    """TensorFlow's convention: the variable ``TF_CONFIG``, in JSON.

    It holds the addresses of all processes by kind (``chief``, ``worker``, ``ps``,
    ``evaluator``), and the kind and index of this one.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Parses the variable.

        Raises:
          ClusterConfigError: It is missing, not JSON, or lacks a part.
        """
        self._config = _parse_tf_config(environ.get("TF_CONFIG", ""))

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether ``TF_CONFIG`` is set."""
        return bool(environ.get("TF_CONFIG"))

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """``TF_CONFIG["cluster"]``."""
        return _tuples(self._config["cluster"])

    def own(self) -> tuple[str, int]:
        """``TF_CONFIG["task"]``."""
        own = self._config["task"]
        for key in ("type", "index"):
            if key not in own:
                raise ClusterConfigError(
                    f"TF_CONFIG['task'] has no {key!r}: {own!r}; it says which process "
                    "this one is, for example {'type': 'worker', 'index': 0}"
                )
        return own["type"], _as_index(own["index"])


class ResolverEnvironment(ClusterEnvironment):
    """A ``tf.distribute.cluster_resolver.ClusterResolver``, for what only it knows.

    It is not detected: somebody has to make the resolver.
    """

    def __init__(self, resolver: Any) -> None:
        self._resolver = resolver

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """The resolver's cluster."""
        return _tuples(self._resolver.cluster_spec().as_dict())

    def own(self) -> tuple[str, int]:
        """The resolver's task."""
        return self._resolver.task_type, _as_index(self._resolver.task_id)


# In the order in which they are tried: what a user sets comes before what a scheduler
# sets for every process.
ENVIRONMENTS: tuple[type[DetectedEnvironment], ...] = (TfConfigEnvironment,)


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
        f"it in every process, for example TF_CONFIG='{_EXAMPLE}'"
    )


def config_of(cluster: ClusterConfig | None) -> ClusterConfig:
    """Returns a given cluster, or the one that this process's environment describes.

    Raises:
      ClusterConfigError: See ``detect`` and ``ClusterEnvironment.config``.
    """
    return detect().config() if cluster is None else cluster


def _parse_tf_config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ClusterConfigError(
            f"TF_CONFIG is not JSON ({error}): {text!r}; write it like '{_EXAMPLE}'"
        ) from error
    if not isinstance(config, dict):
        raise ClusterConfigError(
            f"TF_CONFIG must be a JSON object, but is {text!r}; write it like "
            f"'{_EXAMPLE}'"
        )
    for part in ("cluster", "task"):
        if not isinstance(config.get(part), dict) or not config[part]:
            raise ClusterConfigError(
                f"TF_CONFIG has no {part!r} object: {text!r}; write it like "
                f"'{_EXAMPLE}'"
            )
    return config


def _tuples(addresses: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    for kind, of_kind in addresses.items():
        if not isinstance(of_kind, (list, tuple)) or not of_kind:
            raise ClusterConfigError(
                f"the cluster's {kind!r} must be a list of addresses, but is "
                f"{of_kind!r}; write for example ['10.0.0.1:2222', '10.0.0.2:2222']"
            )
    return {kind: tuple(of_kind) for kind, of_kind in addresses.items()}


def _as_index(index: Any) -> int:
    if isinstance(index, bool) or not isinstance(index, (int, str)):
        raise ClusterConfigError(f"index {index!r} of this process is not an integer")
    try:
        return int(index)  # some launchers write "0"
    except ValueError:
        raise ClusterConfigError(
            f"index {index!r} of this process is not an integer"
        ) from None
