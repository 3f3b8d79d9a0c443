"""What a process can find out about its job, and how its variables are read."""

from __future__ import annotations

import abc
import importlib
import os
from typing import TYPE_CHECKING, Any

from replicator.cluster.configuration import KINDS, ClusterConfig
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping, Sequence

# Below the range from which kernels take ports for outgoing connections.
FIRST_PORT, LAST_PORT = 20000, 31999
_MOST_DIGITS = 10
EXAMPLE = (
    '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
ROLES = "REPLICATOR_ROLES"
"""How many tasks of each kind, in the order of their ranks: ``worker:4,ps:1``."""
# Modules and classes in the order in which they are tried: what a user sets comes
# before what a scheduler sets for every process. mpirun inside of an allocation comes
# before the scheduler, whose variables then describe the helpers of mpirun.
_ENVIRONMENTS = (
    ("addressed", "TfConfigEnvironment"),
    ("ranks", "PlainRankEnvironment"),
    ("ranks", "OpenMpiEnvironment"),
    ("ranks", "HydraEnvironment"),
    ("slurm", "SlurmEnvironment"),
    ("addressed", "KubernetesEnvironment"),
)


class ClusterEnvironment(abc.ABC):
    """What a process can find out about its job before it talks to anybody."""

    local_rank: int | None = None
    """Its index among the workers of its host, where that is known."""

    @abc.abstractmethod
    def addresses(self) -> dict[str, tuple[str, ...]]:
        """``name:port`` of every process, by kind; the chief is the first worker."""

    @abc.abstractmethod
    def own(self) -> tuple[str, int]:
        """Kind and index of this process."""

    def config(self, *, i_trust_this_network: bool = False) -> ClusterConfig:
        """The cluster, with everything checked."""
        addresses = self._addresses(is_trusted=i_trust_this_network)
        kind, index = self.own()
        return ClusterConfig(
            addresses=addresses,
            kind=kind,
            index=index,
            local_rank=self.local_rank,
            i_trust_this_network=i_trust_this_network,
        )

    def _addresses(self, *, is_trusted: bool) -> dict[str, tuple[str, ...]]:
        del is_trusted  # it matters where processes connect to find them out
        return self.addresses()


class DetectedEnvironment(ClusterEnvironment):
    """An environment that the variables of a process describe by themselves."""

    @abc.abstractmethod
    def __init__(self, environ: Mapping[str, str]) -> None:
        """Reads the variables."""

    @classmethod
    @abc.abstractmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether environment variables describe a job in this way."""

    @classmethod
    @abc.abstractmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Names of those variables; without them, a process is in no job."""


def as_tuples(addresses: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Checks that every kind has a list of addresses."""
    for kind, of_kind in addresses.items():
        if not isinstance(of_kind, (list, tuple)) or not of_kind:
            raise ClusterConfigError(
                f"the cluster's {kind!r} must be a list of addresses, but is "
                f"{of_kind!r}; write for example ['10.0.0.1:2222', '10.0.0.2:2222']"
            )
    return {kind: tuple(of_kind) for kind, of_kind in addresses.items()}


def as_index(index: Any) -> int:
    """Returns an index that a launcher may have written as text."""
    if isinstance(index, bool) or not isinstance(index, (int, str)):
        raise ClusterConfigError(f"index {index!r} of this process is not an integer")
    try:
        return int(index)  # some launchers write "0"
    except ValueError:
        raise ClusterConfigError(
            f"index {index!r} of this process is not an integer"
        ) from None


def read_text(environ: Mapping[str, str], name: str, *, how: str) -> str:
    text = environ.get(name, "")
    if not text:
        raise ClusterConfigError(
            f"{name} is not set, so this process does not know its cluster; {how}"
        )
    return text


def read_integer(
    environ: Mapping[str, str],
    name: str,
    *,
    least: int,
    most: int,
    how: str,
    default: int | None = None,
) -> int:
    if default is not None and not environ.get(name):
        return default
    text = read_text(environ, name, how=how)
    is_integer = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not is_integer or not least <= int(text) <= most:
        raise ClusterConfigError(
            f"{name}={text!r} is not an integer from {least} to {most}; {how}"
        )
    return int(text)


def members_of(
    environ: Mapping[str, str], num_tasks: int
) -> tuple[tuple[str, int], ...]:
    text = environ.get(ROLES, "") or f"worker:{num_tasks}"
    found: list[tuple[str, int]] = []
    for part in text.split(","):
        kind, _, count = part.strip().partition(":")
        is_number = count.isascii() and count.isdigit()
        if kind not in KINDS or not is_number or kind in {k for k, _ in found}:
            raise ClusterConfigError(
                f"{ROLES}={text!r} is not a list of counts by kind: {part!r} is"
                f" wrong; kinds are {', '.join(KINDS)}, each once; write for example"
                " 'worker:4,ps:1'"
            )
        found += [(kind, index) for index in range(int(count))]
    if len(found) != num_tasks:
        raise ClusterConfigError(
            f"{ROLES}={text!r} counts {len(found)} processes, but the job has"
            f" {num_tasks} tasks; start as many tasks as there are processes"
        )
    return tuple(found)


def roles_text(members: Sequence[tuple[str, int]]) -> str:
    """Returns the value of ``ROLES`` for processes in the order of their ranks."""
    kinds = [kind for kind, _ in members]
    return ",".join(f"{kind}:{kinds.count(kind)}" for kind in dict.fromkeys(kinds))


def by_kind(
    kinds: Sequence[str], addresses: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Returns addresses by kind, from both by rank."""
    of_ranks = list(zip(kinds, addresses, strict=True))
    return {
        kind: tuple(address for own, address in of_ranks if own == kind)
        for kind in dict.fromkeys(kinds)
    }


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
    """Returns a given cluster, or the one that this process's environment describes."""
    return detect().config() if cluster is None else cluster
