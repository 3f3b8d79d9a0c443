"""What a process can find out about its job; one subclass per way to learn it."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from replicator.cluster.configuration import ClusterConfig
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


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

    @classmethod
    @abc.abstractmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Names of those variables; without them, a process is in no job."""


def as_tuples(addresses: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Checks that every kind has a list of addresses.

    Raises:
      ClusterConfigError: One has none.
    """
    for kind, of_kind in addresses.items():
        if not isinstance(of_kind, (list, tuple)) or not of_kind:
            raise ClusterConfigError(
                f"the cluster's {kind!r} must be a list of addresses, but is "
                f"{of_kind!r}; write for example ['10.0.0.1:2222', '10.0.0.2:2222']"
            )
    return {kind: tuple(of_kind) for kind, of_kind in addresses.items()}


def as_index(index: Any) -> int:
    """Returns an index that a launcher may have written as text.

    Raises:
      ClusterConfigError: It is not an integer.
    """
    if isinstance(index, bool) or not isinstance(index, (int, str)):
        raise ClusterConfigError(f"index {index!r} of this process is not an integer")
    try:
        return int(index)  # some launchers write "0"
    except ValueError:
        raise ClusterConfigError(
            f"index {index!r} of this process is not an integer"
        ) from None
