"""The processes of a cluster, by TensorFlow's kinds, and which of them this one is.

``environment`` finds it out. Free of TensorFlow, so that launchers can use it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

from replicator.errors import ClusterConfigError

EVALUATOR = "evaluator"
KINDS = ("chief", "worker", "ps", EVALUATOR)
MAX_PORT = 65535
# Below the range from which kernels take ports for outgoing connections.
FIRST_PORT, LAST_PORT = 20000, 31999
_INSTEAD = (
    "an evaluator restores the checkpoints of the workers into a backend of its own"
    " machine, such as create('in_graph')"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """The processes of a cluster, and which of them this one is."""

    addresses: Mapping[str, tuple[str, ...]]  # ``name:port`` of every process, by kind.
    kind: str  # Of this process; an evaluator need not be in ``addresses``.
    index: int  # Its index among the processes of its kind.
    # Its index among the workers of its host, if its launcher says.
    local_rank: int | None = None
    # Whether something else blocks untrusted hosts (``cluster.port_filter``).
    i_trust_this_network: bool = False

    def __post_init__(self) -> None:
        addresses, kind, index = self.addresses, self.kind, self.index
        for listed in addresses:
            if listed not in KINDS:
                raise ClusterConfigError(
                    f"the cluster has processes of unknown kind {listed!r}; kinds are "
                    f"{', '.join(map(repr, KINDS))}"
                )
        if len(addresses.get("chief", ())) > 1:
            raise ClusterConfigError(
                f"the cluster has {len(addresses['chief'])} chiefs, but at most one is "
                "allowed; list the others as 'worker'"
            )
        if not self.workers:
            raise ClusterConfigError(
                f"the cluster has no 'worker': {dict(addresses)!r}; list every "
                "worker's address, including this process"
            )
        everyone = [*itertools.chain(*addresses.values())]
        for address in everyone:
            split_address(address)
            if everyone.count(address) > 1:
                raise ClusterConfigError(
                    f"address {address!r} is listed twice in the cluster; every "
                    "process needs its own"
                )
        if kind == EVALUATOR and kind not in addresses and index >= 0:
            return  # TFJob lists none: nobody connects to it
        if kind not in addresses:
            raise ClusterConfigError(
                f"this process is of kind {kind!r}, but the cluster lists only "
                f"{', '.join(map(repr, addresses))}; TF_CONFIG['task']['type'] must be "
                "one of them"
            )
        num_of_kind = len(addresses[kind])
        if not 0 <= index < num_of_kind:
            raise ClusterConfigError(
                f"index {index!r} of this process is out of range: the cluster lists "
                f"{num_of_kind} of kind {kind!r}, so TF_CONFIG['task']['index'] must "
                f"be 0 to {num_of_kind - 1}"
            )

    @property
    def address(self) -> str:
        """Where this process listens."""
        if self.kind not in self.addresses:
            raise ClusterConfigError(
                f"this process is {self.kind}:{self.index}, which the cluster does not"
                f" list, so it takes no part in it; {_INSTEAD}"
            )
        return self.addresses[self.kind][self.index]

    @property
    def workers(self) -> tuple[tuple[str, int], ...]:
        """Kind and index of all workers, by worker id; a chief is worker 0."""
        return tuple(
            (kind, index)
            for kind in ("chief", "worker")
            for index in range(len(self.addresses.get(kind, ())))
        )

    @property
    def training_addresses(self) -> dict[str, tuple[str, ...]]:
        """Addresses of the processes that train, by kind."""
        kinds = [kind for kind in ("chief", "worker") if kind in self.addresses]
        return {kind: self.addresses[kind] for kind in kinds}

    @property
    def num_workers(self) -> int:
        """Number of processes that train, including a chief."""
        return len(self.workers)

    @property
    def worker_id(self) -> int:
        """Index of this process among the workers."""
        own = (self.kind, self.index)
        if own not in self.workers:
            how = "start it as 'chief' or 'worker' (TF_CONFIG['task']['type'])"
            how = _INSTEAD if self.kind == EVALUATOR else how
            raise ClusterConfigError(
                f"this process is {self.kind}:{self.index}, not a worker; {how}"
            )
        return self.workers.index(own)

    @property
    def is_chief(self) -> bool:
        """Whether this process is worker 0, the one that writes checkpoints."""
        return (self.kind, self.index) == self.workers[0]

    @property
    def local_index(self) -> int:
        """Index of this process among those of its kind on its host."""
        own = split_address(self.address)[0]
        before = self.addresses[self.kind][: self.index]
        return sum(split_address(address)[0] == own for address in before)

    @property
    def local_worker_id(self) -> int:
        """Index of this process among the workers of its host, a chief included."""
        if self.local_rank is not None:  # a launcher knows hosts with several addresses
            return self.local_rank
        return self._hosts[: self.worker_id].count(self._hosts[self.worker_id])

    @property
    def num_workers_on_host(self) -> int:
        """Workers on the host of this one, itself included."""
        listed = self._hosts.count(self._hosts[self.worker_id])
        return max(listed, self.local_worker_id + 1)

    @property
    def _hosts(self) -> list[str]:
        addresses = map(self.address_of, range(self.num_workers))
        return [split_address(address)[0] for address in addresses]

    def address_of(self, worker_id: int) -> str:
        kind, index = self.workers[worker_id]
        return self.addresses[kind][index]

    def name_of(self, worker_id: int) -> str:
        """Name of a worker in messages."""
        return f"worker {worker_id} ({self.address_of(worker_id)})"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """What a launcher tells a process that does not get the addresses of all."""

    rank: int
    world_size: int
    chief_host: str  # Where rank 0 runs, and collects the addresses at the port.
    chief_port: int

    @property
    def chief(self) -> str:
        return join_address(self.chief_host, self.chief_port)


def split_address(address: str) -> tuple[str, int]:
    """Splits ``name:port``; the name may be an IPv6 address in brackets."""
    name, _, port = str(address).rpartition(":")
    is_number = port.isascii() and port.isdigit() and 0 < int(port) <= MAX_PORT
    if not isinstance(address, str) or not name or "/" in name or not is_number:
        raise ClusterConfigError(
            f"address {address!r} is not of the form 'name:port' with a port from 1 to "
            f"{MAX_PORT}; write for example '10.0.0.1:2222'"
        )
    return name.strip("[]"), int(port)


def join_address(name: str, port: int) -> str:
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
